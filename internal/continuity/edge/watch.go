package edge

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity/breaker"
	"github.com/rollingd/rollingd/internal/continuity/router"
)

// Stats is a picture of the queue and the snapshots.
type Stats struct {
	Depth map[contracts.CommandStatus]int64
	// OldestPending is the age of the oldest command that is not settled.
	OldestPending time.Duration
	// SnapshotAge is that of the newest one, nil while there is none.
	SnapshotAge *time.Duration
	// Dead are those that nobody has decided on, and Blocked the aggregates that
	// they keep back.
	Dead          int64
	Blocked       int64
	ExpiredLeases int64
	// UnknownTypes are those of commands that nobody is given: while one waits, the
	// queue stays open.
	UnknownTypes []string
}

// Unsettled counts the commands that the primary has yet to apply.
func (s Stats) Unsettled() int64 {
	return s.Depth[contracts.CommandPending] + s.Depth[contracts.CommandClaimed]
}

// Hosted is what the watch needs of the hosted database.
type Hosted interface {
	Stats(ctx context.Context) (Stats, error)
	// Beat reports that this edge lives, and in which mode.
	Beat(ctx context.Context, mode contracts.ReplicationMode) error
}

// Alerts tell people. A condition is told once until it is over.
type Alerts interface {
	Raise(ctx context.Context, condition, text string)
	Clear(ctx context.Context, condition, text string)
}

// Defaults of options that are zero.
const (
	DefaultWatchInterval  = 5 * time.Second
	DefaultQueueThreshold = 100
)

// watchTimeout bounds what one look asks of the hosted database.
const watchTimeout = 10 * time.Second

// The conditions that an edge alerts on.
const (
	ConditionDegraded = "primary_degraded"
	ConditionQueue    = "queue_depth"
	ConditionDead     = "dead_commands"
	ConditionLease    = "lease_expired"
	ConditionUnknown  = "unknown_command_types"
	ConditionHosted   = "hosted_unreachable"
)

// hostedPatience is after how many looks in a row that failed people are told.
const hostedPatience = 3

// WatchOptions of a watch.
type WatchOptions struct {
	Phase  Phase
	Router *router.Router
	// Hosted is nil in a phase that does not speak to it.
	Hosted Hosted
	// Alerts; nil tells nobody.
	Alerts Alerts
	// Interval between looks, and QueueThreshold of unsettled commands above which
	// people are told. Zero fields take their defaults.
	Interval       time.Duration
	QueueThreshold int64
	Transitions    *Transitions
	Metrics        *prometheus.Registry
	Logger         *slog.Logger
}

// Watch looks at the primary, the fence and the queue from time to time. It keeps
// what it saw for the health and the metrics, and alerts.
type Watch struct {
	opts     WatchOptions
	last     atomic.Pointer[Stats]
	failures int
	metrics  *watchMetrics
	log      *slog.Logger
}

// NewWatch returns a watch.
func NewWatch(opts WatchOptions) *Watch {
	if opts.Interval == 0 {
		opts.Interval = DefaultWatchInterval
	}
	if opts.QueueThreshold == 0 {
		opts.QueueThreshold = DefaultQueueThreshold
	}
	if opts.Alerts == nil || !opts.Phase.Alerts() {
		opts.Alerts = nobody{}
	}
	return &Watch{opts: opts, metrics: newWatchMetrics(opts.Metrics), log: opts.Logger}
}

type nobody struct{}

func (nobody) Raise(context.Context, string, string) {}
func (nobody) Clear(context.Context, string, string) {}

// Last is what the last look that succeeded has seen.
func (w *Watch) Last() (Stats, bool) {
	if s := w.last.Load(); s != nil {
		return *s, true
	}
	return Stats{}, false
}

// Run looks until ctx ends: at once, at every interval, and at every transition
// of the breaker.
func (w *Watch) Run(ctx context.Context) {
	if !w.opts.Phase.Hosted() {
		return
	}
	ticker := time.NewTicker(w.opts.Interval)
	defer ticker.Stop()
	for {
		w.RunOnce(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case t := <-w.opts.Transitions.happened:
			w.tell(ctx, t)
		}
	}
}

// RunOnce looks once.
func (w *Watch) RunOnce(parent context.Context) {
	ctx, cancel := context.WithTimeout(parent, watchTimeout)
	defer cancel()
	w.opts.Router.Observe(ctx)
	if err := w.opts.Router.Refresh(ctx); err != nil {
		w.log.DebugContext(ctx, "fence not read", "error", err)
	}
	state := w.opts.Router.State()
	if err := w.opts.Hosted.Beat(ctx, state.Mode()); err != nil {
		w.log.DebugContext(ctx, "heartbeat failed", "error", err)
	}
	stats, err := w.opts.Hosted.Stats(ctx)
	switch {
	case parent.Err() != nil: // The watch is stopped, which says nothing.
	case err != nil:
		w.failed(ctx, err)
	default:
		w.seen(ctx, stats)
	}
	w.condition(ctx, ConditionDegraded, state != breaker.Primary,
		"The primary does not answer. Reads come from snapshots, essential commands go into the queue.",
		"The primary answers, and direct writes are open again.")
}

// failed counts looks in a row that failed, and says so once.
func (w *Watch) failed(ctx context.Context, err error) {
	w.failures++
	if w.failures != hostedPatience {
		return
	}
	w.log.WarnContext(ctx, "hosted database does not answer", "error", err)
	w.opts.Alerts.Raise(ctx, ConditionHosted, "The hosted database does not answer. Should the primary fail now, commands are refused.")
}

func (w *Watch) seen(ctx context.Context, stats Stats) {
	if w.failures >= hostedPatience {
		w.log.InfoContext(ctx, "hosted database answers again")
	}
	w.failures = 0
	w.opts.Alerts.Clear(ctx, ConditionHosted, "The hosted database answers again.")
	w.last.Store(&stats)
	w.metrics.set(stats)

	waiting := stats.Unsettled()
	w.condition(ctx, ConditionQueue, waiting > w.opts.QueueThreshold,
		fmt.Sprintf("%d commands wait in the queue, the oldest for %s.", waiting, stats.OldestPending.Round(time.Second)),
		fmt.Sprintf("%d commands wait in the queue.", waiting))
	w.condition(ctx, ConditionDead, stats.Dead > 0,
		fmt.Sprintf("%d commands are dead and wait for a decision; they keep %d aggregates back.", stats.Dead, stats.Blocked),
		"No dead command waits for a decision.")
	w.condition(ctx, ConditionLease, stats.ExpiredLeases > 0,
		fmt.Sprintf("The lease of %d commands has expired: a worker of the primary died or hangs.", stats.ExpiredLeases),
		"No lease is expired.")
	w.condition(ctx, ConditionUnknown, len(stats.UnknownTypes) > 0,
		fmt.Sprintf("Commands wait for a version that knows their types, and keep the queue open: %s.", strings.Join(stats.UnknownTypes, ", ")),
		"No command of an unknown type waits.")
}

// Summary says how things stand, for people.
func (w *Watch) Summary() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Circuit: %s\n", w.opts.Router.State())
	if fence, known := w.opts.Router.FenceKnown(); known {
		fmt.Fprintf(&b, "Fence: %s of epoch %d\n", fence.Mode, fence.Epoch)
	} else {
		fmt.Fprintln(&b, "Fence: not known")
	}
	stats, ok := w.Last()
	if !ok {
		fmt.Fprintln(&b, "Queue: not known")
		return b.String()
	}
	fmt.Fprintf(&b, "Queue: %d commands wait, the oldest for %s\n", stats.Unsettled(), stats.OldestPending.Round(time.Second))
	fmt.Fprintf(&b, "Applied from the queue: %d\n", stats.Depth[contracts.CommandAcked])
	fmt.Fprintf(&b, "Dead: %d, of which %d wait for a decision and keep %d aggregates back\n", stats.Depth[contracts.CommandDead], stats.Dead, stats.Blocked)
	if stats.SnapshotAge != nil {
		fmt.Fprintf(&b, "Newest snapshot: %s old\n", stats.SnapshotAge.Round(time.Second))
	} else {
		fmt.Fprintln(&b, "Newest snapshot: none")
	}
	return b.String()
}

func (w *Watch) condition(ctx context.Context, name string, holds bool, raised, over string) {
	if holds {
		w.opts.Alerts.Raise(ctx, name, raised)
	} else {
		w.opts.Alerts.Clear(ctx, name, over)
	}
}

// tell logs a transition.
func (w *Watch) tell(ctx context.Context, t transition) {
	if w.opts.Phase.Logs() {
		w.log.WarnContext(ctx, "circuit changed", "from", t.from, "to", t.to)
	}
}

// Transitions carries those of the breaker to the watch without keeping the
// breaker waiting.
type Transitions struct {
	happened chan transition
}

type transition struct{ from, to breaker.State }

// NewTransitions returns a carrier, whose Add is the breaker's OnChange.
func NewTransitions() *Transitions {
	const most = 64 // More than happen between two looks; what is beyond is not logged.
	return &Transitions{happened: make(chan transition, most)}
}

// Add never waits.
func (t *Transitions) Add(from, to breaker.State) {
	select {
	case t.happened <- transition{from, to}:
	default:
	}
}
