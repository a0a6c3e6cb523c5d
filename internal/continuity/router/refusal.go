package router

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
)

// ErrNotFound is the answer of a primary that has nothing under the key.
var ErrNotFound = errors.New("the primary has nothing under this key")

// ErrDenied is the answer of a primary that does not know the edge's token. It
// does not pass by itself, and the command is not to blame.
var ErrDenied = errors.New("the primary does not accept this edge's token")

// RefusedError is a refusal by the primary itself, for a reason of its domain.
type RefusedError struct {
	// Status is that of HTTP, from 400 to 499.
	Status int
	// Code and Detail are the primary's own words.
	Code   string
	Detail string
}

func (e *RefusedError) Error() string { return e.Code + ": " + e.Detail }

// Refusal says why a read or a write was not served.
type Refusal struct {
	Code contracts.ErrorCode
	// RetryAfter is when it is worth asking again with the same key; zero means
	// that it never is.
	RetryAfter time.Duration
	Err        error
}

func (r *Refusal) Error() string { return string(r.Code) + ": " + r.Err.Error() }
func (r *Refusal) Unwrap() error { return r.Err }

// verdict is what an error of the primary says about the way there.
type verdict int

const (
	// answered: the primary did its part, whatever it said.
	answered verdict = iota
	// failed: the primary did not answer, or something else did in its place.
	failed
	// nothing was learnt.
	nothing
)

// answers are the errors that only a primary that works can give.
var answers = []error{
	ErrNotFound,
	ErrDenied,
	continuity.ErrKeyReused,
	continuity.ErrInvalid,
	continuity.ErrPayloadTooLarge,
	continuity.ErrNotOpen,
	continuity.ErrNotYet,
	continuity.ErrSealed,
	continuity.ErrUnknownCommand,
}

// hungUpError: the client did not wait for the primary, or the router was closed
// meanwhile.
type hungUpError struct{ cause error }

func (e *hungUpError) Error() string { return "not waited for: " + e.cause.Error() }
func (e *hungUpError) Unwrap() error { return e.cause }

// panicError is a panic of this program.
type panicError struct{ value any }

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// judge says what err, which a call of the primary returned, means for the
// breaker.
func judge(err error) verdict {
	var (
		stale    *continuity.StaleEpochError
		refused  *RefusedError
		hungUp   *hungUpError
		panicked *panicError
	)
	switch {
	case err == nil, errors.As(err, &stale), errors.As(err, &refused):
		return answered
	case errors.As(err, &hungUp), errors.As(err, &panicked):
		return nothing
	}
	for _, known := range answers {
		if errors.Is(err, known) {
			return answered
		}
	}
	return failed
}

// fenced reports whether the primary refused for the fence alone. The command is
// right, and has another way to go.
func fenced(err error) bool {
	var stale *continuity.StaleEpochError
	return errors.As(err, &stale) || errors.Is(err, continuity.ErrNotOpen) || errors.Is(err, continuity.ErrSealed)
}

// refusePrimary says how a call of the primary came out that failed.
func refusePrimary(err error) *Refusal {
	r := &Refusal{Code: contracts.CodePrimaryFailure, RetryAfter: retrySoon, Err: fmt.Errorf("the primary: %w", err)}
	if errors.Is(err, context.DeadlineExceeded) {
		r.Code = contracts.CodePrimaryTimeout
	}
	return r
}

// refuse is about a command that is wrong by itself, wherever that was found
// out, and about a primary that does not know this edge.
func refuse(err error) (*Refusal, bool) {
	switch {
	case errors.Is(err, ErrDenied):
		return &Refusal{Code: contracts.CodePrimaryFailure, RetryAfter: retryLater, Err: err}, true
	case errors.Is(err, continuity.ErrPayloadTooLarge):
		return &Refusal{Code: contracts.CodePayloadTooLarge, Err: err}, true
	case errors.Is(err, continuity.ErrInvalid), errors.Is(err, continuity.ErrKeyReused):
		return &Refusal{Code: contracts.CodeInvalidCommand, Err: err}, true
	}
	return nil, false
}

// printable cuts what a client sent to what a message may repeat.
func printable(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most]
	}
	return fmt.Sprintf("%q", s)
}
