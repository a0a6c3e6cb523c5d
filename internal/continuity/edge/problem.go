package edge

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/router"
)

// Problem is the body of an answer that is an error (RFC 9457).
type Problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	// Code is stable; programs go by it. It is one of the contract's, one of those
	// below, or that of the primary's own refusal.
	Code string `json:"code"`
	// Detail says what is wrong and what to do.
	Detail string `json:"detail"`
	// Field names the part of the request that is wrong, if one is.
	Field string `json:"field,omitempty"`
}

const problemType = "application/problem+json"

// Codes that are not in the contract, because they are about HTTP.
const (
	codeUnauthorized     = "unauthorized"
	codeInvalidSignature = "invalid_signature"
	codeNotConfigured    = "not_configured"
	codePaymentUnknown   = "payment_not_known"
	codeNotFound         = "not_found"
	codeMethodNotAllowed = "method_not_allowed"
	codeUnsupportedMedia = "unsupported_media_type"
	codeInternal         = "internal"
	statusHungUp         = 499  // In logs and metrics, for a client that did not wait.
	retryAfterWebhook    = "60" // A provider tries again by itself, later.
)

// refused is a request that the edge itself refuses.
type refused struct {
	status int
	code   string
	field  string
	detail string
	// retryAfter is the header's value, if it is worth trying again.
	retryAfter string
	cause      error
}

func (r *refused) Error() string {
	if r.cause != nil {
		return r.detail + ": " + r.cause.Error()
	}
	return r.detail
}

func (r *refused) Unwrap() error { return r.cause }

// invalid refuses a field of the request.
func invalid(field, format string, args ...any) error {
	return &refused{
		status: http.StatusBadRequest,
		code:   string(contracts.CodeInvalidCommand),
		field:  field,
		detail: fmt.Sprintf(format, args...),
	}
}

// answers says how each code of the contract is answered. The text of an error
// stays in the log: it may name hosts.
var answers = map[contracts.ErrorCode]struct {
	status int
	detail string
}{
	contracts.CodePrimaryTimeout:       {http.StatusServiceUnavailable, "the primary did not answer in time; the command may have had its effect, send it again with the same key"},
	contracts.CodePrimaryFailure:       {http.StatusServiceUnavailable, "the primary did not answer as it should; send the request again, a command with the same key"},
	contracts.CodePrimaryUnavailable:   {http.StatusServiceUnavailable, "the primary takes no writes at this moment, and the queue is not open; send the command again with the same key"},
	contracts.CodeSnapshotMiss:         {http.StatusServiceUnavailable, "the primary does not answer, and no snapshot was published under this key"},
	contracts.CodeSnapshotFailure:      {http.StatusServiceUnavailable, "the primary does not answer, and the snapshots cannot be read"},
	contracts.CodeQueueFailure:         {http.StatusServiceUnavailable, "the queue does not take the command at this moment; send it again with the same key"},
	contracts.CodeNonEssentialRejected: {http.StatusServiceUnavailable, "commands of this type are not taken while the primary takes no writes"},
	contracts.CodeInvalidCommand:       {http.StatusUnprocessableEntity, "the command can never be taken as it is"},
	contracts.CodePayloadTooLarge:      {http.StatusRequestEntityTooLarge, fmt.Sprintf("the payload is larger than %d bytes", contracts.MaxCommandPayloadBytes)},
}

// problemOf makes an answer of an error, and the value of Retry-After. What it
// does not know is internal.
func problemOf(err error) (p Problem, retryAfter string) {
	var (
		own     *refused
		refusal *router.Refusal
		domain  *router.RefusedError
		web     *echo.HTTPError
	)
	switch {
	case errors.As(err, &own):
		return titled(Problem{Status: own.status, Code: own.code, Field: own.field, Detail: own.detail}), own.retryAfter
	case errors.As(err, &refusal):
		return refusalProblem(refusal), seconds(refusal)
	case errors.As(err, &domain):
		return titled(Problem{Status: domain.Status, Code: domain.Code, Detail: domain.Detail}), ""
	case errors.Is(err, router.ErrNotFound):
		return titled(Problem{Status: http.StatusNotFound, Code: codeNotFound, Detail: "there is nothing under this key"}), ""
	case errors.As(err, &web):
		return webProblem(web), ""
	}
	return titled(Problem{
		Status: http.StatusInternalServerError,
		Code:   codeInternal,
		Detail: "an unexpected error; the edge's log has it under this request's x-command-id",
	}), ""
}

func refusalProblem(refusal *router.Refusal) Problem {
	answer := answers[refusal.Code]
	p := Problem{Status: answer.status, Code: string(refusal.Code), Detail: answer.detail}
	var said *knownRefusal
	switch {
	case errors.Is(refusal, continuity.ErrKeyReused):
		p.Field, p.Detail = "idempotencyKey", continuity.ErrKeyReused.Error()
	case errors.Is(refusal, continuity.ErrSealed):
		p.Detail = continuity.ErrSealed.Error()
	case refusal.Code == contracts.CodeInvalidCommand && errors.As(refusal, &said):
		p.Detail = said.refused.Detail // The primary's own words are for the caller.
	}
	return titled(p)
}

func seconds(refusal *router.Refusal) string {
	if refusal.RetryAfter <= 0 {
		return ""
	}
	return strconv.Itoa(int(math.Ceil(refusal.RetryAfter.Seconds())))
}

// webProblem translates what the routes themselves refuse.
func webProblem(err *echo.HTTPError) Problem {
	switch err.Code {
	case http.StatusNotFound:
		return titled(Problem{Status: err.Code, Code: codeNotFound, Detail: "there is no such route"})
	case http.StatusMethodNotAllowed:
		return titled(Problem{Status: err.Code, Code: codeMethodNotAllowed, Detail: "the route does not take this method; the header Allow lists those it takes"})
	}
	return titled(Problem{Status: err.Code, Code: string(contracts.CodeInvalidCommand), Detail: fmt.Sprint(err.Message)})
}

func titled(p Problem) Problem {
	p.Title = http.StatusText(p.Status)
	return p
}

// answerError writes the answer to a request that failed.
func (e *Edge) answerError(err error, c echo.Context) {
	ctx := c.Request().Context()
	if ctx.Err() != nil && !c.Response().Committed {
		c.Response().Status = statusHungUp
		return
	}
	p, retryAfter := problemOf(err)
	if p.Status >= http.StatusInternalServerError {
		e.log.WarnContext(ctx, "request failed", "route", c.Path(), "command_id", commandID(c), "code", p.Code, "error", err)
	}
	if c.Response().Committed {
		return
	}
	header := c.Response().Header()
	header.Set(echo.HeaderContentType, problemType)
	header.Set("Cache-Control", "no-store")
	if retryAfter != "" {
		header.Set("Retry-After", retryAfter)
	}
	c.Response().WriteHeader(p.Status)
	if c.Request().Method == http.MethodHead {
		return
	}
	// The client has hung up if this fails.
	_ = c.Echo().JSONSerializer.Serialize(c, p, "")
}
