package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/continuity/primary"
)

// Continuity is the primary's half of the continuity plane.
type Continuity struct {
	Phase   int
	Primary *primary.Primary
	// Queue, Fence and Nodes are those of the hosted database, nil in the phases
	// that do not speak to it.
	Queue *hosted.Queue
	Fence *hosted.Fence
	Nodes *hosted.Nodes
}

const (
	standardCommands = 100
	mostCommands     = 1000
)

// errNoContinuity answers what needs a continuity plane that is off.
var errNoContinuity = &refusal{
	status: http.StatusConflict,
	code:   "continuity_off",
	detail: "the continuity plane does not speak to a hosted database; set LOCAL_CONTINUITY_PHASE to 2 or more, and start the server again",
}

func (a *API) continuityOn() (*Continuity, error) {
	if a.Continuity == nil || a.Continuity.Queue == nil {
		return nil, errNoContinuity
	}
	return a.Continuity, nil
}

// getContinuity says how things stand here and, if it answers, in the hosted
// database.
func (a *API) getContinuity(c echo.Context) error {
	if a.Continuity == nil {
		return c.JSON(http.StatusOK, map[string]any{"phase": 0})
	}
	ctx := c.Request().Context()
	local, err := a.Continuity.Primary.State(ctx)
	if err != nil {
		return err
	}
	policy := a.Continuity.Primary.Policy()
	answer := map[string]any{
		"phase":   a.Continuity.Phase,
		"policy":  policy,
		"primary": local,
		"direct":  local.Direct(policy),
	}
	if a.Continuity.Queue != nil {
		answer["hosted"] = a.hostedState(ctx)
	}
	return c.JSON(http.StatusOK, answer)
}

// hostedState is what the hosted database says, or why it does not.
func (a *API) hostedState(ctx context.Context) map[string]any {
	plane := a.Continuity
	state, err := plane.Fence.State(ctx)
	if err != nil {
		return a.noHostedState(ctx, err)
	}
	stats, err := plane.Queue.Stats(ctx)
	if err != nil {
		return a.noHostedState(ctx, err)
	}
	nodes, err := plane.Nodes.List(ctx)
	if err != nil {
		return a.noHostedState(ctx, err)
	}
	return map[string]any{
		"fence":   state.Fence,
		"queue":   stats,
		"seconds": state.InMode.Duration().Seconds(),
		"nodes":   orEmpty(nodes),
	}
}

func (a *API) noHostedState(ctx context.Context, err error) map[string]any {
	a.Logger.WarnContext(ctx, "the hosted database does not answer", "error", err)
	return map[string]any{"error": problemOf(err).Detail}
}

// listCommands lists what the queue holds, without payloads.
func (a *API) listCommands(c echo.Context) error {
	plane, err := a.continuityOn()
	if err != nil {
		return err
	}
	q, err := query(c, "status", "after", "limit")
	if err != nil {
		return err
	}
	statuses := []contracts.CommandStatus{"", contracts.CommandPending, contracts.CommandClaimed, contracts.CommandAcked, contracts.CommandDead}
	status := contracts.CommandStatus(q["status"])
	if !slices.Contains(statuses, status) {
		return invalid("invalid_status", "status", "status must be one of pending, claimed, acked, dead")
	}
	limit, err := limitOf(q["limit"], standardCommands, mostCommands)
	if err != nil {
		return err
	}
	var after int64
	if q["after"] != "" {
		if after, err = strconv.ParseInt(q["after"], 10, 64); err != nil || after < 0 {
			return invalid("invalid_after", "after", "after must be a sequence number")
		}
	}
	page, err := plane.Queue.List(c.Request().Context(), status, continuity.Sequence(after), limit)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"commands": orEmpty(page)})
}

// redriveCommand brings a dead command back with all of its attempts.
func (a *API) redriveCommand(c echo.Context) error {
	return a.decideCommand(c, "redriven", (*hosted.Queue).Redrive)
}

// skipCommand goes on without a dead command, which stays in the books.
func (a *API) skipCommand(c echo.Context) error {
	return a.decideCommand(c, "skipped", (*hosted.Queue).Skip)
}

func (a *API) decideCommand(c echo.Context, how string,
	decide func(q *hosted.Queue, ctx context.Context, id uuid.UUID, actor, reason string) (hosted.QueuedCommand, error),
) error {
	plane, err := a.continuityOn()
	if err != nil {
		return err
	}
	id, err := uuid.Parse(c.Param("commandId"))
	if err != nil {
		return invalid("invalid_id", "commandId", "commandId must be a UUID")
	}
	reason, err := requiredReason(c)
	if err == nil {
		err = checkHostedReason(reason)
	}
	if err != nil {
		return err
	}
	ctx, actor := c.Request().Context(), callerOf(c).actor
	command, err := decide(plane.Queue, ctx, id, actor, reason)
	if err != nil {
		return err
	}
	a.Logger.InfoContext(ctx, "decided about a dead command", "command_id", id, "decision", how, "actor", actor)
	return c.JSON(http.StatusOK, command)
}

// forceQueue opens the queue, and forceDirect direct writes, on a person's word.
// Both name the epoch that they end, so that a second person does not end the
// next one.
//
// Direct writes close before the queue opens. If it does not open then, the drainer
// opens them again.
func (a *API) forceQueue(c echo.Context) error {
	return a.force(c, func(f *hosted.Fence, ctx context.Context, expected continuity.Epoch, actor, reason string) (hosted.FenceState, error) {
		local, err := a.Continuity.Primary.State(ctx)
		if err == nil && local.Epoch == expected && local.Mode == continuity.Direct {
			err = a.Continuity.Primary.Close(ctx, actor+" opens the queue: "+reason)
		}
		if err != nil {
			return hosted.FenceState{}, err
		}
		return f.ForceQueue(ctx, expected, actor, reason)
	})
}

func (a *API) forceDirect(c echo.Context) error { return a.force(c, (*hosted.Fence).ForceDirect) }

func (a *API) force(c echo.Context,
	flip func(f *hosted.Fence, ctx context.Context, expected continuity.Epoch, actor, reason string) (hosted.FenceState, error),
) error {
	plane, err := a.continuityOn()
	if err != nil {
		return err
	}
	var (
		epoch *int64
		given *string
	)
	if err := decode(c, fields{"epoch": &epoch, "reason": &given}); err != nil {
		return err
	}
	if epoch == nil {
		return invalid("epoch_required", "epoch", "name the epoch that is to end; GET /admin/continuity says which it is")
	}
	reason, err := reasonOf(given)
	if err == nil {
		err = checkHostedReason(reason)
	}
	if err != nil {
		return err
	}
	ctx, actor := c.Request().Context(), callerOf(c).actor
	state, err := flip(plane.Fence, ctx, continuity.Epoch(*epoch), actor, reason)
	if err != nil {
		return err
	}
	a.Logger.WarnContext(ctx, "the fence was forced", "epoch", state.Epoch, "mode", state.Mode, "actor", actor)
	return c.JSON(http.StatusOK, map[string]any{"fence": state.Fence})
}

// mostHostedReason is how many bytes of a reason the hosted database takes.
const mostHostedReason = 256

func checkHostedReason(reason string) error {
	if len(reason) > mostHostedReason {
		return invalid("invalid_reason", "reason", "the reason is longer than %d bytes", mostHostedReason)
	}
	return nil
}

// staleEpoch refuses what was meant for another epoch.
func staleEpoch(err *continuity.StaleEpochError) error {
	return &refusal{
		status: http.StatusConflict,
		code:   "stale_epoch",
		field:  "epoch",
		detail: fmt.Sprintf("the epoch is %d; look at GET /admin/continuity, and decide again", err.Current),
	}
}
