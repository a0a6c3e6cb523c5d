package hosted

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/rollingd/rollingd/internal/continuity"
)

const (
	// intakeCalls is how many calls an intake has under way. Few make them fuller, but one that hangs holds up a part.
	intakeCalls = 2
	// intakeBytes bounds the payloads of one call: gateways bound its body.
	intakeBytes = 1 << 20
)

// Intake enqueues for many callers at once. While its calls are under way, commands gather, and the next call takes all of
// them: a flood costs a commit and a round trip for many of them, and a command that comes alone waits for nobody.
type Intake struct {
	queue *Queue

	mu      sync.Mutex
	waiting []*submitted
	calls   int
}

// NewIntake returns an intake of the queue.
func NewIntake(queue *Queue) *Intake { return &Intake{queue: queue} }

// submitted is a submission whose caller waits.
type submitted struct {
	Submission
	entry chan Entry
}

// Enqueue is Queue.Enqueue. When ctx ends before the command was sent, that is ErrUnavailable, and ErrOutcomeUnknown
// afterwards: the call goes on for the others.
func (in *Intake) Enqueue(ctx context.Context, c continuity.Command, epoch continuity.Epoch) (continuity.Receipt, error) {
	s := &submitted{Submission: Submission{Command: c, Epoch: epoch}, entry: make(chan Entry, 1)}
	in.submit(ctx, s)
	select {
	case e := <-s.entry:
		return e.Receipt, e.Err
	case <-ctx.Done():
	}
	if in.withdraw(s) {
		return continuity.Receipt{}, unsent(enqueue, context.Cause(ctx))
	}
	select {
	case e := <-s.entry: // It has come in the meantime.
		return e.Receipt, e.Err
	default:
		return continuity.Receipt{}, unanswered(ctx, enqueue, errors.New("its call is under way"))
	}
}

func (in *Intake) submit(ctx context.Context, s *submitted) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.waiting = append(in.waiting, s)
	if in.calls < intakeCalls {
		in.calls++
		// A call that others have joined outlives its first caller. The transport bounds it.
		go in.work(context.WithoutCancel(ctx))
	}
}

// withdraw takes a submission back that no call has taken.
func (in *Intake) withdraw(s *submitted) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	i := slices.Index(in.waiting, s)
	if i < 0 {
		return false
	}
	in.waiting = slices.Delete(in.waiting, i, i+1)
	return true
}

// work makes calls until nothing waits.
func (in *Intake) work(ctx context.Context) {
	for batch := in.next(); len(batch) > 0; batch = in.next() {
		in.call(ctx, batch)
	}
}

// next takes what one call may take.
func (in *Intake) next() []*submitted {
	in.mu.Lock()
	defer in.mu.Unlock()
	n, bytes := 0, 0
	for n < len(in.waiting) && n < MaxBatch && (n == 0 || bytes+len(in.waiting[n].Payload) <= intakeBytes) {
		bytes += len(in.waiting[n].Payload)
		n++
	}
	if n == 0 {
		in.calls--
		return nil
	}
	batch := slices.Clone(in.waiting[:n])
	in.waiting = slices.Delete(in.waiting, 0, n)
	return batch
}

func (in *Intake) call(ctx context.Context, batch []*submitted) {
	if len(batch) == 1 {
		receipt, err := in.queue.Enqueue(ctx, batch[0].Command, batch[0].Epoch)
		batch[0].entry <- Entry{receipt, err}
		return
	}
	all := make([]Submission, len(batch))
	for i, s := range batch {
		all[i] = s.Submission
	}
	entries, err := in.queue.EnqueueAll(ctx, all)
	for i, s := range batch {
		if err != nil {
			s.entry <- Entry{Err: err}
			continue
		}
		s.entry <- entries[i]
	}
}
