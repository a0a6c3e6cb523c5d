package rotation

import (
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/pg"
)

// openDay is a day database that devices write to.
type openDay struct {
	name  string
	state daydb.State
}

// forDays decides which operational documents are carried, and into which day.
//
// A document that an open day holds already goes there, whatever has become of
// it: had a till closed an order offline, and were the closed order put into
// another day, the open one would keep its day from ever being archived. All
// others go to the ACTIVE day: after the cutover every one of them, before it
// those that are not in the archive for good.
func (p *pass) forDays(ctx context.Context, c *legacyCopy, entries []entry) (map[string][]entry, error) {
	destinations := make(map[string][]entry)
	for _, day := range c.days {
		if len(entries) == 0 {
			return destinations, nil
		}
		held, err := p.held(ctx, day.name, entries)
		if err != nil {
			return nil, err
		}
		var rest []entry
		for _, e := range entries {
			if held[e.id] {
				destinations[day.name] = append(destinations[day.name], e)
			} else {
				rest = append(rest, e)
			}
		}
		entries = rest
	}
	settled, err := p.settledDocs(ctx, c, entries)
	if err != nil {
		return nil, err
	}
	active := c.days[0].name
	for _, e := range entries {
		if !settled[e.id] {
			destinations[active] = append(destinations[active], e)
		}
	}
	return destinations, nil
}

// settledDocs returns which documents need not be carried: those whose winning
// revision is final and in the archive, without a conflict beside it, and
// deletions of what neither the archive nor an open day has ever held.
func (p *pass) settledDocs(ctx context.Context, c *legacyCopy, entries []entry) (map[string]bool, error) {
	settled := make(map[string]bool)
	var final []entry
	for _, e := range entries {
		switch {
		case e.deleted && !e.typed:
			settled[e.id] = e.archivedRev == "" || e.archivedRev == e.revs[0]
		case !c.late && (e.terminal || e.deleted):
			final = append(final, e)
		}
	}
	if len(final) == 0 {
		return settled, nil
	}
	archived, err := p.archived(ctx, final)
	if err != nil {
		return nil, err
	}
	var branched []entry
	for _, e := range final {
		doc, ok := archived[e.id]
		settled[e.id] = ok && doc.rev == e.revs[0] || !ok && e.deleted
		if settled[e.id] && len(e.revs) > 1 {
			branched = append(branched, e)
		}
	}
	if len(branched) == 0 {
		return settled, nil
	}
	revisions, err := p.couch.Revisions(ctx, p.legacyDB, refs(branched), false)
	if err != nil {
		return nil, err
	}
	live := make(map[string]int)
	for _, r := range revisions {
		if r.Body != nil && !r.Deleted() {
			live[r.ID]++
		}
	}
	for id, n := range live {
		settled[id] = n <= 1
	}
	return settled, nil
}

// archivedDoc is a document of the legacy database that the archive holds.
type archivedDoc struct {
	daydb.Restaurant
	rev string
}

// archived returns, by id, what the archive holds of the entries in this
// incarnation of the legacy database.
func (p *pass) archived(ctx context.Context, entries []entry) (map[string]archivedDoc, error) {
	ids := make(map[[sha256.Size]byte]string, len(entries))
	hashes := make([][]byte, 0, len(entries))
	for _, e := range entries {
		hash := sha256.Sum256([]byte(e.id))
		ids[hash] = e.id
		hashes = append(hashes, hash[:])
	}
	rows, err := p.pool.Query(ctx, `
		select d.id_hash, d.rev, coalesce(d.company_id, ''), coalesce(d.restaurant_id, '')
		from archived_docs d
		join archive_checkpoints c on c.id = d.source_id
		where c.db_name = $1 and c.incarnation = $2 and d.id_hash = any($3)`,
		p.legacyDB, p.incarnation, hashes)
	if err != nil {
		return nil, fmt.Errorf("look into the archive: %w", pg.Translate(err))
	}
	found := make(map[string]archivedDoc)
	var (
		hash []byte
		doc  archivedDoc
	)
	_, err = pgx.ForEachRow(rows, []any{&hash, &doc.rev, &doc.CompanyID, &doc.RestaurantID}, func() error {
		found[ids[[sha256.Size]byte(hash)]] = doc
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look into the archive: %w", pg.Translate(err))
	}
	return found, nil
}
