package rotation

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"

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
// others go to the ACTIVE day, but for those that are left where they are.
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
	left, err := p.left(ctx, c, entries)
	if err != nil {
		return nil, err
	}
	active := c.days[0].name
	for _, e := range entries {
		if !left[e.id] {
			destinations[active] = append(destinations[active], e)
		}
	}
	return destinations, nil
}

// left returns which documents are not carried. In a reading for open documents
// alone those are the finished ones, deletions among them, which the archive
// takes from the legacy database, and those that a day had which is archived by
// now. A finished document in conflict is carried all the same, so that somebody
// sees it. In any other reading only deletions are left, of what neither the
// archive nor an open day has ever held.
func (p *pass) left(ctx context.Context, c *legacyCopy, entries []entry) (map[string]bool, error) {
	left := make(map[string]bool)
	var branched, open []entry
	for _, e := range entries {
		switch {
		case !c.openOnly:
			left[e.id] = e.deleted && !e.typed && (e.archivedRev == "" || e.archivedRev == e.revs[0])
		case !e.deleted && !e.terminal:
			open = append(open, e)
		default:
			left[e.id] = true
			if !e.deleted && len(e.revs) > 1 {
				branched = append(branched, e)
			}
		}
	}
	conflicts, err := p.conflicts(ctx, branched)
	if err != nil {
		return nil, err
	}
	for _, e := range conflicts {
		left[e.id] = false
	}
	closed, err := p.closed(ctx, c, append(open, conflicts...))
	if err != nil {
		return nil, err
	}
	for id := range closed {
		left[id] = true
	}
	return left, nil
}

// conflicts returns those of the entries that have more than one live leaf.
func (p *pass) conflicts(ctx context.Context, entries []entry) ([]entry, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	revisions, err := p.couch.Revisions(ctx, p.legacyDB, refs(entries), false)
	if err != nil {
		return nil, err
	}
	live := make(map[string]int)
	for _, r := range revisions {
		if err := r.Unanswered(); err != nil {
			return nil, err
		}
		if r.Body != nil && !r.Deleted() {
			live[r.ID]++
		}
	}
	return slices.DeleteFunc(entries, func(e entry) bool { return live[e.id] <= 1 }), nil
}

// closed returns which of the entries were carried before, into a day that is
// archived by now with the same or a later revision of them. The legacy database
// still has them as they were at the cutover; carried again, an order that was
// paid weeks ago would be open on every till.
func (p *pass) closed(ctx context.Context, c *legacyCopy, entries []entry) (map[string]bool, error) {
	closed := make(map[string]bool)
	if len(entries) == 0 {
		return closed, nil
	}
	byHash := make(map[[sha256.Size]byte]entry, len(entries))
	hashes := make([][]byte, 0, len(entries))
	for _, e := range entries {
		hash := sha256.Sum256([]byte(e.id))
		byHash[hash] = e
		hashes = append(hashes, hash[:])
	}
	rows, err := p.pool.Query(ctx, `
		select a.id_hash, a.rev
		from day_databases d
		join archive_checkpoints s on s.day_database_id = d.id
		join archived_docs a on a.source_id = s.id and a.business_day = d.business_day
		where d.company_id = $1 and d.restaurant_id = $2 and a.id_hash = any($3)`,
		c.m.CompanyID, c.m.RestaurantID, hashes)
	if err != nil {
		return nil, fmt.Errorf("look into the archive: %w", pg.Translate(err))
	}
	var (
		hash []byte
		rev  string
	)
	_, err = pgx.ForEachRow(rows, []any{&hash, &rev}, func() error {
		e := byHash[[sha256.Size]byte(hash)]
		if rev == e.revs[0] || position(rev) > position(e.revs[0]) {
			closed[e.id] = true
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look into the archive: %w", pg.Translate(err))
	}
	return closed, nil
}

// position is the number before the dash of a revision.
func position(rev string) int {
	number, _, _ := strings.Cut(rev, "-")
	n, _ := strconv.Atoi(number) // CouchDB takes no other form.
	return n
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
