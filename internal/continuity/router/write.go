package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/breaker"
)

// Way is where a command went.
type Way string

// The ways.
const (
	ByPrimary Way = "primary"
	ByQueue   Way = "queued"
)

// Written is the answer to a command that was taken.
type Written struct {
	Way Way
	// CommandID is that of the first command with the key.
	CommandID    uuid.UUID
	Deduplicated bool
	// Result is the primary's.
	Result json.RawMessage
	// Status is that of the queue's row.
	Status contracts.CommandStatus
}

// maxTurns bounds how often one write changes its way because the fence moved.
const maxTurns = 6

var errFenceMoves = errors.New("the fence moved several times meanwhile")

// Write sends a command to the primary, or else into the queue. It may be
// repeated with the same key after any error: one key is one effect, also if the
// primary commits after its time was up and the queue has the command, too.
//
// Errors are Refusal, RefusedError, and that of ctx.
func (r *Router) Write(ctx context.Context, cmd continuity.Command) (Written, error) {
	if len(cmd.Payload) > contracts.MaxCommandPayloadBytes {
		return Written{}, r.refused(&Refusal{Code: contracts.CodePayloadTooLarge, Err: continuity.ErrPayloadTooLarge})
	}
	w := write{Router: r, cmd: cmd}
	if !w.mayBeDirect() {
		// A way that does not lead to the primary still finds out that it is back.
		r.acquire(ctx)
	}
	for range maxTurns {
		done, err := w.turn(ctx)
		if err != nil {
			return Written{}, r.refused(fmt.Errorf("command %s: %w", cmd.CommandID, err))
		}
		if done {
			r.metrics.writes.WithLabelValues(string(w.written.Way)).Inc()
			return w.written, nil
		}
	}
	return Written{}, r.refused(w.unavailable(errFenceMoves))
}

// refused counts a refusal by its code.
func (r *Router) refused(err error) error {
	var (
		refusal *Refusal
		domain  *RefusedError
		hungUp  *hungUpError
	)
	switch {
	case errors.As(err, &refusal):
		r.metrics.writes.WithLabelValues(string(refusal.Code)).Inc()
	case errors.As(err, &domain):
		r.metrics.writes.WithLabelValues(outcomeRefused).Inc()
	case errors.As(err, &hungUp), errors.Is(err, context.Canceled):
		r.metrics.writes.WithLabelValues(outcomeHungUp).Inc()
	default:
		r.metrics.writes.WithLabelValues(outcomeInternal).Inc()
	}
	return err
}

// write is one command on its way.
type write struct {
	*Router
	cmd continuity.Command
	// down says why the primary is out of the question for this command.
	down *Refusal
	// fenced counts refusals of the primary for the fence.
	fenced int
	// looked: the fence was read because it alone stood in the way.
	looked bool
	// epoch is the one that the queue was asked under.
	epoch   continuity.Epoch
	written Written
}

// turn tries the way that the fence, as it is known, shows. It returns false
// when that was out of date: the next turn knows better.
func (w *write) turn(ctx context.Context) (done bool, err error) {
	if w.down == nil && w.mayBeDirect() {
		permit, granted := w.acquire(ctx)
		if granted || w.observes() {
			return w.direct(ctx, permit)
		}
		w.down = w.unavailable(errors.New("the circuit is " + w.breaker.State().String()))
	}
	if !w.opts.Policy.Allows(w.cmd.CommandType) {
		return false, w.nonEssential(ctx)
	}
	return w.enqueue(ctx)
}

// mayBeDirect: a fence that was never seen does not stand in the way, the
// primary says what it is.
func (w *write) mayBeDirect() bool {
	fence, known := w.fence.load()
	return !known || fence.Mode == continuity.Direct || w.observes()
}

// direct sends the command to the primary.
func (w *write) direct(ctx context.Context, permit breaker.Permit) (done bool, err error) {
	applied, err := ask(ctx, w.Router, w.opts.WriteTimeout, permit, func(ctx context.Context) (Applied, error) {
		return w.opts.Primary.Execute(ctx, w.fence.epoch(), w.cmd)
	})
	switch {
	case err == nil:
		w.written = Written{Way: ByPrimary, CommandID: applied.CommandID, Deduplicated: applied.Deduplicated, Result: applied.Result}
		return true, nil
	case fenced(err):
		return false, w.fencedOff(ctx, err)
	case judge(err) != failed:
		if refusal, ok := refuse(err); ok {
			return false, refusal
		}
		return false, err
	}
	w.down = refusePrimary(err)
	if w.observes() {
		w.metrics.shadow(w.wouldBe(), w.opts.Shadow)
		return false, w.down
	}
	w.log.WarnContext(ctx, "primary did not take a command", "command_id", w.cmd.CommandID, "code", w.down.Code, "error", err)
	return false, nil
}

// wouldBe says what would become of a command that only shadows the router.
func (w *write) wouldBe() string {
	if w.opts.Policy.Allows(w.cmd.CommandType) {
		return "queue"
	}
	return "refuse"
}

// fencedOff follows a primary that refused for the fence. Once is a fence that
// has moved. Twice is a primary that has not heard of it, or may not open yet.
func (w *write) fencedOff(ctx context.Context, refusal error) error {
	if w.fenced++; w.fenced > 1 {
		w.down = w.unavailable(refusal)
		if w.observes() {
			return w.down
		}
	}
	if w.opts.PassThrough {
		return w.learnFrom(refusal)
	}
	if err := w.learn(ctx, refusal); err != nil {
		w.log.WarnContext(ctx, "fence not read", "command_id", w.cmd.CommandID, "error", err)
	}
	return nil
}

// learnFrom takes the epoch that a primary names, where there is no hosted
// database to ask.
func (w *write) learnFrom(refusal error) error {
	var stale *continuity.StaleEpochError
	if errors.As(refusal, &stale) {
		w.fence.observe(continuity.Fence{Epoch: stale.Current, Mode: continuity.Direct})
		return nil
	}
	return w.unavailable(refusal)
}

// enqueue puts the command into the queue. The queue is asked before the fence
// is opened: it knows the key, perhaps, and then has its receipt in any mode.
func (w *write) enqueue(ctx context.Context) (done bool, err error) {
	if _, known := w.fence.load(); !known {
		if err := w.refresh(ctx); err != nil {
			return false, w.queueFailure(err)
		}
	}
	receipt, err := w.put(ctx)
	var stale *continuity.StaleEpochError
	switch {
	case err == nil:
		w.written = Written{Way: ByQueue, CommandID: receipt.CommandID, Deduplicated: receipt.Deduplicated, Status: receipt.Status}
		return true, nil
	case errors.As(err, &stale):
		return false, w.refreshed(ctx)
	case errors.Is(err, continuity.ErrNotOpen):
		return false, w.open(ctx)
	case errors.Is(err, continuity.ErrSealed):
		return false, w.sealed(ctx, err)
	case ctx.Err() != nil:
		return false, err
	}
	if refusal, ok := refuse(err); ok {
		return false, refusal
	}
	return false, w.queueFailure(err)
}

// put enqueues, and once more if the reply was lost.
func (w *write) put(ctx context.Context) (continuity.Receipt, error) {
	limited, cancel := context.WithTimeout(ctx, hostedTimeout)
	defer cancel()
	w.epoch = w.fence.epoch()
	receipt, err := w.opts.Queue.Enqueue(limited, w.cmd, w.epoch)
	if errors.Is(err, continuity.ErrOutcomeUnknown) && limited.Err() == nil {
		return w.opts.Queue.Enqueue(limited, w.cmd, w.epoch)
	}
	return receipt, err
}

func (w *write) refreshed(ctx context.Context) error {
	if err := w.refresh(ctx); err != nil {
		return w.queueFailure(err)
	}
	return nil
}

// open follows a queue that says it is closed. If direct writes are open, and
// the primary is not out of the question, the next turn goes there. Otherwise
// the queue must be opened first: never are both.
func (w *write) open(ctx context.Context) error {
	if err := w.refreshed(ctx); err != nil {
		return err
	}
	if w.down == nil || !w.fence.direct() {
		return nil
	}
	err := w.openQueue(ctx, w.down)
	var stale *continuity.StaleEpochError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &stale):
		return w.refreshed(ctx) // Another edge was first.
	case errors.Is(err, continuity.ErrNotYet), errors.Is(err, continuity.ErrNotOpen):
		// The primary may be well and this edge cut off. The reason is still that
		// the primary did not answer.
		return &Refusal{Code: w.down.Code, RetryAfter: retrySoon, Err: errors.Join(w.down.Err, err)}
	}
	return w.queueFailure(err)
}

// sealed refuses for the moment that the cutover takes, and breaks a seal that
// has outlived it.
func (w *write) sealed(ctx context.Context, err error) error {
	if w.fence.sealed(w.epoch) >= SealPatience {
		broken := w.breakSeal(ctx)
		if broken == nil {
			return nil
		}
		err = errors.Join(err, broken)
	}
	// It may have ended in the meantime.
	unread := w.refresh(ctx)
	if fence, _ := w.fence.load(); fence.Mode != continuity.Sealed {
		return nil
	}
	return &Refusal{Code: contracts.CodeQueueFailure, RetryAfter: retrySoon, Err: errors.Join(err, unread)}
}

func (w *write) queueFailure(err error) *Refusal {
	if w.down != nil {
		err = errors.Join(err, w.down.Err)
	}
	return &Refusal{Code: contracts.CodeQueueFailure, RetryAfter: retrySoon, Err: fmt.Errorf("the queue: %w", err)}
}

// nonEssential refuses a command that may not be queued. If the primary was
// asked, its silence is the reason: the command may have had its effect. If the
// fence is the reason, it is looked at first, because nothing else may do so:
// a command that is queued would be told that the epoch is over, this one not.
func (w *write) nonEssential(ctx context.Context) error {
	if w.down == nil && !w.looked {
		w.looked = true
		return w.refreshed(ctx)
	}
	if w.down != nil && w.down.Code != contracts.CodePrimaryUnavailable {
		return w.down
	}
	return &Refusal{
		Code:       contracts.CodeNonEssentialRejected,
		RetryAfter: retryLater,
		Err:        fmt.Errorf("%s may not be queued, and the primary takes no writes", printable(w.cmd.CommandType)),
	}
}

func (w *write) unavailable(cause error) *Refusal {
	return &Refusal{Code: contracts.CodePrimaryUnavailable, RetryAfter: retrySoon, Err: cause}
}
