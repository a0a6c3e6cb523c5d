// Package primary is the authority: it turns a command into an effect, exactly
// once, and keeps its own copy of the fence.
//
// A command is one transaction: under the shared advisory lock of the fence it
// looks whether the key has an outcome, checks epoch and mode for the way by
// which the command came, has the effect, and writes the inbox and the events.
// A flip of the fence takes the exclusive lock, so no effect is ever between two
// states of it.
package primary

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/internal/continuity"
)

// Policy says what becomes of direct writes while the hosted fence cannot be
// read, when nobody can know whether another epoch has begun.
type Policy string

const (
	// Available lets local writes go on, and flags them in the inbox as unconfirmed.
	// A queued command that conflicts with one of them dies for a person to see.
	Available Policy = "available"
	// Strict asks the hosted database for a lease with each heartbeat. No lease, no
	// writes; and the queue does not open before the lease, and the last write under
	// it, have ended.
	Strict Policy = "strict"
)

const (
	// DefaultLease is how long a reading of the hosted fence by a heartbeat counts.
	DefaultLease = 10 * time.Second
	// WriteTimeout bounds a direct write, from the check of the fence to the COMMIT.
	WriteTimeout = 4 * time.Second
)

// Options of a primary; Pool is required.
type Options struct {
	Pool *pgxpool.Pool
	// Policy is Available unless it is set.
	Policy Policy
	// Lease is DefaultLease unless it is set.
	Lease time.Duration
	// Instance names this process in the log of flips.
	Instance string
}

// Primary applies commands. It is safe for concurrent use.
type Primary struct {
	pool     *pgxpool.Pool
	policy   Policy
	lease    time.Duration
	instance string

	began time.Time
	mu    sync.Mutex
	// epoch is the last that this process has adopted, and since when, after began.
	epoch continuity.Epoch
	since time.Duration
}

// New returns a primary, or all that is wrong with the options.
func New(opts Options) (*Primary, error) {
	if opts.Policy == "" {
		opts.Policy = Available
	}
	if opts.Lease == 0 {
		opts.Lease = DefaultLease
	}
	if opts.Instance == "" {
		opts.Instance = "primary"
	}
	if err := opts.validate(); err != nil {
		return nil, err
	}
	began := time.Now()
	return &Primary{pool: opts.Pool, policy: opts.Policy, lease: opts.Lease, instance: opts.Instance, began: began}, nil
}

// adopted notes when this process has adopted an epoch, whichever process has
// entered it.
func (p *Primary) adopted(epoch continuity.Epoch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if epoch > p.epoch {
		p.epoch, p.since = epoch, time.Since(p.began)
	}
}

// epochAge is for how long this process has known that the epoch is as it is.
func (p *Primary) epochAge() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.began) - p.since
}

func (o Options) validate() error {
	var problems []error
	if o.Pool == nil {
		problems = append(problems, errors.New("a primary needs a pool"))
	}
	if o.Policy != Available && o.Policy != Strict {
		problems = append(problems, fmt.Errorf("policy %q is neither %s nor %s", o.Policy, Available, Strict))
	}
	if o.Lease < 0 {
		problems = append(problems, fmt.Errorf("a lease of %s", o.Lease))
	}
	return errors.Join(problems...)
}

// Sentinels for commands that can never have an effect as they are. IsRefusal
// knows them all.
var (
	// ErrUnknownType: this version has no handler for the command's type. A later
	// one may, so a queued command waits.
	ErrUnknownType = errors.New("this version does not know the type of the command")
	// ErrVersionConflict: the aggregate has another version than the client saw.
	ErrVersionConflict = errors.New("the aggregate has another version than the command expects")
	// ErrExists: another command has made an aggregate of this id.
	ErrExists = errors.New("another command has created it already")
	// ErrUnknownAggregate: no command has created the aggregate.
	ErrUnknownAggregate = errors.New("it was never created")
	// ErrRefused: the queue has given the key back without an effect, for good
	// unless a person brings the command back.
	ErrRefused = errors.New("the command was refused before")
)
