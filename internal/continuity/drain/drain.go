// Package drain brings the queue home: it hands its commands to the primary, and
// opens direct writes again when nothing is left.
package drain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/continuity/primary"
	"github.com/rollingd/rollingd/internal/fence"
)

// Queue hands out commands; *hosted.Queue has it. AckAll, Fail and Snooze may be
// repeated with the same token, and tell once the claim is another's.
type Queue interface {
	Claim(ctx context.Context, o hosted.ClaimOptions) ([]continuity.Claim, error)
	AckAll(ctx context.Context, claims []continuity.Claim) (lost []uuid.UUID, err error)
	Fail(ctx context.Context, id uuid.UUID, token continuity.ClaimToken, reason string, permanent bool) (hosted.QueuedCommand, error)
	Snooze(ctx context.Context, id uuid.UUID, token continuity.ClaimToken, wait time.Duration) error
	List(ctx context.Context, status contracts.CommandStatus, after continuity.Sequence, limit int) ([]hosted.QueuedCommand, error)
	Redrive(ctx context.Context, id uuid.UUID, actor, reason string) (hosted.QueuedCommand, error)
	Stats(ctx context.Context) (hosted.QueueStats, error)
}

// Fence is the sequencer; *hosted.Fence has it. Every step may be repeated: all but
// Reconcile answer the same then, which answers that it was done.
type Fence interface {
	State(ctx context.Context) (hosted.FenceState, error)
	BeginCatchup(ctx context.Context, epoch continuity.Epoch, term hosted.Term) (hosted.FenceState, error)
	Seal(ctx context.Context, epoch continuity.Epoch, term hosted.Term) (hosted.FenceState, error)
	Unseal(ctx context.Context, epoch continuity.Epoch, term hosted.Term) (hosted.FenceState, error)
	Cutover(ctx context.Context, epoch continuity.Epoch, term hosted.Term, hwm continuity.Sequence, a hosted.Attestation) (hosted.CutoverProof, error)
	Reconcile(ctx context.Context, expected, primary continuity.Epoch, term hosted.Term) (hosted.FenceState, error)
	Log(ctx context.Context, after int64, limit int) ([]hosted.Flip, error)
}

// LeaseName is the lease under which one process drains at a time. Its token is
// the term.
const LeaseName = "continuity-drain"

// Defaults of options that are zero.
const (
	DefaultWorkers      = 8
	DefaultBatch        = hosted.MaxBatch
	DefaultClaimLease   = 30 * time.Second
	DefaultApplyTimeout = 10 * time.Second
)

// Options of a drainer; those up to Logger are required.
type Options struct {
	Queue   Queue
	Fence   Fence
	Primary *primary.Primary
	Leases  *fence.Leases
	Metrics prometheus.Registerer
	Logger  *slog.Logger

	// Ready reports whether edges reach the primary, without which a cutover would
	// be followed by the next outage; nil is always.
	Ready func() bool
	// Instance names this process to people.
	Instance string
	// Workers apply commands of different aggregates at the same time.
	Workers int
	// Batch is how many commands are claimed at once, 1 to 100.
	Batch int
	// ClaimLease is how long a claim lasts, in whole seconds, and ApplyTimeout how
	// long one command may take; it is shorter.
	ClaimLease   time.Duration
	ApplyTimeout time.Duration
}

func (o *Options) complete() error {
	if o.Ready == nil {
		o.Ready = func() bool { return true }
	}
	for option, standard := range map[*time.Duration]time.Duration{&o.ClaimLease: DefaultClaimLease, &o.ApplyTimeout: DefaultApplyTimeout} {
		if *option == 0 {
			*option = standard
		}
	}
	for option, standard := range map[*int]int{&o.Workers: DefaultWorkers, &o.Batch: DefaultBatch} {
		if *option == 0 {
			*option = standard
		}
	}
	if o.Instance == "" {
		o.Instance = "primary"
	}
	var problems []error
	if o.Queue == nil || o.Fence == nil || o.Primary == nil || o.Leases == nil || o.Metrics == nil || o.Logger == nil {
		problems = append(problems, errors.New("a drainer needs queue, fence, primary, leases, metrics and logger"))
	}
	if o.Workers < 1 || o.Batch < 1 || o.Batch > 100 {
		problems = append(problems, fmt.Errorf("%d workers, batches of %d", o.Workers, o.Batch))
	}
	if o.ApplyTimeout <= 0 || o.ApplyTimeout >= o.ClaimLease {
		problems = append(problems, fmt.Errorf("a command may take %s, but a claim lasts %s", o.ApplyTimeout, o.ClaimLease))
	}
	return errors.Join(problems...)
}

// Drainer drains. RunOnce may be called by several processes; one of them works.
type Drainer struct {
	Options
	metrics *metrics
	// limit is how many commands are claimed at once now, 0 for Batch.
	limit atomic.Int64
	// compared: the primary's books were found to hold all that the queue calls done.
	compared atomic.Bool
}

// New returns a drainer, or all that is wrong with the options.
func New(opts Options) (*Drainer, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	return &Drainer{Options: opts, metrics: newMetrics(opts.Metrics)}, nil
}

// Result is what a run has done.
type Result struct {
	// Fence is as the run has left it, here and in the hosted database.
	Fence continuity.Fence
	// Applied had their effect now, Deduplicated had it before; both are acked.
	Applied      int
	Deduplicated int
	// Failed wait for their next attempt, Snoozed for the primary, a newer version
	// or another worker; Dead wait for a person.
	Failed  int
	Snoozed int
	Dead    int
	// WaitingFor says what keeps direct writes closed, if they are: "reach" for
	// edges that do not reach the primary, or the fence's own reason.
	WaitingFor string
	// Cutover is the proof of the cutover that the run has made.
	Cutover *hosted.CutoverProof
	// Reconciled: one of the databases was restored from a backup, and a new epoch
	// was begun above both.
	Reconciled bool
	// Elsewhere: another process drains.
	Elsewhere bool
}

// Idle reports whether there was nothing to do, so that nothing is logged.
func (r Result) Idle() bool {
	return r.Applied+r.Deduplicated+r.Failed+r.Snoozed+r.Dead == 0 && r.Cutover == nil && !r.Reconciled
}

// RunOnce takes the continuity plane as far towards direct writes as it goes:
//
//  1. the primary's copy of the fence becomes what the hosted one is, which
//     closes direct writes if the queue has opened, and opens them after a
//     cutover that was not followed by 7; if either database turns out to be
//     restored from a backup, a new epoch begins above both
//  2. the drain begins, or is taken over under this run's term
//  3. commands are claimed, applied and acked, until none is left; one that the
//     queue has given up although it had its effect is brought back to be acked
//  4. the queue is sealed, which gives the high-water mark
//  5. the rest, up to the mark, is drained
//  6. the cutover, with what the primary's own books say about the epoch
//  7. the primary opens direct writes, in the epoch that the cutover has begun
//
// A crash behind 1 leaves direct writes closed and the queue open; behind 2 and
// within 3 a term, and claims that end with their lease: the next run has a
// higher term, and a command that had its effect before it was acked is known to
// the inbox. Behind 4 and 5 both gates are closed until the next run goes on, or
// until an edge reopens the queue; the cutover with the old mark is refused then.
// When a command up to the mark could not be drained, the run opens the queue
// again, and the next seal waits until it can.
//
// Behind 6, and when its reply is lost, both are closed until the next run finds
// direct writes open in the hosted fence, and does 7. Each of these is the next
// run's ordinary way.
//
// A run that was paused past its lease stops at its next step: the transaction of
// a command checks the lease, the fence refuses its term, the queue its claims.
func (d *Drainer) RunOnce(ctx context.Context) (Result, error) {
	start := time.Now()
	var r Result
	err := d.Leases.Hold(ctx, LeaseName, func(ctx context.Context, lease fence.Lease) error {
		w := &work{Drainer: d, lease: lease, term: hosted.Term(lease.Token), result: &r}
		return w.run(ctx)
	})
	if errors.Is(err, fence.ErrHeld) {
		return Result{Elsewhere: true}, nil
	}
	d.metrics.observe(r, time.Since(start))
	if err != nil {
		return r, fmt.Errorf("drain: %w", err)
	}
	return r, nil
}
