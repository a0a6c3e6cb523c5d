// Package hosted is the client of the hosted database: the queue, the snapshots, the outbox, the nodes and the fence.
//
// All of them are SQL functions (migrations/hosted), so there is one client over a Transport of one method, and the same
// client speaks to Postgres and to PostgREST. The primary's own database has the same functions.
//
// Every error is one of the sentinels of package continuity, or a continuity.StaleEpochError. What matters most is the
// difference between ErrUnavailable, after which nothing has happened, and ErrOutcomeUnknown, after which it may have:
// the same call is then repeated with the same key or token, and answers as the first one did. Claims and Reconcile say
// what a repetition of theirs does.
package hosted

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rollingd/rollingd/internal/continuity"
)

const (
	// statementTimeout is what the functions give themselves. A client that gave up earlier would not know the outcome
	// of a call that the server is about to end.
	statementTimeout = 5 * time.Second
	// callTimeout bounds the wait for the answer to a call that was sent.
	callTimeout = statementTimeout + 3*time.Second
	// connectTimeout bounds the wait for a connection, before anything is sent.
	connectTimeout = 3 * time.Second
)

// Transport calls a function of the hosted database.
type Transport interface {
	// Call passes args by name, each a string, number, bool, time.Time, uuid.UUID, json.RawMessage or nil, and decodes
	// the function's JSON result into into, unless that is nil. The call is one transaction, committed when Call returns
	// nil.
	Call(ctx context.Context, function string, args map[string]any, into any) error
}

// checked returns the arguments, with an empty payload as null, or ErrInvalid for a value that one of the transports
// would change on the way or could not carry.
func checked(function string, args map[string]any) (map[string]any, error) {
	args = maps.Clone(args)
	for name, value := range args {
		valid := true
		switch v := value.(type) {
		case string:
			valid = utf8.ValidString(v) && !strings.Contains(v, "\x00")
		case json.RawMessage:
			if len(v) == 0 {
				args[name] = nil
				continue
			}
			valid = utf8.Valid(v) && json.Valid(v)
		case time.Time:
			year := v.UTC().Year()
			valid = year >= 1 && year <= 9999
		}
		if !valid {
			return nil, fmt.Errorf("%s: %w: %s cannot be written", function, continuity.ErrInvalid, name)
		}
	}
	return args, nil
}

// orNull is what a call passes for the zero of an optional argument.
func orNull[T comparable](value T) any {
	var zero T
	if value == zero {
		return nil
	}
	return value
}

// pointee is what a call passes for an optional argument.
func pointee[T any](value *T) any {
	if value == nil {
		return nil
	}
	return *value
}

// seconds rounds up: a lease that was asked for is not shorter, and a wait is not none.
func seconds(d time.Duration) int64 {
	return int64(math.Ceil(d.Seconds()))
}

// Seconds is a duration that the functions return, as a number of seconds.
type Seconds time.Duration

// Duration is s as the standard library's type.
func (s Seconds) Duration() time.Duration { return time.Duration(s) }

// MarshalJSON writes a number of seconds.
func (s Seconds) MarshalJSON() ([]byte, error) {
	return json.Marshal(time.Duration(s).Seconds())
}

// UnmarshalJSON reads a number of seconds; null is zero.
func (s *Seconds) UnmarshalJSON(text []byte) error {
	var n float64
	if err := json.Unmarshal(text, &n); err != nil {
		return fmt.Errorf("seconds: %w", err)
	}
	*s = Seconds(n * float64(time.Second))
	return nil
}
