package rotation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/flags"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/run"
)

// errLegacyGone is reported when the legacy database of a restaurant whose
// devices still use it has disappeared.
var errLegacyGone = errors.New("the legacy database that was copied from is gone")

// legacyCopy is one kind of documents of one restaurant on their way out of the
// legacy database.
type legacyCopy struct {
	m    *member
	kind copyKind
	// late says that devices are routed: what comes new into the feed arrives late.
	late bool
	// openOnly says that what is finished stays where it is, for the archive: the
	// feed is the history from before devices were routed, or may hold it.
	openOnly bool

	// from is the checkpoint, if there is one (known) of this very database.
	from  checkpoint
	known bool
	// anew says that the feed has to be read from the start, untouched that no
	// document can have been copied before.
	anew        bool
	untouched   bool
	incarnation string

	// core, or the open days of the restaurant, ACTIVE first.
	core string
	days []openDay

	buffer []entry
	bytes  int

	copied  atomic.Int64
	mu      sync.Mutex
	refused int
	broken  bool
}

// maxNamed bounds how many single documents a copy names in the report.
const maxNamed = 20

func (c *legacyCopy) step() string {
	if c.kind == copyCore {
		return stepWarm
	}
	return stepCarry
}

// fail ends the copy for this run: its checkpoint stays where it is.
func (c *legacyCopy) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.broken {
		c.m.fail(c.step(), c.m.LegacyDB, err)
	}
	c.broken = true
}

// refuse notes one document that could not be copied. The others are, but the
// checkpoint stays, so that each run tries the document again and reports it
// until it has arrived or is gone from the legacy database. Until then core is
// not warm and the company not routed: its devices keep the database that has
// the document.
func (c *legacyCopy) refuse(db, id, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused++
	switch {
	case c.refused <= maxNamed:
		c.m.fail(c.step(), db, fmt.Errorf("document %q: %s", id, reason))
	case c.refused == maxNamed+1:
		c.m.fail(c.step(), db, errors.New("more documents were refused"))
	}
}

func (c *legacyCopy) whole() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.broken && c.refused == 0
}

func (c *legacyCopy) isBroken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.broken
}

// warmAndLate returns what every run copies: the catalogue of each restaurant
// that has its core, and, once devices are routed, what tills that were offline
// at the cutover have still brought to the legacy database.
func warmAndLate(fleet []*member) []*legacyCopy {
	var copies []*legacyCopy
	for _, m := range fleet {
		if m.hasCore {
			copies = append(copies, &legacyCopy{m: m, kind: copyCore, late: m.routed})
		}
		if m.routed {
			copies = append(copies, &legacyCopy{m: m, kind: copyDaily, late: true})
		}
	}
	return copies
}

// copyFromLegacy carries the copies out, each legacy database under its lease.
func (ro *Rotator) copyFromLegacy(ctx context.Context, r run.Run, copies []*legacyCopy) {
	byDB := make(map[string][]*legacyCopy)
	for _, c := range copies {
		byDB[c.m.LegacyDB] = append(byDB[c.m.LegacyDB], c)
	}
	for legacyDB, group := range byDB {
		work := func(ctx context.Context, lease fence.Lease) error {
			return ro.copyOne(ctx, r, lease, legacyDB, group)
		}
		var err error
		if r.DryRun {
			err = work(ctx, fence.Lease{})
		} else {
			err = ro.leases.HoldWait(ctx, "legacy/"+legacyDB, ro.leaseWait, work)
		}
		if err != nil {
			for _, c := range group {
				c.fail(err)
			}
		}
	}
}

// copyOne copies from one legacy database. Copies that stand at the same
// sequence share one pass over the feed.
//
// A crash before the checkpoints are begun leaves nothing. A crash within a pass
// leaves documents that the next run finds in their places. Checkpoints move
// only at the end of a pass, for copies of which every document was verified. A
// crash between them and the witness costs the next run a reading from the start.
func (ro *Rotator) copyOne(ctx context.Context, r run.Run, lease fence.Lease, legacyDB string, copies []*legacyCopy) error {
	info, err := ro.couch.Info(ctx, legacyDB)
	if err != nil && !errors.Is(err, couch.ErrNotFound) {
		return err
	}
	absent := err != nil
	older := false
	if !absent {
		if older, err = ro.checkWitness(ctx, r, lease, legacyDB, info.InstanceStartTime); err != nil {
			return err
		}
	}
	copies, err = ro.prepare(ctx, legacyDB, info.InstanceStartTime, older, copies)
	if err != nil {
		return err
	}
	if absent {
		return ro.copyNothing(ctx, r, lease, copies)
	}
	var begun []*legacyCopy
	for _, c := range copies {
		if c.anew {
			begun = append(begun, c)
		}
	}
	if !r.DryRun {
		if err := ro.begin(ctx, lease, begun); err != nil {
			return err
		}
	}
	bySince := make(map[couch.Seq][]*legacyCopy)
	for _, c := range copies {
		since := c.from.since
		if c.anew {
			since = couch.SeqStart
		}
		if !c.isBroken() {
			bySince[since] = append(bySince[since], c)
		}
	}
	// Every pass reads at least as far as the first one did, so all copies can
	// go on from the end of the first: the next run needs one pass for them all.
	var end couch.Seq
	moved := false
	for since, group := range bySince {
		p := newPass(ro, r, legacyDB, info.InstanceStartTime, group)
		last, err := p.copy(ctx, since)
		if err != nil {
			for _, c := range group {
				c.fail(err)
			}
			continue
		}
		if end == "" {
			end = last
		}
		saved, err := ro.finish(ctx, r, lease, group, end)
		if err != nil {
			return err
		}
		moved = moved || saved
	}
	if moved {
		ro.leaveWitness(ctx, r, legacyDB, end)
	}
	return nil
}

// finish saves the checkpoints of the copies that are whole, and reports whether
// there were any to save.
func (ro *Rotator) finish(ctx context.Context, r run.Run, lease fence.Lease, group []*legacyCopy, end couch.Seq) (saved bool, err error) {
	if r.DryRun {
		return false, nil
	}
	var whole []*legacyCopy
	for _, c := range group {
		if c.whole() && (c.from.since != end || !c.from.completed) {
			whole = append(whole, c)
		}
	}
	return len(whole) > 0, ro.complete(ctx, lease, whole, end)
}

// copyNothing is the copy from a legacy database that does not exist: the empty
// catalogue of a restaurant that never had one.
func (ro *Rotator) copyNothing(ctx context.Context, r run.Run, lease fence.Lease, copies []*legacyCopy) error {
	var empty []*legacyCopy
	for _, c := range copies {
		switch {
		case c.known && c.from.incarnation != "" && !c.late:
			c.fail(errLegacyGone)
		case !c.known || c.from.incarnation == "" && !c.from.completed:
			empty = append(empty, c)
		}
	}
	if r.DryRun {
		return nil
	}
	return ro.complete(ctx, lease, empty, couch.SeqStart)
}

// prepare gives each copy its checkpoint and its destinations, and leaves out
// those of companies that were switched off meanwhile. A legacy database that is
// another one than the checkpoint's, or an older state of it, is read from the
// start.
func (ro *Rotator) prepare(ctx context.Context, legacyDB, incarnation string, older bool, copies []*legacyCopy) ([]*legacyCopy, error) {
	companies, err := flags.All(ctx, ro.pool)
	if err != nil {
		return nil, pg.Translate(err)
	}
	copies = slices.DeleteFunc(slices.Clone(copies), func(c *legacyCopy) bool {
		return !companies[c.m.CompanyID].RollingDb
	})
	checkpoints, err := loadCheckpoints(ctx, ro.pool, copies)
	if err != nil {
		return nil, pg.Translate(err)
	}
	open, err := ro.openDays(ctx, copies)
	if err != nil {
		return nil, pg.Translate(err)
	}
	for _, c := range copies {
		c.incarnation = incarnation
		c.from, c.known = checkpoints[copyKey{c.m.Restaurant, c.kind}]
		if older {
			c.from.since, c.from.completed = couch.SeqStart, false
		}
		c.untouched = !c.known
		c.anew = !c.known || c.from.legacyDB != legacyDB || c.from.incarnation != incarnation
		// A database that was absent has no history.
		wasAbsent := c.from.completed && c.from.legacyDB == legacyDB && c.from.incarnation == ""
		c.openOnly = !c.late || !wasAbsent && (c.anew || !c.from.completed)
		if c.kind == copyCore {
			if c.core, err = contracts.CoreName(ro.env, c.m.CompanyID, c.m.RestaurantID); err != nil {
				c.fail(err)
			}
			continue
		}
		c.days = open[c.m.Restaurant]
		if len(c.days) == 0 || c.days[0].state != daydb.Active {
			c.fail(errors.New("the restaurant has no ACTIVE day to carry documents into"))
		}
	}
	return copies, nil
}

// openDays returns the ACTIVE and DRAINING days of the restaurants that
// something is carried to, the ACTIVE one first.
func (ro *Rotator) openDays(ctx context.Context, copies []*legacyCopy) (map[daydb.Restaurant][]openDay, error) {
	open := make(map[daydb.Restaurant][]openDay)
	if !slices.ContainsFunc(copies, func(c *legacyCopy) bool { return c.kind == copyDaily }) {
		return open, nil
	}
	for _, state := range []daydb.State{daydb.Active, daydb.Draining} {
		days, err := daydb.List(ctx, ro.pool, daydb.Filter{States: []daydb.State{state}})
		if err != nil {
			return nil, err
		}
		for _, d := range days {
			if d.InstanceStartTime != nil {
				open[d.Restaurant] = append(open[d.Restaurant], openDay{name: d.Name, state: d.State})
			}
		}
	}
	return open, nil
}
