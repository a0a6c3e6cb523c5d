package manifest

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	Security(ctx context.Context, db string) (couch.Security, error)
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

// Ledger is what Postgres says of a restaurant's days at one moment.
type Ledger struct {
	restaurant daydb.Restaurant
	days       []daydb.DayDB
	now        time.Time
	// recorded is the generation of the last manifest that was recorded.
	recorded *int64
}

// Read returns the ledger of a restaurant. The transaction must be one of the
// lease that Publish is called under.
func (p *Publisher) Read(ctx context.Context, tx pgx.Tx, r daydb.Restaurant) (Ledger, error) {
	l := Ledger{restaurant: r}
	var err error
	l.days, err = daydb.List(ctx, tx, daydb.Filter{
		CompanyID:    r.CompanyID,
		RestaurantID: r.RestaurantID,
		States:       []daydb.State{daydb.Active, daydb.Draining},
	})
	if err != nil {
		return Ledger{}, err
	}
	err = tx.QueryRow(ctx, `
		select now(), manifest_generation
		from restaurants
		where company_id = $1 and restaurant_id = $2`, r.CompanyID, r.RestaurantID).Scan(&l.now, &l.recorded)
	if err != nil {
		return Ledger{}, fmt.Errorf("ledger of %s: %w", r, err)
	}
	return l, nil
}

// drew reports whether a run is known to have been given this generation: this
// one, an earlier one, or the one that was recorded.
func (l Ledger) drew(generation int64, lease fence.Lease) bool {
	return generation <= lease.Token || l.recorded != nil && *l.recorded == generation
}

// Published is what Publish found and did.
type Published struct {
	// Written is false when core said it already.
	Written bool
	// Gone are day databases that the ledger calls ACTIVE or DRAINING and that
	// CouchDB does not have. The manifest does not name them.
	Gone []string

	restaurant daydb.Restaurant
	generation int64
	recorded   *int64
}

// Recorded reports whether Record has nothing to do.
func (p Published) Recorded() bool { return p.recorded != nil && *p.recorded == p.generation }

// tries bounds how often a write is begun again after a conflict or an unknown
// outcome.
const tries = 3

// Publish makes core say what the ledger says. The lease must be the
// restaurant's; its token is the generation. It writes only when the content
// differs, repairs what was damaged, and settles conflicts. Seen are databases
// that this run has just found in place; others are looked for before the
// manifest names them.
//
//  1. The caller reads the ledger under the lease, with Read. A crash after it
//     leaves nothing.
//  2. Publish puts the design document that protects the manifest, then the
//     manifest. A crash between the two leaves a protected core without a
//     manifest, or with the old one; the next run writes it.
//  3. The caller records the generation, with Record. A crash before it leaves a
//     manifest that is right and not recorded; the next run finds the difference
//     and records it.
//
// ErrNotFound of couch: core is absent. daydb.ErrStale: a newer run has written.
// ErrLedgerBehind: core names a day that the ledger does not know.
func (p *Publisher) Publish(ctx context.Context, lease fence.Lease, l Ledger, seen ...string) (Published, error) {
	result := Published{restaurant: l.restaurant, recorded: l.recorded}
	core, err := contracts.CoreName(p.env, l.restaurant.CompanyID, l.restaurant.RestaurantID)
	if err != nil {
		return result, err
	}
	doc, err := p.read(ctx, core)
	if err != nil {
		return result, err
	}
	result.generation = doc.generation
	if doc.protected && doc.says(Build(l.days)) && l.drew(doc.generation, lease) {
		return result, nil
	}
	if err := p.refuseToGoBack(ctx, doc, l); err != nil {
		return result, fmt.Errorf("write manifest of %s: %w", core, err)
	}
	l.days, result.Gone, err = p.present(ctx, l.days, seen)
	if err != nil {
		return result, err
	}
	want := Build(l.days)
	want.Generation, want.UpdatedAt = lease.Token, l.now.Format(time.RFC3339)
	result.Written, result.generation, err = p.write(ctx, core, doc, want, l, lease)
	if err != nil {
		return result, fmt.Errorf("write manifest of %s: %w", core, err)
	}
	return result, nil
}

// Record notes the generation of the manifest in a transaction of the lease.
func (p *Publisher) Record(ctx context.Context, tx pgx.Tx, lease fence.Lease, published Published) error {
	tag, err := tx.Exec(ctx, `
		update restaurants set
		  manifest_generation = @generation,
		  fencing_token = @token
		where company_id = @company and restaurant_id = @restaurant and fencing_token <= @token`,
		pgx.NamedArgs{
			"generation": published.generation,
			"token":      lease.Token,
			"company":    published.restaurant.CompanyID,
			"restaurant": published.restaurant.RestaurantID,
		})
	if err != nil {
		return fmt.Errorf("record manifest of %s: %w", published.restaurant, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("record manifest of %s: %w", published.restaurant, daydb.ErrStale)
	}
	return nil
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

// present splits off the days whose database CouchDB does not have. Anything but
// a 404 leaves a day in: under load CouchDB answers 500 for what is there.
func (p *Publisher) present(ctx context.Context, days []daydb.DayDB, seen []string) (there []daydb.DayDB, gone []string, err error) {
	for _, d := range days {
		if slices.Contains(seen, d.Name) {
			there = append(there, d)
			continue
		}
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
func (p *Publisher) write(ctx context.Context, core string, doc document, want contracts.DayManifest, l Ledger, lease fence.Lease) (written bool, generation int64, err error) {
	for try := 1; ; try++ {
		if !doc.protected {
			if err := p.protect(ctx, core, doc); err != nil {
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

// protect puts the design document; in a new core without looking for one first.
func (p *Publisher) protect(ctx context.Context, core string, doc document) error {
	if !doc.designed {
		design := couch.DesignDoc{ID: DesignID, Language: "javascript", Validate: Validation}
		err := p.couch.Put(ctx, core, DesignID, design)
		if !errors.Is(err, couch.ErrConflict) {
			return err
		}
	}
	return p.couch.PutDesign(ctx, core, DesignID, Validation)
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
