// Package history checks, after the fact, that the continuity plane kept its
// promises. It reads the books of both databases, the queue and the log of epochs
// in the hosted one, the inbox and the log of flips in the primary's, and shares
// no code with what wrote them.
package history

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
)

// Queue lists commands; *hosted.Queue has it.
type Queue interface {
	List(ctx context.Context, status contracts.CommandStatus, after continuity.Sequence, limit int) ([]hosted.QueuedCommand, error)
	Find(ctx context.Context, idempotencyKey string) (hosted.QueuedCommand, error)
}

// Fence lists flips; *hosted.Fence has it.
type Fence interface {
	Log(ctx context.Context, after int64, limit int) ([]hosted.Flip, error)
}

// DefaultSkew is by how much the clocks of the two databases may differ.
const DefaultSkew = 5 * time.Second

// Options of a check.
type Options struct {
	Queue   Queue
	Fence   Fence
	Primary *pgxpool.Pool
	// Skew is by how much the clocks of the two databases may differ; DefaultSkew
	// unless it is set. It matters to the few checks that no order decides.
	Skew time.Duration
	// Settled says that nothing is at work: a command that is neither acked nor
	// dead is a violation then.
	Settled bool
	// Strict says that the primary ran under that policy: a direct write after the
	// queue had opened is a violation then, and else a warning. Under the policy
	// Available a primary that was cut off cannot know that it has.
	Strict bool
	// Progress, unless it is nil, is told for every line how far the reading has come.
	Progress func(read int, of string)
}

// The codes of violations.
const (
	// LostEffect: the queue has an ack, or the inbox a line, and the primary no
	// effect.
	LostEffect = "lost_effect"
	// DroppedAck: a command is open behind a cutover that was granted on its being
	// done, or though everything is settled.
	DroppedAck = "dropped_ack"
	// DoubleEffect: a key has more than one effect, or one beside its dead row.
	DoubleEffect = "double_effect"
	// NoReason: a dead row does not say why.
	NoReason = "no_reason"
	// Unaccounted: an effect that no key accounts for.
	Unaccounted = "unaccounted_effect"
	// Inverted: two commands of an aggregate were applied in another order than
	// they were queued, or an aggregate's versions are not in order.
	Inverted = "inverted_order"
	// FallingEpoch: a log in which an epoch follows a higher one.
	FallingEpoch = "falling_epoch"
	// TwoGates: direct writes and the queue were open together.
	TwoGates = "two_gates"
	// WrongGate: an effect that came when its way was closed.
	WrongGate = "wrong_gate"
)

// Finding is something that should not be.
type Finding struct {
	Code      string    `json:"code"`
	CommandID uuid.UUID `json:"commandId"`
	Detail    string    `json:"detail"`
}

// Report is what a check has found.
type Report struct {
	// Accepted is how many commands the queue has; each is one of the next three.
	Accepted int `json:"accepted"`
	Acked    int `json:"acked"`
	Dead     int `json:"dead"`
	Open     int `json:"open"`
	// Direct and Drained count the keys of the inbox by the way they came.
	Direct  int `json:"direct"`
	Drained int `json:"drained"`
	// Epoch is the present one of the hosted log.
	Epoch      continuity.Epoch `json:"epoch"`
	Violations []Finding        `json:"violations"`
	// Warnings are allowed by the policy Available, or by a restore of the hosted
	// database.
	Warnings []Finding `json:"warnings"`
}

// OK reports whether every promise was kept.
func (r Report) OK() bool { return len(r.Violations) == 0 }

func (r *Report) violation(code string, id uuid.UUID, format string, args ...any) {
	r.Violations = append(r.Violations, Finding{Code: code, CommandID: id, Detail: fmt.Sprintf(format, args...)})
}

func (r *Report) warning(code string, id uuid.UUID, format string, args ...any) {
	r.Warnings = append(r.Warnings, Finding{Code: code, CommandID: id, Detail: fmt.Sprintf(format, args...)})
}

// Verify checks:
//
//   - every key that the queue accepted has exactly one effect, or one dead row
//     that says why
//   - every effect is accounted for by a key, and every version of an aggregate
//     by one effect
//   - the commands of an aggregate were applied in the order of the queue
//   - epochs rise in both logs, and what was applied under one was applied while
//     it lasted
//   - direct writes and the queue were never open together
//
// The hosted books are read first: what they call done is in the primary's by
// then, which are read as they are at one moment. A command that a person brings
// back meanwhile is looked at again.
func Verify(ctx context.Context, opts Options) (Report, error) {
	if opts.Skew == 0 {
		opts.Skew = DefaultSkew
	}
	if opts.Progress == nil {
		opts.Progress = func(int, string) {}
	}
	c := &check{Options: opts, report: Report{Violations: []Finding{}, Warnings: []Finding{}}}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"read the hosted log", c.readEpochs},
		{"read the queue", c.readQueue},
		{"read the primary's books", c.checkPrimary},
		{"compare queue and inbox", c.compare},
	} {
		if err := step.do(ctx); err != nil {
			return Report{}, fmt.Errorf("%s: %w", step.name, err)
		}
	}
	c.epochs()
	return c.report, nil
}

// check holds what was read, but for the books of the primary that only grow.
type check struct {
	Options
	report Report

	log []hosted.Flip
	// gates says for each epoch of the hosted log whether it is one of direct writes.
	gates map[continuity.Epoch]bool
	// queue is in the order of the queue.
	queue []*accepted
	byKey map[string]*accepted
	flips []flip
}
