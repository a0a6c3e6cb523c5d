package drain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/fence"
)

// work is one run under one term.
type work struct {
	*Drainer
	lease  fence.Lease
	term   hosted.Term
	result *Result
}

// waitingForReach is for edges that do not reach the primary.
const waitingForReach = "reach"

func (w *work) run(ctx context.Context) error {
	f, err := w.settle(ctx)
	if err != nil {
		return err
	}
	w.observeLag(ctx, f.Mode)
	if f.Mode == continuity.Direct {
		// Nothing is left but what a person has brought back.
		if err := w.empty(ctx, f.Epoch, nil); err != nil || w.result.Idle() {
			return err
		}
		return w.revive(ctx, f.Epoch)
	}
	if f, err = w.begin(ctx, f); err != nil {
		return err
	}
	if f.Mode == continuity.Catchup {
		if err := w.empty(ctx, f.Epoch, nil); err != nil {
			return err
		}
		if err := w.revive(ctx, f.Epoch); err != nil {
			return err
		}
		if !w.Ready() {
			w.result.WaitingFor = waitingForReach
			return nil
		}
		sealed, err := w.Fence.Seal(ctx, f.Epoch, w.term)
		if err != nil {
			return w.notYet("seal", err)
		}
		if f, err = w.adopt(ctx, sealed, "the queue is sealed"); err != nil {
			return err
		}
	}
	return w.cutover(ctx, f)
}

// observeLag measures how far the primary is behind the queue, in time. A lag that
// cannot be measured keeps nothing back.
func (w *work) observeLag(ctx context.Context, mode continuity.Mode) {
	if mode == continuity.Direct {
		w.metrics.lag.Set(0)
		return
	}
	if stats, err := w.Queue.Stats(ctx); err == nil {
		w.metrics.lag.Set(stats.OldestPending.Duration().Seconds())
	}
}

// settle makes the primary's copy what the hosted fence is, or begins an epoch
// above both when they cannot have come apart by themselves.
func (w *work) settle(ctx context.Context) (continuity.Fence, error) {
	// Read on both sides of the hosted fence, which may move on meanwhile: that one
	// is behind the other has to hold for the earlier of its readings.
	before, err := w.Primary.State(ctx)
	if err != nil {
		return continuity.Fence{}, err
	}
	state, err := w.Fence.State(ctx)
	if err != nil {
		return continuity.Fence{}, err
	}
	local, err := w.Primary.State(ctx)
	if err != nil {
		return continuity.Fence{}, err
	}
	restored := state.Epoch < before.Seen || state.Beats < before.Beats
	if restored {
		err = w.Primary.PublishAgain(ctx, state.Epoch)
	} else {
		restored, err = w.restored(ctx, local.Epoch, state.Fence)
	}
	if err != nil {
		return continuity.Fence{}, err
	}
	from := local.Epoch
	forgotten, err := w.forgotten(ctx)
	if err != nil {
		return continuity.Fence{}, err
	}
	if forgotten != nil {
		restored, from = true, min(from, *forgotten)
	}
	if restored {
		if state, err = w.reconcile(ctx, state.Epoch, max(local.Epoch, local.Seen), from); err != nil {
			return continuity.Fence{}, err
		}
		if err := w.Primary.Heard(ctx, before.Beats, state.Beats); err != nil {
			return continuity.Fence{}, err
		}
	}
	return w.adopt(ctx, state, "the hosted fence")
}

// restored reports whether the primary was restored from an older backup: it is
// behind by more than the one epoch that either side may begin without the other,
// or it does not hold what the last cutover was granted on.
func (w *work) restored(ctx context.Context, local continuity.Epoch, f continuity.Fence) (bool, error) {
	if local == 0 || f.Epoch <= local {
		return false, nil
	}
	if f.Epoch > local+1 {
		return true, nil
	}
	if f.Mode != continuity.Direct {
		return false, nil
	}
	granted, err := w.granted(ctx, f.Epoch)
	if err != nil {
		return false, err
	}
	drained, err := w.Primary.Drained(ctx, local)
	return drained < granted, err
}

// forgotten returns the first epoch with a command that the queue calls done and
// the primary does not know, nil for none. A primary that was restored may stand in
// the epoch of the hosted fence all the same, and what is queued must not be applied
// on top of what is missing. A restore is followed by a start, so a process looks
// once. The queue is read first: what it calls done, the primary has entered.
func (w *work) forgotten(ctx context.Context) (*continuity.Epoch, error) {
	if w.compared.Load() {
		return nil, nil
	}
	var first *continuity.Epoch
	for after := continuity.Sequence(0); ; {
		page, err := w.Queue.List(ctx, contracts.CommandAcked, after, queuePage)
		if err != nil {
			return nil, fmt.Errorf("list what is done: %w", err)
		}
		epochs := make(map[string]continuity.Epoch, len(page))
		for _, q := range page {
			after = q.Sequence
			epochs[q.IdempotencyKey] = q.Epoch
		}
		unknown, err := w.Primary.Undrained(ctx, slices.Collect(maps.Keys(epochs)))
		if err != nil {
			return nil, err
		}
		for _, key := range unknown {
			if epoch := epochs[key]; first == nil || epoch < *first {
				first = &epoch
			}
		}
		if len(page) < queuePage {
			w.compared.Store(first == nil)
			return first, nil
		}
	}
}

const logPage = 1000

// granted returns how many commands the cutover that began an epoch counted as
// applied; 0 if a person began it.
func (w *work) granted(ctx context.Context, epoch continuity.Epoch) (int64, error) {
	var proof struct {
		Applied int64 `json:"applied"`
	}
	for after := int64(0); ; {
		flips, err := w.Fence.Log(ctx, after, logPage)
		if err != nil {
			return 0, err
		}
		for _, flip := range flips {
			after = flip.ID
			if flip.Event == "cutover" && flip.Epoch == epoch {
				if err := json.Unmarshal(flip.Detail, &proof); err != nil {
					return 0, fmt.Errorf("the proof of the cutover: %w", err)
				}
			}
		}
		if len(flips) < logPage {
			return proof.Applied, nil
		}
	}
}

// reconcile begins an epoch above both sides, once the hosted one is as it was
// read. What was acked in the primary's epoch or later is handed out again, and the
// inbox knows what it has. Direct writes are closed before the queue opens: a crash
// in between leaves both closed, until the next run.
func (w *work) reconcile(ctx context.Context, expected, above, from continuity.Epoch) (hosted.FenceState, error) {
	// The fence does not ask for the term here.
	if err := w.Primary.Holds(ctx, w.lease); err != nil {
		return hosted.FenceState{}, err
	}
	if err := w.Primary.Close(ctx, "epochs are reconciled after a restore"); err != nil {
		return hosted.FenceState{}, err
	}
	state, err := w.Fence.Reconcile(ctx, expected, from, w.term)
	for err == nil && state.Epoch <= above {
		// The primary was told of a later epoch than the fence has begun.
		state, err = w.Fence.Reconcile(ctx, state.Epoch, above, w.term)
	}
	if err != nil {
		return state, fmt.Errorf("reconcile epochs: %w", err)
	}
	w.result.Reconciled = true
	w.compared.Store(false)
	w.Logger.WarnContext(ctx, "epochs reconciled after a restore", "epoch", state.Epoch, "primary_epoch", from)
	return state, nil
}

// begin begins the drain, or takes it over.
func (w *work) begin(ctx context.Context, f continuity.Fence) (continuity.Fence, error) {
	state, err := w.Fence.BeginCatchup(ctx, f.Epoch, w.term)
	if errors.Is(err, continuity.ErrLostClaim) {
		return f, w.behind(ctx, err)
	}
	if err != nil {
		return f, fmt.Errorf("begin the drain of epoch %d: %w", f.Epoch, err)
	}
	return w.adopt(ctx, state, "the drain has begun")
}

// behind settles a term that the hosted fence calls old. If this run holds the
// lease, nobody has a higher one: then the primary was restored from a backup,
// and its tokens go on above what the fence has seen. The next run has one.
func (w *work) behind(ctx context.Context, cause error) error {
	state, err := w.Fence.State(ctx)
	if err != nil {
		return errors.Join(cause, err)
	}
	if state.Term <= w.term {
		return cause
	}
	return errors.Join(cause, w.Primary.RaiseTokens(ctx, int64(state.Term)))
}

// adopt takes over what a step has made of the fence. Heartbeats alone renew the
// lease: the hosted database knows of theirs.
func (w *work) adopt(ctx context.Context, state hosted.FenceState, reason string) (continuity.Fence, error) {
	if err := w.Primary.Adopt(ctx, state.Fence, time.Time{}, reason); err != nil {
		return state.Fence, err
	}
	w.result.Fence = state.Fence
	return state.Fence, nil
}

// cutover drains a sealed queue to its mark, and opens.
func (w *work) cutover(ctx context.Context, f continuity.Fence) error {
	if f.HighWaterMark == nil {
		return fmt.Errorf("%w: sealed without a high-water mark", continuity.ErrDrift)
	}
	if err := w.empty(ctx, f.Epoch, f.HighWaterMark); err != nil {
		return err
	}
	drained, err := w.Primary.Drained(ctx, f.Epoch)
	if err != nil {
		return err
	}
	proof, err := w.Fence.Cutover(ctx, f.Epoch, w.term, *f.HighWaterMark, hosted.Attestation{Applied: drained})
	if err != nil {
		switch reason(err) {
		case "inbox":
			// Either has forgotten what the other remembers.
			if err := w.Primary.PublishAgain(ctx, f.Epoch); err != nil {
				return err
			}
			_, err = w.reconcile(ctx, f.Epoch, f.Epoch, f.Epoch)
			return err
		case "unacked", "dead":
			return errors.Join(w.notYet("cutover", err), w.unseal(ctx, f))
		}
		return w.notYet("cutover", err)
	}
	if _, err := w.adopt(ctx, proof.Fence, "the cutover"); err != nil {
		return fmt.Errorf("open after the cutover: %w", err)
	}
	w.result.Cutover = &proof
	w.Logger.InfoContext(ctx, "cutover", "epoch", proof.Fence.Epoch, "accepted", proof.Accepted,
		"applied", proof.Applied, "dead", proof.Dead, "sealed", proof.Sealed.Duration())
	return nil
}

// unseal lets commands in again: one below the mark has failed since the seal, and
// both gates would be closed until its next attempt. The fence refuses another
// seal until then.
func (w *work) unseal(ctx context.Context, f continuity.Fence) error {
	state, err := w.Fence.Unseal(ctx, f.Epoch, w.term)
	if err != nil {
		return fmt.Errorf("unseal: %w", err)
	}
	_, err = w.adopt(ctx, state, "a command could not be drained while the queue was sealed")
	return err
}

// notYet makes a refusal of the fence, whose conditions are not met, a result:
// the next run tries again.
func (w *work) notYet(step string, err error) error {
	if errors.Is(err, continuity.ErrNotYet) {
		w.result.WaitingFor = reason(err)
		return nil
	}
	return fmt.Errorf("%s: %w", step, err)
}

// reason is why the fence has refused a step, or empty.
func reason(err error) string {
	var refusal *hosted.Refusal
	if !errors.As(err, &refusal) || !errors.Is(err, continuity.ErrNotYet) {
		return ""
	}
	var detail struct {
		Reason string `json:"reason"`
	}
	if json.Unmarshal([]byte(refusal.Detail), &detail) != nil || detail.Reason == "" {
		return "unknown"
	}
	return detail.Reason
}
