package manifest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg"
)

// CouchDB is what the manifest needs of the database server; couch.Client has it.
type CouchDB interface {
	Revisions(ctx context.Context, db string, refs []couch.Ref, history bool) ([]couch.Revision, error)
	Put(ctx context.Context, db, id string, doc any) error
	PutDesign(ctx context.Context, db, id, validate string) error
	Info(ctx context.Context, db string) (couch.Info, error)
}

// Publisher writes manifests.
type Publisher struct {
	pool  *pgxpool.Pool
	couch CouchDB
	env   string
}

// New returns a publisher for the databases of an environment.
func New(pool *pgxpool.Pool, db CouchDB, env string) *Publisher {
	return &Publisher{pool: pool, couch: db, env: env}
}

// Published is what Publish found and did.
type Published struct {
	// Written is false when core said it already.
	Written bool
	// Gone are day databases that the ledger calls ACTIVE or DRAINING and that
	// CouchDB does not have. The manifest does not name them.
	Gone []string
}

// tries bounds how often a write is begun again after a conflict or an unknown
// outcome.
const tries = 3

// Publish makes core say what the ledger says of a restaurant's days. The lease
// must be the restaurant's; its token is the generation. It writes only when the
// content differs, repairs what was damaged, and settles conflicts.
//
//  1. It reads the ledger under the lease. A crash here leaves nothing.
//  2. It reads core, and puts the design document that protects the manifest
//     before the manifest. A crash between the two leaves a protected core
//     without a manifest, or with the old one; the next run writes it.
//  3. It records the generation. A crash before leaves a manifest that is right
//     and not recorded; the next run finds the difference and records it.
//
// ErrNotFound of couch: core is absent. daydb.ErrStale: a newer run has written.
func (p *Publisher) Publish(ctx context.Context, lease fence.Lease, r daydb.Restaurant) (Published, error) {
	core, err := contracts.CoreName(p.env, r.CompanyID, r.RestaurantID)
	if err != nil {
		return Published{}, err
	}
	l, err := p.ledger(ctx, lease, r)
	if err != nil {
		return Published{}, fmt.Errorf("manifest of %s: %w", r, err)
	}
	doc, err := p.read(ctx, core)
	if err != nil {
		return Published{}, err
	}
	var result Published
	generation := doc.generation
	if want := Build(l.days); !doc.protected || !doc.says(want) || !l.drew(doc.generation, lease) {
		l.days, result.Gone, err = p.present(ctx, l.days)
		if err != nil {
			return result, err
		}
		want = Build(l.days)
		want.Generation, want.UpdatedAt = lease.Token, l.now.Format(time.RFC3339)
		result.Written, generation, err = p.write(ctx, core, doc, want, l, lease)
		if err != nil {
			return result, fmt.Errorf("write manifest of %s: %w", core, err)
		}
	}
	if l.recorded != nil && *l.recorded == generation {
		return result, nil
	}
	return result, p.record(ctx, lease, r, generation)
}

// Differs reports, without writing, whether Publish would write for these days.
func (p *Publisher) Differs(ctx context.Context, r daydb.Restaurant, days []daydb.DayDB) (bool, error) {
	core, err := contracts.CoreName(p.env, r.CompanyID, r.RestaurantID)
	if err != nil {
		return false, err
	}
	doc, err := p.read(ctx, core)
	if errors.Is(err, couch.ErrNotFound) {
		return true, nil
	}
	return !doc.says(Build(days)), err
}

// ledger is what Postgres says of a restaurant at one moment.
type ledger struct {
	days []daydb.DayDB
	now  time.Time
	// recorded is the generation of the last manifest that was recorded.
	recorded *int64
}

// drew reports whether a run is known to have been given this generation: this
// one, an earlier one, or the one that was recorded.
func (l ledger) drew(generation int64, lease fence.Lease) bool {
	return generation <= lease.Token || l.recorded != nil && *l.recorded == generation
}

func (p *Publisher) ledger(ctx context.Context, lease fence.Lease, r daydb.Restaurant) (l ledger, err error) {
	err = pg.WithTx(ctx, p.pool, func(tx pgx.Tx) error {
		if err := lease.Check(ctx, tx); err != nil {
			return err
		}
		l.days, err = daydb.List(ctx, tx, daydb.Filter{
			CompanyID:    r.CompanyID,
			RestaurantID: r.RestaurantID,
			States:       []daydb.State{daydb.Active, daydb.Draining},
		})
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, `
			select now(), manifest_generation
			from restaurants
			where company_id = $1 and restaurant_id = $2`, r.CompanyID, r.RestaurantID).Scan(&l.now, &l.recorded)
	})
	return l, err
}

// present splits off the days whose database CouchDB does not have. Anything but
// a 404 leaves a day in: under load CouchDB answers 500 for what is there.
func (p *Publisher) present(ctx context.Context, days []daydb.DayDB) (there []daydb.DayDB, gone []string, err error) {
	for _, d := range days {
		switch _, err := p.couch.Info(ctx, d.Name); {
		case errors.Is(err, couch.ErrNotFound):
			gone = append(gone, d.Name)
		case err != nil && ctx.Err() != nil:
			return nil, nil, context.Cause(ctx)
		default:
			there = append(there, d)
		}
	}
	return there, gone, nil
}

// write brings core from doc to want. After a conflict, or a write of which
// nobody knows the outcome, it reads again and goes on from there.
func (p *Publisher) write(ctx context.Context, core string, doc document, want contracts.DayManifest, l ledger, lease fence.Lease) (written bool, generation int64, err error) {
	for try := 1; ; try++ {
		if !doc.protected {
			if err := p.couch.PutDesign(ctx, core, DesignID, Validation); err != nil {
				return false, 0, fmt.Errorf("put design document: %w", err)
			}
		}
		if doc.says(want) && l.drew(doc.generation, lease) {
			return written, doc.generation, nil
		}
		if doc.generation <= lease.Token {
			err = p.put(ctx, core, doc, want)
		} else {
			err = p.replaceForged(ctx, core, doc, want)
		}
		if err == nil {
			return true, want.Generation, nil
		}
		if try == tries || errors.Is(err, daydb.ErrStale) || ctx.Err() != nil {
			return false, 0, err
		}
		// What was put may have arrived although it was reported as failed.
		written = true
		reread, readErr := p.read(ctx, core)
		if readErr != nil {
			return false, 0, errors.Join(err, readErr)
		}
		doc = reread
	}
}

// put extends the longest leaf with the wanted content and ends the others.
func (p *Publisher) put(ctx context.Context, core string, doc document, want contracts.DayManifest) error {
	top, others := doc.longest()
	next := struct {
		contracts.DayManifest
		Rev string `json:"_rev,omitempty"`
	}{want, top.Rev}
	if err := p.couch.Put(ctx, core, contracts.ManifestID, next); err != nil {
		return err
	}
	for _, loser := range others {
		end := map[string]any{
			"_id":        contracts.ManifestID,
			"_rev":       loser.Rev,
			"_deleted":   true,
			"type":       contracts.ManifestType,
			"generation": want.Generation,
		}
		if err := p.couch.Put(ctx, core, contracts.ManifestID, end); err != nil {
			return fmt.Errorf("settle conflict: %w", err)
		}
	}
	return nil
}

// replaceForged writes over a manifest of a higher generation than this run's.
// Either a newer run has written it, and this one is stale. Or no run was ever
// given that generation: then somebody typed it, core would refuse every
// manifest to come, and for the moment of the repair the order of generations is
// not checked. A crash in between leaves the weaker design document, which the
// next run replaces.
func (p *Publisher) replaceForged(ctx context.Context, core string, doc document, want contracts.DayManifest) error {
	var highest int64
	err := p.pool.QueryRow(ctx, `select last_value from fencing_tokens_seq`).Scan(&highest)
	if err != nil {
		return fmt.Errorf("highest token: %w", pg.Translate(err))
	}
	if doc.generation <= highest {
		return fmt.Errorf("%w: generation %d is newer than %d", daydb.ErrStale, doc.generation, want.Generation)
	}
	if err := p.couch.PutDesign(ctx, core, DesignID, repairValidation); err != nil {
		return fmt.Errorf("put design document: %w", err)
	}
	if err := p.put(ctx, core, doc, want); err != nil {
		return err
	}
	return p.couch.PutDesign(ctx, core, DesignID, Validation)
}

func (p *Publisher) record(ctx context.Context, lease fence.Lease, r daydb.Restaurant, generation int64) error {
	err := pg.WithTx(ctx, p.pool, func(tx pgx.Tx) error {
		if err := lease.Check(ctx, tx); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			update restaurants set
			  manifest_generation = @generation,
			  fencing_token = @token
			where company_id = @company and restaurant_id = @restaurant and fencing_token <= @token`,
			pgx.NamedArgs{
				"generation": generation,
				"token":      lease.Token,
				"company":    r.CompanyID,
				"restaurant": r.RestaurantID,
			})
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return daydb.ErrStale
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("record manifest of %s: %w", r, err)
	}
	return nil
}
