// Package run is what a nightly job is given and what it gives back.
package run

import (
	"maps"
	"sync"

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
	mu       sync.Mutex
	counters map[string]int64
	changes  []Change
	failures []Failure
}

// Add adds n to a counter.
func (r *Report) Add(counter string, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counters == nil {
		r.counters = make(map[string]int64)
	}
	r.counters[counter] += n
}

// Fail notes a failure.
func (r *Report) Fail(f Failure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, f)
}

// Moved notes a move of a day database.
func (r *Report) Moved(c Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changes = append(r.changes, c)
}

// Changes returns a copy of the moves.
func (r *Report) Changes() []Change {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Change(nil), r.changes...)
}

// Counters returns a copy of the counters.
func (r *Report) Counters() map[string]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.counters)
}

// Failures returns a copy of the failures.
func (r *Report) Failures() []Failure {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Failure(nil), r.failures...)
}
