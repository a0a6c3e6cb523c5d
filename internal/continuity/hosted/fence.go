package hosted

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/internal/continuity"
)

// Fence is the sequencer of epochs.
//
//	DIRECT(e) --Open--> QUEUE(e+1) --BeginCatchup--> CATCHUP(e+1) --Seal--> SEALED(e+1) --Cutover--> DIRECT(e+2)
//	                        ^---------------------Reopen------------------------'
//
// Every step but Reconcile, when its reply was lost and it is repeated, answers the same.
type Fence struct {
	transport Transport
}

// NewFence returns the client over the transport.
func NewFence(transport Transport) *Fence {
	return &Fence{transport: transport}
}

// Term is the lease token of a drainer. A higher one takes over, a lower one is ErrLostClaim.
type Term int64

// FenceState is the fence, and since when it is as it is.
type FenceState struct {
	continuity.Fence
	Term      Term      `json:"term"`
	ChangedAt time.Time `json:"changedAt"`
	// InMode is the time since the mode changed.
	InMode Seconds `json:"modeSeconds"`
	// Dwell is how long direct writes stay open at least.
	Dwell Seconds `json:"dwellSeconds"`
	// Beats is how often a primary was heard. It only rises, until the database is restored from a backup.
	Beats int64 `json:"beats"`
}

// Attestation is what the primary says about its own books at the cutover.
type Attestation struct {
	// Applied is how many commands of the epoch its inbox holds, whichever way they came.
	Applied int64 `json:"applied"`
}

// CutoverProof counts the commands of the epoch: accepted = applied + dead.
type CutoverProof struct {
	Accepted int64 `json:"accepted"`
	Applied  int64 `json:"applied"`
	Dead     int64 `json:"dead"`
	// UnacknowledgedDead are the dead that nobody has decided on; their types keep nothing back.
	UnacknowledgedDead []uuid.UUID `json:"unacknowledgedDead"`
	// Sealed is how long nothing could enter.
	Sealed Seconds `json:"sealedSeconds"`
	// Fence is what came of it.
	Fence FenceState `json:"fence"`
}

// Flip is an entry of the fence's log.
type Flip struct {
	ID int64 `json:"id"`
	// Event is begin, open, catchup, seal, unseal, cutover, reopen, reconcile, force_queue or force_direct.
	Event string           `json:"event"`
	Epoch continuity.Epoch `json:"epoch"`
	Mode  continuity.Mode  `json:"mode"`
	At    time.Time        `json:"at"`
	Actor string           `json:"actor"`
	// Reason is that of an edge or a person.
	Reason        *string              `json:"reason"`
	Term          Term                 `json:"term"`
	HighWaterMark *continuity.Sequence `json:"highWaterMark"`
	Detail        json.RawMessage      `json:"detail"`
}

// FenceSettings are the conditions under which edges open the queue. A zero field leaves a setting as it is.
type FenceSettings struct {
	// MinReports is how many edges have to report while the primary is still heard, or all if there are fewer; 2 at
	// first. An edge that has been silent for ten minutes is none.
	MinReports int
	// Stale is after which silence the primary is not heard any more; 15 s at first. It is more than two heartbeats.
	Stale time.Duration
	// Dwell is how long direct writes stay open after a cutover, before it doubles with each that was short; 5 s at
	// first.
	Dwell time.Duration
	// SealLimit is after how long an edge may reopen a sealed queue; 5 s at first.
	SealLimit time.Duration
}

// State reads the fence.
func (f *Fence) State(ctx context.Context) (FenceState, error) {
	return f.step(ctx, "continuity_fence_state", map[string]any{})
}

// Open asks for the queue, as an edge that does not reach the primary in epoch expected, and reports that. The instance
// names this edge. Of several that ask together one opens, and all are told the same.
//
// Errors: ErrNotYet with the state as it is, while the primary is still heard and few edges report, while it has a lease to
// write, or direct writes have not been open for the dwell time; StaleEpochError.
func (f *Fence) Open(ctx context.Context, expected continuity.Epoch, reason, instance string) (FenceState, error) {
	const function = "continuity_open_epoch"
	var result struct {
		Opened     bool
		WaitingFor string
		Fence      FenceState
	}
	err := f.transport.Call(ctx, function, map[string]any{
		"p_expected_epoch": expected,
		"p_reason":         reason,
		"p_instance":       instance,
	}, &result)
	if err == nil && !result.Opened {
		err = fmt.Errorf("%s: %w: waiting for %s", function, continuity.ErrNotYet, result.WaitingFor)
	}
	return result.Fence, err
}

// BeginCatchup begins the drain of an epoch, or takes it over with a higher term.
//
// Errors: StaleEpochError, ErrNotOpen in DIRECT, ErrLostClaim for an old term. They are those of Seal and Cutover as well.
func (f *Fence) BeginCatchup(ctx context.Context, epoch continuity.Epoch, term Term) (FenceState, error) {
	return f.step(ctx, "continuity_begin_catchup", map[string]any{"p_epoch": epoch, "p_term": term})
}

// Seal closes the queue; the state that it returns has the high-water mark. It is ErrNotYet while a dead command holds its
// aggregate, one is claimed, one waits for its next attempt, or one is of an unknown type: the drain would not be short.
func (f *Fence) Seal(ctx context.Context, epoch continuity.Epoch, term Term) (FenceState, error) {
	return f.step(ctx, "continuity_seal", map[string]any{"p_epoch": epoch, "p_term": term})
}

// Cutover opens direct writes under epoch+1. The primary opens only when it has returned.
//
// It is ErrNotYet, with the reason in the Refusal's detail, while a command up to the mark is unacked or holds its
// aggregate dead, if the mark is of another seal, or, "inbox", if the primary's books and the queue's do not agree: either
// was restored from a backup, and Reconcile is to follow.
func (f *Fence) Cutover(ctx context.Context, epoch continuity.Epoch, term Term, hwm continuity.Sequence, a Attestation) (CutoverProof, error) {
	var proof CutoverProof
	attest, err := json.Marshal(a)
	if err != nil {
		return proof, fmt.Errorf("attest: %w", err)
	}
	err = f.transport.Call(ctx, "continuity_cutover", map[string]any{
		"p_epoch":  epoch,
		"p_term":   term,
		"p_hwm":    hwm,
		"p_attest": json.RawMessage(attest),
	}, &proof)
	return proof, err
}

// Unseal opens a queue again that this drainer has sealed and cannot drain to the mark. A cutover with that mark is
// ErrNotOpen or ErrNotYet from then on.
func (f *Fence) Unseal(ctx context.Context, epoch continuity.Epoch, term Term) (FenceState, error) {
	return f.step(ctx, "continuity_unseal", map[string]any{"p_epoch": epoch, "p_term": term})
}

// Reopen opens a queue again that has been sealed for too long; it is ErrNotYet before that.
func (f *Fence) Reopen(ctx context.Context, epoch continuity.Epoch, instance string) (FenceState, error) {
	return f.step(ctx, "continuity_reopen", map[string]any{"p_epoch": epoch, "p_instance": instance})
}

// Reconcile begins an epoch above those of both sides, with the queue open, after either was restored from a backup. What
// was acked in the primary's epoch or later is handed out again, since a restored primary has forgotten some of it. The
// primary closes before. Once it has begun, it is StaleEpochError for whoever expects the epoch of before.
func (f *Fence) Reconcile(ctx context.Context, expected, primary continuity.Epoch, term Term) (FenceState, error) {
	for {
		var result struct {
			FenceState
			Unfinished bool `json:"unfinished"`
		}
		err := f.transport.Call(ctx, "continuity_reconcile_epoch", map[string]any{
			"p_expected_epoch": expected,
			"p_primary_epoch":  primary,
			"p_term":           term,
		}, &result)
		if err != nil || !result.Unfinished {
			return result.FenceState, err
		}
	}
}

// ForceQueue opens the queue on a person's word.
func (f *Fence) ForceQueue(ctx context.Context, expected continuity.Epoch, actor, reason string) (FenceState, error) {
	return f.step(ctx, "continuity_force_queue", map[string]any{
		"p_expected_epoch": expected,
		"p_actor":          actor,
		"p_reason":         reason,
	})
}

// ForceDirect opens direct writes on a person's word. Commands that are left stay in the queue and can be claimed.
func (f *Fence) ForceDirect(ctx context.Context, expected continuity.Epoch, actor, reason string) (FenceState, error) {
	return f.step(ctx, "continuity_force_direct", map[string]any{
		"p_expected_epoch": expected,
		"p_actor":          actor,
		"p_reason":         reason,
	})
}

// Configure changes the settings.
func (f *Fence) Configure(ctx context.Context, s FenceSettings) (FenceState, error) {
	return f.step(ctx, "continuity_configure_fence", map[string]any{
		"p_min_reports":        orNull(s.MinReports),
		"p_stale_seconds":      orNull(seconds(s.Stale)),
		"p_dwell_seconds":      orNull(seconds(s.Dwell)),
		"p_seal_limit_seconds": orNull(seconds(s.SealLimit)),
	})
}

// Log returns up to limit (1 to 1000) flips with a higher id than after, in their order.
func (f *Fence) Log(ctx context.Context, after int64, limit int) ([]Flip, error) {
	var flips []Flip
	err := f.transport.Call(ctx, "continuity_list_epochs", map[string]any{
		"p_after": after,
		"p_limit": limit,
	}, &flips)
	return flips, err
}

func (f *Fence) step(ctx context.Context, function string, args map[string]any) (FenceState, error) {
	var state FenceState
	err := f.transport.Call(ctx, function, args, &state)
	return state, err
}
