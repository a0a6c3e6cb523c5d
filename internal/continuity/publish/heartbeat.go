package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/continuity/primary"
)

// Nodes takes heartbeats; *hosted.Nodes has it.
type Nodes interface {
	Beat(ctx context.Context, h hosted.Heartbeat) (hosted.Grant, error)
}

// DefaultGrace is how long the hosted fence may not be readable, after a start,
// until direct writes open under the policy Available.
const DefaultGrace = 10 * time.Second

// HeartbeatOptions of a heartbeat; all but Grace and Wake are required.
type HeartbeatOptions struct {
	Nodes   Nodes
	Primary *primary.Primary
	// NodeID names the primary, and stays the same when it starts again; Instance
	// names this process.
	NodeID   string
	Instance string
	Logger   *slog.Logger
	Grace    time.Duration
	// Wake has a drainer look at the fence at once, without waiting for it.
	Wake func()
}

// Heartbeat says that the primary lives, and learns what the hosted fence is.
// That closes direct writes, and renews the lease under which they are open. To
// open them is the drainer's, who looks at the books first.
type Heartbeat struct {
	HeartbeatOptions
	began time.Time
	// failingSince is when the first of the last failures was, after began; nil
	// when the last beat was answered.
	failingSince *time.Duration
	// unleased: the last beat was given no lease.
	unleased bool
}

// NewHeartbeat returns a heartbeat.
func NewHeartbeat(opts HeartbeatOptions) (*Heartbeat, error) {
	if opts.Nodes == nil || opts.Primary == nil || opts.NodeID == "" || opts.Instance == "" || opts.Logger == nil {
		return nil, errors.New("a heartbeat needs nodes, a primary, a node id, an instance and a logger")
	}
	if opts.Grace == 0 {
		opts.Grace = DefaultGrace
	}
	if opts.Wake == nil {
		opts.Wake = func() {}
	}
	began := time.Now()
	return &Heartbeat{HeartbeatOptions: opts, began: began}, nil
}

// RunOnce beats once. It is called every few seconds, by one goroutine.
func (h *Heartbeat) RunOnce(ctx context.Context) error {
	local, err := h.Primary.State(ctx)
	if err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	last, err := h.Primary.LastDrained(ctx)
	if err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	// Taken before the hosted database is asked: what it answers is not older.
	asOf, err := h.Primary.Clock(ctx)
	if err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	grant, err := h.Nodes.Beat(ctx, hosted.Heartbeat{
		NodeID:      h.NodeID,
		Role:        hosted.RolePrimary,
		Mode:        modeOf(local, h.Primary.Policy()),
		LastCommand: last,
		Instance:    h.Instance,
		Lease:       h.Primary.Lease(),
	})
	if err != nil {
		return errors.Join(fmt.Errorf("heartbeat: %w", err), h.cutOff(ctx, local))
	}
	h.failingSince = nil
	if err := h.heard(ctx, local, grant, asOf); err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	return nil
}

// heard makes what the hosted database has answered count.
func (h *Heartbeat) heard(ctx context.Context, local primary.State, grant hosted.Grant, asOf time.Time) error {
	state := grant.FenceState
	if !grant.Leased {
		asOf = time.Time{} // The queue opens when the lease has ended.
		if !h.unleased {
			h.Logger.WarnContext(ctx, "no new lease for direct writes: edges that do not reach this primary ask for the queue")
		}
	}
	h.unleased = !grant.Leased
	// This beat was counted as well.
	restored := state.Beats <= local.Beats
	if !restored {
		if err := h.Primary.Heard(ctx, local.Beats, state.Beats); err != nil {
			return err
		}
	}
	// What opens, and what a restore of either side explains, is the drainer's.
	ahead := local.Epoch > 0 && state.Epoch > local.Epoch+1
	if (ahead || restored) && !local.Closed {
		reason := fmt.Sprintf("the hosted fence is at epoch %d", state.Epoch)
		if restored {
			reason = "the hosted database was restored from a backup"
		}
		if err := h.Primary.Close(ctx, reason); err != nil {
			return err
		}
	}
	opens := state.Mode == continuity.Direct && (local.Closed || local.Epoch != state.Epoch)
	if ahead || restored || opens || state.Epoch < local.Seen {
		_, err := h.Primary.Confirm(ctx, state.Fence, asOf)
		h.Wake()
		return err
	}
	err := h.Primary.Adopt(ctx, state.Fence, asOf, "heartbeat")
	if errors.Is(err, primary.ErrBehind) {
		return nil // Somebody has read it since.
	}
	if err == nil && state.Mode != continuity.Direct {
		h.Wake()
	}
	return err
}

// modeOf is what a node reports about itself.
func modeOf(s primary.State, policy primary.Policy) contracts.ReplicationMode {
	switch {
	case s.Direct(policy):
		return contracts.ModePrimary
	case s.Mode == continuity.Catchup || s.Mode == continuity.Sealed:
		return contracts.ModeRecovering
	}
	return contracts.ModeDegraded
}

// cutOff lets local writes go on, if the policy says so, after a start without
// the hosted database.
func (h *Heartbeat) cutOff(ctx context.Context, local primary.State) error {
	now := time.Since(h.began)
	if h.failingSince == nil {
		h.failingSince = &now
	}
	// In epoch 0 the fence was never read, and nothing is known of it.
	if now-*h.failingSince < h.Grace || local.Epoch == 0 || ctx.Err() != nil {
		return nil
	}
	opened, err := h.Primary.Reopen(ctx)
	if opened {
		h.Logger.WarnContext(ctx, "direct writes are open although the hosted fence cannot be read")
	}
	return err
}
