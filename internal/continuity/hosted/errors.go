package hosted

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/rollingd/rollingd/internal/continuity"
)

// ErrDenied is an ErrUnavailable that does not pass by itself: the key or the role is not accepted.
var ErrDenied = fmt.Errorf("the credentials are not accepted: %w", continuity.ErrUnavailable)

// Refusal is an error that the hosted side has answered with. The transaction was rolled back, except where the error is
// ErrOutcomeUnknown. It unwraps to a sentinel or a continuity.StaleEpochError.
type Refusal struct {
	Function string
	// Code is a SQLSTATE, one of the functions' own RC0xx, or PostgREST's PGRSTxxx.
	Code string
	// Detail is what a function adds for machines, such as the mode for ErrNotOpen, and JSON with a "reason" for
	// ErrNotYet. It is empty for every other code: what Postgres says may repeat the payload.
	Detail string
	err    error
}

func (e *Refusal) Error() string {
	text := e.Function + " (" + e.Code + "): " + e.err.Error()
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	return text
}

// Unwrap returns what the code means.
func (e *Refusal) Unwrap() error { return e.err }

// refusal is the one table from codes to errors. A code that is not in it is that of a transaction that was rolled back
// for a reason outside of the command, so the same call may succeed later.
func refusal(function, code, detail string) error {
	e := &Refusal{Function: function, Code: code, err: meaning(code)}
	if strings.HasPrefix(code, "RC") {
		e.Detail = detail
	}
	if code == "RC001" {
		if epoch, err := strconv.ParseInt(detail, 10, 64); err == nil {
			e.err = &continuity.StaleEpochError{Current: continuity.Epoch(epoch)}
		}
	}
	return e
}

func meaning(code string) error {
	switch code {
	case "RC001": // Without the current epoch in its detail.
		return continuity.ErrDrift
	case "RC002":
		return continuity.ErrNotOpen
	case "RC003":
		return continuity.ErrSealed
	case "RC004":
		return continuity.ErrKeyReused
	case "RC005":
		return continuity.ErrInvalid
	case "RC006":
		return continuity.ErrPayloadTooLarge
	case "RC007":
		return continuity.ErrLostClaim
	case "RC008":
		return continuity.ErrNotYet
	case "RC009":
		return continuity.ErrUnknownCommand
	case "42501": // insufficient_privilege
		return ErrDenied
	case "40003": // statement_completion_unknown
		return continuity.ErrOutcomeUnknown
	case "57P01", "57P02": // A server that is shut down says so also when it has committed and waits for a replica.
		return continuity.ErrOutcomeUnknown
	case "54000", "54001": // Nested too deep.
		return continuity.ErrInvalid
	}
	for prefix, err := range prefixes {
		if strings.HasPrefix(code, prefix) {
			return err
		}
	}
	return continuity.ErrUnavailable
}

var prefixes = map[string]error{
	"08":     continuity.ErrOutcomeUnknown, // The connection was lost, at the server or behind a pooler.
	"22":     continuity.ErrInvalid,        // A value that Postgres cannot hold, such as \u0000.
	"23":     continuity.ErrInvalid,
	"28":     ErrDenied,
	"42":     continuity.ErrDrift, // No such function, table or column.
	"3F":     continuity.ErrDrift,
	"RC":     continuity.ErrDrift, // A code that this version does not know.
	"PGRST1": continuity.ErrDrift, // A request that PostgREST does not understand.
	"PGRST2": continuity.ErrDrift, // No such function in its schema.
	"PGRST3": ErrDenied,
}

// statusRefusal is the meaning of an HTTP answer that has no code, as gateways in front of PostgREST give it.
func statusRefusal(function string, status int) error {
	e := &Refusal{Function: function, Code: "HTTP " + strconv.Itoa(status)}
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		e.err = ErrDenied
	case status == http.StatusRequestEntityTooLarge:
		e.err = continuity.ErrPayloadTooLarge
	case status == http.StatusRequestTimeout:
		e.err = continuity.ErrOutcomeUnknown
	case status < http.StatusInternalServerError:
		e.err = continuity.ErrUnavailable
	default:
		e.err = continuity.ErrOutcomeUnknown
	}
	return e
}

// unsent is the error of a call that did not leave this process.
func unsent(function string, cause error) error {
	return fmt.Errorf("%s: %w: %w", function, continuity.ErrUnavailable, cause)
}

// unanswered is the error of a call that was sent.
func unanswered(ctx context.Context, function string, cause error) error {
	// The driver may only say that the connection was closed; the context knows by whom.
	if err := ctx.Err(); err != nil && !errors.Is(cause, err) {
		cause = errors.Join(cause, err)
	}
	return fmt.Errorf("%s: %w: %w", function, continuity.ErrOutcomeUnknown, cause)
}
