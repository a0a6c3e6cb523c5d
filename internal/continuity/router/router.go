// Package router takes reads and writes at the edge and finds their way: to the
// primary while it answers and the fence lets them in, else to a snapshot or
// into the queue, else back to the caller with a loud refusal.
package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/breaker"
)

// Applied is the primary's answer to a command that has had its effect.
type Applied struct {
	// CommandID is that of the command that had the effect: the first one that
	// came with the key.
	CommandID uuid.UUID
	Result    json.RawMessage
	// Deduplicated: the key had its effect before.
	Deduplicated bool
}

// Primary is the authority. Its errors are the sentinels of package continuity,
// ErrNotFound and RefusedError; every other one means that it did not answer.
type Primary interface {
	// Execute applies a command once, however often it comes with its key. An
	// error that means no answer leaves open whether it was applied. Epoch 0 is
	// not known, which the primary refuses with the current one.
	Execute(ctx context.Context, epoch continuity.Epoch, cmd continuity.Command) (Applied, error)
	Read(ctx context.Context, key string) (json.RawMessage, error)
	// Health returns no error if the primary can do its work, and the fence as
	// the primary knows it; epoch 0 if it does not.
	Health(ctx context.Context) (continuity.Fence, error)
}

// Queue holds commands until the primary is back. What Enqueue returned a
// receipt for is durable. A key that is known returns its receipt in any mode.
type Queue interface {
	Enqueue(ctx context.Context, cmd continuity.Command, epoch continuity.Epoch) (continuity.Receipt, error)
}

// Snapshot is what the primary published last under a key.
type Snapshot struct {
	Payload     json.RawMessage
	PublishedAt time.Time
	// Age is by the hosted database's clock.
	Age time.Duration
}

// Snapshots returns nil, without an error, for a key that has none.
type Snapshots interface {
	ReadSnapshot(ctx context.Context, key string) (*Snapshot, error)
}

// Fence is the sequencer in the hosted database.
type Fence interface {
	State(ctx context.Context) (continuity.Fence, error)
	// OpenEpoch opens the queue if the epoch is still the expected one and it may
	// be opened: continuity.ErrNotYet, StaleEpochError.
	OpenEpoch(ctx context.Context, expected continuity.Epoch, reason, instance string) (continuity.Fence, error)
	// Reopen opens a queue that has been sealed for too long: ErrNotYet.
	Reopen(ctx context.Context, epoch continuity.Epoch, instance string) (continuity.Fence, error)
}

// Defaults of options that are zero.
const (
	DefaultReadTimeout  = 1500 * time.Millisecond
	DefaultWriteTimeout = 3 * time.Second
)

// SealPatience is how long a seal may last before the edge asks to have it
// broken. A seal takes less than two seconds.
const SealPatience = 5 * time.Second

const (
	// hostedTimeout is longer than it takes to connect and the statement timeout of
	// the hosted functions: a call that Postgres gives up on has an answer.
	hostedTimeout = 9 * time.Second
	// retrySoon is for what a moment may mend, retryLater for an outage.
	retrySoon  = 2 * time.Second
	retryLater = 30 * time.Second
)

// Options of a router.
type Options struct {
	Primary Primary
	// Queue, Snapshots and Fence are required unless PassThrough.
	Queue     Queue
	Snapshots Snapshots
	Fence     Fence
	// Policy; nil is DefaultPolicy.
	Policy EssentialPolicy
	// Breaker options; Direct is the router's own.
	Breaker breaker.Options
	// Instance names this edge to the fence, which counts those that report.
	Instance string
	// Shadow observes and changes nothing: every call goes to the primary, and
	// the breaker and the metrics say what would have been done.
	Shadow bool
	// PassThrough sends every call to the primary and does nothing else.
	PassThrough bool

	ReadTimeout  time.Duration
	WriteTimeout time.Duration

	Metrics prometheus.Registerer
	Logger  *slog.Logger
}

// Router is safe for concurrent use.
type Router struct {
	opts    Options
	breaker *breaker.Breaker
	fence   fenceView
	flights singleflight.Group
	metrics *metrics
	log     *slog.Logger

	// calls of the primary run beside the requests that began them.
	calls sync.WaitGroup
	ctx   context.Context
	stop  context.CancelFunc
}

// New returns a router. Close ends what it has running.
func New(opts Options) *Router {
	setDefault(&opts.ReadTimeout, DefaultReadTimeout)
	setDefault(&opts.WriteTimeout, DefaultWriteTimeout)
	setDefault(&opts.Logger, slog.New(slog.DiscardHandler))
	if opts.Policy == nil {
		opts.Policy = DefaultPolicy()
	}
	if opts.Metrics == nil {
		opts.Metrics = prometheus.NewRegistry()
	}
	r := &Router{opts: opts, log: opts.Logger}
	r.ctx, r.stop = context.WithCancel(context.Background())
	opts.Breaker.Direct = r.fence.direct
	// A probe asks both sides, one after the other. It keeps its slot until then:
	// one whose result came too late to count would be followed by another such.
	setDefault(&opts.Breaker.ProbeTimeout, opts.ReadTimeout+hostedTimeout+time.Second)
	r.breaker = breaker.New(opts.Breaker)
	// A cutover waits for an edge that reaches the primary: so may this one, before
	// its open window ends. Until its breaker closes it would refuse commands.
	r.fence.reopened = r.breaker.ProbeSoon
	r.metrics = newMetrics(opts.Metrics, r)
	return r
}

func setDefault[T comparable](option *T, standard T) {
	var zero T
	if *option == zero {
		*option = standard
	}
}

// Close cuts off what calls of the primary are still under way, and waits for
// their end. No Read, Write or Observe may begin after it.
func (r *Router) Close() {
	r.stop()
	r.calls.Wait()
}

// State is that of the breaker at this moment.
func (r *Router) State() breaker.State { return r.breaker.State() }

// FenceKnown returns the fence as this edge knows it last, and whether it does.
func (r *Router) FenceKnown() (continuity.Fence, bool) { return r.fence.load() }

// View is an answer to a read.
type View struct {
	Data json.RawMessage
	// Stale data are those of a snapshot.
	Stale bool
	// Mode is degraded for whatever the primary did not answer, also before the
	// breaker has opened.
	Mode contracts.ReplicationMode
	// SnapshotAt is when it was published, and Age how long ago, for stale data.
	SnapshotAt time.Time
	Age        time.Duration
}

// Read returns what the primary has under a key, or else the last snapshot of
// it. Errors are Refusal, RefusedError, ErrNotFound, and that of ctx.
func (r *Router) Read(ctx context.Context, key string) (View, error) {
	permit, granted := r.acquire(ctx)
	if !granted && !r.observes() {
		return r.readSnapshot(ctx, key, r.breaker.State().Mode(), nil)
	}
	data, err := ask(ctx, r, r.opts.ReadTimeout, permit, func(ctx context.Context) (json.RawMessage, error) {
		return r.opts.Primary.Read(ctx, key)
	})
	switch {
	case err == nil:
		r.metrics.reads.WithLabelValues(sourcePrimary).Inc()
		return View{Data: data, Mode: contracts.ModePrimary}, nil
	case judge(err) != failed && !fenced(err): // A fence may close reads, too, for a moment.
		if refusal, ok := refuse(err); ok {
			return View{}, refusal
		}
		return View{}, fmt.Errorf("read %q: %w", key, err)
	case r.observes():
		r.metrics.shadow("snapshot", r.opts.Shadow)
		return View{}, refusePrimary(err)
	}
	return r.readSnapshot(ctx, key, contracts.ModeDegraded, err)
}

// readSnapshot answers in place of a primary that did not: cause, or nil if it
// was not asked.
func (r *Router) readSnapshot(ctx context.Context, key string, mode contracts.ReplicationMode, cause error) (View, error) {
	limited, cancel := context.WithTimeout(ctx, hostedTimeout)
	defer cancel()
	snapshot, err := r.opts.Snapshots.ReadSnapshot(limited, key)
	switch {
	case err != nil && ctx.Err() != nil:
		return View{}, fmt.Errorf("read the snapshot of %q: %w", key, ctx.Err())
	case err != nil:
		r.metrics.reads.WithLabelValues(sourceNone).Inc()
		return View{}, &Refusal{
			Code:       contracts.CodeSnapshotFailure,
			RetryAfter: retrySoon,
			Err:        errors.Join(fmt.Errorf("read the snapshot of %q: %w", key, err), cause),
		}
	case snapshot == nil:
		r.metrics.reads.WithLabelValues(sourceNone).Inc()
		return View{}, &Refusal{
			Code:       contracts.CodeSnapshotMiss,
			RetryAfter: retryLater,
			Err:        errors.Join(fmt.Errorf("no snapshot of %q was published", key), cause),
		}
	}
	r.metrics.reads.WithLabelValues(sourceSnapshot).Inc()
	return View{
		Data:       snapshot.Payload,
		Stale:      true,
		Mode:       mode,
		SnapshotAt: snapshot.PublishedAt,
		Age:        snapshot.Age,
	}, nil
}

// observes reports whether the router only looks on.
func (r *Router) observes() bool { return r.opts.Shadow || r.opts.PassThrough }
