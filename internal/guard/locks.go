package guard

import (
	"time"

	"github.com/rollingd/rollingd/internal/daydb"
)

// The codes of the reasons that keep a lock red.
const (
	// Lock 1.
	CodeNonTerminal = "non_terminal"
	CodeCoreType    = "core_type"
	CodeNoType      = "no_type"
	CodeConflict    = "conflict"
	CodeUnsynced    = "unsynced"
	CodeUndelivered = "undelivered"
	// Lock 2.
	CodeMissing     = "missing"
	CodeExtra       = "extra"
	CodeChanged     = "changed"
	CodeAttachments = "attachments"
	CodeRejected    = "rejected"
	CodePending     = "pending"
	CodePurged      = "purged"
	CodeAbsent      = "database_missing"
	CodeIncarnation = "other_incarnation"
	// Lock 3.
	CodeAge       = "age"
	CodeFutureDay = "future_day"
)

// Reason is what keeps a lock red.
type Reason struct {
	Code  string `json:"code"`
	Count int64  `json:"count"`
	// DocIDs are the first few ids, made printable.
	DocIDs []string `json:"docIds"`
	// Devices are those that hold documents of the day (CodeUnsynced).
	Devices []daydb.Unsynced `json:"devices,omitempty"`
}

// Lock is a condition of a drop, as it was last seen.
type Lock struct {
	Green       bool      `json:"green"`
	EvaluatedAt time.Time `json:"evaluatedAt"`
	Reasons     []Reason  `json:"reasons"`
}

func lockOf(reasons []Reason) Lock {
	// A list that is empty is one in JSON too.
	return Lock{Green: len(reasons) == 0, Reasons: append([]Reason{}, reasons...)}
}

// Delta counts where CouchDB and Postgres differ.
type Delta struct {
	// Missing are in CouchDB and not in the archive, Extra the other way round,
	// Changed in both with another revision.
	Missing int64 `json:"missing"`
	Extra   int64 `json:"extra"`
	Changed int64 `json:"changed"`
}

// Lock2 is the reconciliation of CouchDB with Postgres.
type Lock2 struct {
	Lock
	Delta Delta `json:"delta"`
}

// Lock3 is the age.
type Lock3 struct {
	Lock
	TTLDays int `json:"ttlDays"`
	// GreenOn is the first business day on which the lock is green.
	GreenOn daydb.Day `json:"greenOn"`
}

// evaluateAge is lock 3: older than ttlDays by a difference of dates, never on
// its own business day and never in the future.
func evaluateAge(day, today daydb.Day, ttlDays int) Lock3 {
	age := today.DaysSince(day)
	var reasons []Reason
	switch {
	case age < 0:
		reasons = []Reason{{Code: CodeFutureDay, Count: int64(-age), DocIDs: []string{}}}
	case age <= ttlDays || age == 0:
		reasons = []Reason{{Code: CodeAge, Count: int64(age), DocIDs: []string{}}}
	}
	return Lock3{Lock: lockOf(reasons), TTLDays: ttlDays, GreenOn: day.Add(max(ttlDays, 0) + 1)}
}

// Eligibility is all that decides whether a day may be destroyed.
type Eligibility struct {
	RollingDb     bool
	RollingDbDrop bool
	Held          bool
	// QueueOpen: commands for the day may wait in the hosted queue.
	QueueOpen bool
	Lock1     bool
	Lock2     bool
	Lock3     bool
}

// ComputeEligibility reports whether a day may be sealed and dropped. It is
// pure, and false whenever rollingDbDrop is off, a hold is set, or the continuity
// plane's queue is open.
func ComputeEligibility(e Eligibility) bool {
	return e.RollingDb && e.RollingDbDrop && !e.Held && !e.QueueOpen && e.Lock1 && e.Lock2 && e.Lock3
}
