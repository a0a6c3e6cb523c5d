// Package run is what a nightly job is given and what it gives back.
package run

import (
	"context"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/fence"
)

// Scope narrows a run; zero fields narrow nothing.
type Scope struct {
	CompanyID    string `json:"companyId,omitempty"`
	RestaurantID string `json:"restaurantId,omitempty"`
	// BusinessDay counts as today, where the job allows that.
	BusinessDay daydb.Day `json:"businessDay,omitzero"`
}

// Covers reports whether a restaurant is within the scope.
func (s Scope) Covers(r daydb.Restaurant) bool {
	return (s.CompanyID == "" || s.CompanyID == r.CompanyID) &&
		(s.RestaurantID == "" || s.RestaurantID == r.RestaurantID)
}

// Run is one execution of a job.
type Run struct {
	ID    int64
	Actor string
	Scope Scope
	// Zone narrows a scheduled run to the restaurants of one time zone; empty
	// for all.
	Zone string
	// DryRun reports what would change and writes nothing.
	DryRun bool
	// Lease is the job's own, of which there is one for all replicas.
	Lease fence.Lease
	// Report collects what the run did.
	Report *Report
	// Share has units of the run done by all replicas, and returns when each has
	// ended; nil does them here.
	Share func(ctx context.Context, r Run, keys []string) error
}

// Unit is the part of a run that belongs to one database or restaurant, which
// the key names. It may be done again, when the replica that did it has died,
// and reports its own failures.
type Unit func(ctx context.Context, r Run, key string)

// Each does a unit for each key: up to limit at a time here, or wherever Share
// has them done. Its error is why they could not be done.
func (r Run) Each(ctx context.Context, limit int, keys []string, unit Unit) error {
	if r.Share != nil && len(keys) > 0 {
		return r.Share(ctx, r, keys)
	}
	var group errgroup.Group
	group.SetLimit(max(limit, 1))
	for _, key := range keys {
		group.Go(func() error {
			if ctx.Err() == nil {
				unit(ctx, r, key)
			}
			return nil
		})
	}
	_ = group.Wait() // Units report their failures.
	return context.Cause(ctx)
}

// Mark returns how the run signs what it writes to the ledger under a lease.
func (r Run) Mark(lease fence.Lease) daydb.Mark {
	return daydb.Mark{Actor: r.Actor, RunID: r.ID, Token: lease.Token}
}

// Failure is what went wrong for one restaurant or database; the run went on
// with the others.
type Failure struct {
	CompanyID    string `json:"companyId,omitempty"`
	RestaurantID string `json:"restaurantId,omitempty"`
	DBName       string `json:"dbName,omitempty"`
	Step         string `json:"step"`
	Error        string `json:"error"`
}

// Change is a move of a day database that the run made, or would make.
type Change struct {
	DBName string      `json:"dbName"`
	From   daydb.State `json:"from"`
	To     daydb.State `json:"to"`
	Event  daydb.Event `json:"event"`
}

// Report collects the counters, changes and failures of a run. It is safe for
// concurrent use; the zero Report is empty.
type Report struct {
	mu   sync.Mutex
	held Result
}

// Result is what a report holds.
type Result struct {
	Counters map[string]int64 `json:"counters,omitempty"`
	Changes  []Change         `json:"changes,omitempty"`
	Failures []Failure        `json:"failures,omitempty"`
	// Reached are the keys of units that came to their goal.
	Reached []string `json:"reached,omitempty"`
}

// Add adds n to a counter.
func (r *Report) Add(counter string, n int64) {
	r.Merge(Result{Counters: map[string]int64{counter: n}})
}

// Fail notes a failure.
func (r *Report) Fail(f Failure) { r.Merge(Result{Failures: []Failure{f}}) }

// Moved notes a move of a day database.
func (r *Report) Moved(c Change) { r.Merge(Result{Changes: []Change{c}}) }

// Reach notes that a unit came to its goal.
func (r *Report) Reach(key string) { r.Merge(Result{Reached: []string{key}}) }

// Merge adds what another replica reports.
func (r *Report) Merge(other Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held.Counters == nil {
		r.held.Counters = make(map[string]int64)
	}
	for counter, n := range other.Counters {
		r.held.Counters[counter] += n
	}
	r.held.Changes = append(r.held.Changes, other.Changes...)
	r.held.Failures = append(r.held.Failures, other.Failures...)
	r.held.Reached = append(r.held.Reached, other.Reached...)
}

// Result returns a copy of all.
func (r *Report) Result() Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Result{
		Counters: maps.Clone(r.held.Counters),
		Changes:  slices.Clone(r.held.Changes),
		Failures: slices.Clone(r.held.Failures),
		Reached:  slices.Clone(r.held.Reached),
	}
}

// Changes returns a copy of the moves.
func (r *Report) Changes() []Change { return r.Result().Changes }

// Counters returns a copy of the counters.
func (r *Report) Counters() map[string]int64 { return r.Result().Counters }

// Failures returns a copy of the failures.
func (r *Report) Failures() []Failure { return r.Result().Failures }
