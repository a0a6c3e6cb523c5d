package rotation

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tidwall/gjson"
	"golang.org/x/sync/errgroup"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/run"
)

const (
	// batchDocs and batchBytes bound what is held of one restaurant, attachments
	// counted, and so the memory of a pass.
	batchDocs  = 250
	batchBytes = 8 << 20
	// passSeqInterval: only the sequence at the end of the feed matters.
	passSeqInterval = 1000
)

// entry is a document of the feed that one restaurant may want.
type entry struct {
	id string
	// revs are its leaves, the winner first.
	revs    []string
	deleted bool
	// typed is false for a deletion that does not say what it deleted.
	typed    bool
	terminal bool
	// archivedRev is the revision that the archive holds, where that was looked up.
	archivedRev string
}

// pass is one reading of a legacy database's feed for many restaurants.
type pass struct {
	*Rotator
	run         run.Run
	legacyDB    string
	incarnation string
	copies      []*legacyCopy

	index map[copyKey]*legacyCopy
	// cores are the copies into core of each company: a document of the catalogue
	// that names no restaurant belongs to all of its company's.
	cores      map[string][]*legacyCopy
	daily      bool
	tombstones []entry
	group      errgroup.Group
}

func newPass(ro *Rotator, r run.Run, legacyDB, incarnation string, copies []*legacyCopy) *pass {
	p := &pass{
		Rotator:     ro,
		run:         r,
		legacyDB:    legacyDB,
		incarnation: incarnation,
		copies:      copies,
		index:       make(map[copyKey]*legacyCopy, len(copies)),
		cores:       make(map[string][]*legacyCopy),
	}
	for _, c := range copies {
		p.index[copyKey{c.m.Restaurant, c.kind}] = c
		if c.kind == copyCore {
			p.cores[c.m.CompanyID] = append(p.cores[c.m.CompanyID], c)
		} else {
			p.daily = true
		}
	}
	p.group.SetLimit(ro.workers)
	return p
}

// copy reads the feed from since to its end and returns the sequence there. What
// fails for one restaurant is noted in its copy; an error is one of the feed.
func (p *pass) copy(ctx context.Context, since couch.Seq) (couch.Seq, error) {
	feed, err := p.couch.Changes(ctx, p.legacyDB, couch.ChangesOptions{
		Since:       since,
		Docs:        true,
		SeqInterval: passSeqInterval,
	})
	if err != nil {
		return "", err
	}
	defer feed.Close()
	// The flushes in flight end before their copies are judged.
	defer func() { _ = p.group.Wait() }()
	rows := 0
	for feed.Next() {
		rows++
		if err := p.sort(ctx, feed.Change()); err != nil {
			return "", err
		}
	}
	if err := feed.Err(); err != nil {
		return "", err
	}
	if rows == 0 {
		return since, nil
	}
	if err := p.settleTombstones(ctx); err != nil {
		return "", err
	}
	for _, c := range p.copies {
		p.flush(ctx, c)
	}
	end, _ := feed.End()
	return end, nil
}

// sort hands a row to the copies that want it.
func (p *pass) sort(ctx context.Context, ch *couch.Change) error {
	if strings.HasPrefix(ch.ID, "_design/") || ch.ID == contracts.ManifestID {
		return nil
	}
	if ch.Doc == nil {
		return fmt.Errorf("%w: a row has no document", couch.ErrFeedBroken)
	}
	fields := gjson.GetManyBytes(ch.Doc, "companyId", "restaurantId", "type", "status", "_attachments")
	company, restaurant, docType := fields[0].String(), fields[1].String(), fields[2].String()
	e := entry{
		id:       ch.ID,
		revs:     append([]string(nil), ch.Revs...),
		deleted:  ch.Deleted,
		typed:    docType != "",
		terminal: contracts.IsTerminal(docType, fields[3].String()),
	}
	if ch.Deleted && (company == "" || docType == "") {
		p.tombstones = append(p.tombstones, e)
		if len(p.tombstones) >= batchDocs {
			return p.settleTombstones(ctx)
		}
		return nil
	}
	size := len(ch.Doc)
	fields[4].ForEach(func(_, stub gjson.Result) bool {
		size += int(stub.Get("length").Int())
		return true
	})
	if contracts.IsDynamic(docType) {
		p.add(ctx, p.index[copyKey{daydb.Restaurant{CompanyID: company, RestaurantID: restaurant}, copyDaily}], e, size)
		return nil
	}
	if restaurant == "" {
		for _, c := range p.cores[company] {
			p.add(ctx, c, e, size)
		}
		return nil
	}
	p.add(ctx, p.index[copyKey{daydb.Restaurant{CompanyID: company, RestaurantID: restaurant}, copyCore}], e, size)
	return nil
}

// add puts an entry into a copy's buffer, and flushes it once it is full.
func (p *pass) add(ctx context.Context, c *legacyCopy, e entry, size int) {
	// Where nothing was copied there is nothing to delete.
	if c == nil || e.deleted && c.kind == copyCore && c.untouched {
		return
	}
	c.buffer = append(c.buffer, e)
	c.bytes += size
	if len(c.buffer) >= batchDocs || c.bytes >= batchBytes {
		p.flush(ctx, c)
	}
}

// settleTombstones finds out whose the deletions are that do not say so: the
// archive knows the restaurant of what it holds, and every restaurant that
// something was copied for is asked whether it has the document.
func (p *pass) settleTombstones(ctx context.Context) error {
	tombstones := p.tombstones
	p.tombstones = nil
	if len(tombstones) == 0 {
		return nil
	}
	var archived map[string]archivedDoc
	if p.daily {
		var err error
		if archived, err = p.archived(ctx, tombstones); err != nil {
			return err
		}
	}
	for _, e := range tombstones {
		if doc, ok := archived[e.id]; ok {
			e.archivedRev = doc.rev
			p.add(ctx, p.index[copyKey{doc.Restaurant, copyDaily}], e, 0)
			continue
		}
		for _, c := range p.copies {
			if !c.untouched {
				p.add(ctx, c, e, 0)
			}
		}
	}
	return nil
}

// flush copies what a copy's buffer holds, in the background.
func (p *pass) flush(ctx context.Context, c *legacyCopy) {
	entries := c.buffer
	c.buffer, c.bytes = nil, 0
	if len(entries) == 0 || c.isBroken() {
		return
	}
	p.group.Go(func() error {
		if err := p.deliver(ctx, c, entries); err != nil {
			c.fail(err)
		}
		return nil
	})
}

// deliver brings entries to where they belong.
func (p *pass) deliver(ctx context.Context, c *legacyCopy, entries []entry) error {
	destinations, counter := map[string][]entry{}, countWarmed
	var err error
	if c.kind == copyCore {
		destinations[c.core], err = p.forCore(ctx, c, entries)
	} else {
		counter = countCarried
		destinations, err = p.forDays(ctx, c, entries)
	}
	if err != nil {
		return err
	}
	for db, entries := range destinations {
		n, err := p.replicate(ctx, c, db, entries)
		c.copied.Add(n)
		p.run.Report.Add(counter, n)
		if err != nil {
			return fmt.Errorf("copy to %s: %w", db, err)
		}
	}
	return nil
}

// forCore keeps the live documents, and the deletions of documents that core has.
func (p *pass) forCore(ctx context.Context, c *legacyCopy, entries []entry) ([]entry, error) {
	var keep, deleted []entry
	for _, e := range entries {
		if e.deleted {
			deleted = append(deleted, e)
		} else {
			keep = append(keep, e)
		}
	}
	held, err := p.held(ctx, c.core, deleted)
	if err != nil {
		return nil, err
	}
	for _, e := range deleted {
		if held[e.id] {
			keep = append(keep, e)
		}
	}
	return keep, nil
}

// held returns which of the entries' documents a database has, deleted or not.
func (p *pass) held(ctx context.Context, db string, entries []entry) (map[string]bool, error) {
	held := make(map[string]bool)
	if len(entries) == 0 {
		return held, nil
	}
	revisions, err := p.couch.Revisions(ctx, db, refs(entries), false)
	if p.run.DryRun && errors.Is(err, couch.ErrNotFound) {
		return held, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look into %s: %w", db, err)
	}
	for _, r := range revisions {
		if err := r.Unanswered(); err != nil {
			return nil, fmt.Errorf("look into %s: %w", db, err)
		}
		if r.Body != nil {
			held[r.ID] = true
		}
	}
	return held, nil
}

func refs(entries []entry) []couch.Ref {
	refs := make([]couch.Ref, len(entries))
	for i, e := range entries {
		refs[i] = couch.Ref{ID: e.id}
	}
	return refs
}
