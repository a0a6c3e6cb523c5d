package primary

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/pg"
)

// Problem is the body of an answer that is an error (RFC 9457).
type Problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	// Code is stable; programs go by it.
	Code   string `json:"code"`
	Detail string `json:"detail"`
	// Epoch and Mode are the primary's, when the fence has refused.
	Epoch continuity.Epoch `json:"epoch,omitempty"`
	Mode  continuity.Mode  `json:"mode,omitempty"`
}

// The codes of refusals by the fence.
const (
	// CodeStaleEpoch, 409: the caller's epoch is over. The current one is named.
	CodeStaleEpoch = "stale_epoch"
	// CodePrimaryStale, 503: the caller's epoch is higher than the primary's, which
	// has closed itself and reads the fence.
	CodePrimaryStale = "primary_stale"
	// CodeGateClosed, 503: direct writes are closed in this epoch.
	CodeGateClosed = "gate_closed"
)

// known maps errors to answers. The first that matches counts.
var known = []struct {
	err    error
	status int
	code   string
	// retry is after how many seconds the same command may be sent again, 0 for never.
	retry string
}{
	{continuity.ErrPayloadTooLarge, http.StatusRequestEntityTooLarge, "payload_too_large", ""},
	{continuity.ErrKeyReused, http.StatusUnprocessableEntity, "key_reused", ""},
	{ErrUnknownType, http.StatusUnprocessableEntity, "unknown_command_type", ""},
	{ErrVersionConflict, http.StatusConflict, "version_conflict", ""},
	{ErrExists, http.StatusConflict, "already_exists", ""},
	{ErrIllegalMove, http.StatusConflict, "illegal_transition", ""},
	{ErrUnknownAggregate, http.StatusUnprocessableEntity, "unknown_aggregate", ""},
	{ErrRefused, http.StatusConflict, "refused", ""},
	{continuity.ErrInvalid, http.StatusUnprocessableEntity, "invalid_command", ""},
	{ErrUnknownKey, http.StatusNotFound, "unknown_key", ""},
	{continuity.ErrNotOpen, http.StatusServiceUnavailable, CodeGateClosed, "1"},
	{pg.ErrOutcomeUnknown, http.StatusServiceUnavailable, "outcome_unknown", "1"},
	{pg.ErrUnavailable, http.StatusServiceUnavailable, "primary_unavailable", "2"},
	{context.DeadlineExceeded, http.StatusGatewayTimeout, "primary_timeout", "1"},
}

// problemOf makes an answer of an error. What it does not know stays in the log.
func problemOf(err error) (p Problem, retry string) {
	for _, k := range known {
		if errors.Is(err, k.err) {
			detail := err.Error()
			if errors.Is(k.err, pg.ErrUnavailable) || errors.Is(k.err, pg.ErrOutcomeUnknown) {
				detail = k.err.Error() // The driver's text names hosts and users.
			}
			return Problem{Status: k.status, Code: k.code, Detail: detail}, k.retry
		}
	}
	switch pg.Code(err) {
	case "40001", "40P01", "55P03", "57014": // a conflict, a deadlock, or too long a wait
		return Problem{Status: http.StatusServiceUnavailable, Code: "busy", Detail: "another write is in the way; send it again with the same key"}, "1"
	}
	return Problem{Status: http.StatusInternalServerError, Code: "primary_failure", Detail: "an unexpected error; the primary's log has it under this x-command-id"}, ""
}

func writeProblem(w http.ResponseWriter, p Problem, retry string) {
	p.Title = http.StatusText(p.Status)
	w.Header().Set("Content-Type", "application/problem+json")
	if retry != "" {
		w.Header().Set("Retry-After", retry)
	}
	writeJSON(w, p.Status, p)
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "application/json")
	}
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(body) // The caller has hung up if this fails.
}
