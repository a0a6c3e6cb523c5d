package primary

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
)

// The headers of the internal API.
const (
	HeaderEpoch     = "X-Continuity-Epoch"
	HeaderCommandID = "X-Command-Id"
)

const (
	// maxBody holds the largest payload, and the rest of a command beside it.
	maxBody = 2 * contracts.MaxCommandPayloadBytes
	// minToken keeps a token from being guessed.
	minToken = 16
)

// HandlerOptions of the internal API; all are required but Resync.
type HandlerOptions struct {
	Primary *Primary
	// Tokens are the service tokens that are taken, more than one while they are
	// being exchanged; each has at least 16 bytes.
	Tokens []string
	// Resync is told that the hosted fence has to be read at once, and returns
	// without waiting for it.
	Resync func()
	Logger *slog.Logger
}

// Handler is the internal API, which edges call with a service token:
//
//	POST /internal/commands     x-continuity-epoch, x-command-id; a command -> its Outcome
//	GET  /internal/reads/{key}  -> {"data": …}
//	GET  /internal/health       -> Health
//
// Errors are problem details with a stable code.
type Handler struct {
	opts   HandlerOptions
	mux    *http.ServeMux
	tokens [][sha256.Size]byte
	began  time.Time
	// heard is when an edge last asked for anything, after began; 0 for never.
	heard atomic.Int64
}

// NewHandler returns the API, or all that is wrong with the options.
func NewHandler(opts HandlerOptions) (*Handler, error) {
	began := time.Now()
	h := &Handler{opts: opts, mux: http.NewServeMux(), began: began}
	var problems []error
	if opts.Primary == nil || opts.Logger == nil {
		problems = append(problems, errors.New("the internal API needs a primary and a logger"))
	}
	if len(opts.Tokens) == 0 {
		problems = append(problems, errors.New("the internal API needs a service token"))
	}
	for _, token := range opts.Tokens {
		if len(token) < minToken {
			problems = append(problems, fmt.Errorf("a service token has %d bytes, and needs %d", len(token), minToken))
		}
		h.tokens = append(h.tokens, sha256.Sum256([]byte(token)))
	}
	if opts.Resync == nil {
		h.opts.Resync = func() {}
	}
	h.mux.HandleFunc("POST /internal/commands", h.command)
	h.mux.HandleFunc("GET /internal/reads/{key...}", h.read)
	h.mux.HandleFunc("GET /internal/health", h.health)
	return h, errors.Join(problems...)
}

// ServeHTTP answers a request that carries a service token.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !h.authentic(r) {
		w.Header().Set("WWW-Authenticate", "Bearer")
		writeProblem(w, Problem{Status: http.StatusUnauthorized, Code: "unauthorized", Detail: "send the service token as a bearer token"}, "")
		return
	}
	h.heard.Store(int64(max(time.Since(h.began), 1)))
	h.mux.ServeHTTP(w, r)
}

// authentic compares digests, of one length, and all of them: the time that it
// takes tells nothing of a token.
func (h *Handler) authentic(r *http.Request) bool {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return false
	}
	got := sha256.Sum256([]byte(token))
	match := 0
	for _, want := range h.tokens {
		match |= subtle.ConstantTimeCompare(got[:], want[:])
	}
	return match == 1
}

// Heard reports whether an edge has asked for anything within the last while, and
// since the epoch began: that edges reach the primary is what a cutover waits for,
// and what they did before the queue was opened proves nothing. In an outage an
// edge asks once in an open window of its breaker, so the while is longer than
// that.
func (h *Handler) Heard(within time.Duration) bool {
	at := h.heard.Load()
	return at != 0 && time.Since(h.began)-time.Duration(at) <= min(within, h.opts.Primary.epochAge())
}

func (h *Handler) command(w http.ResponseWriter, r *http.Request) {
	c, epoch, err := readCommand(w, r)
	if err != nil {
		h.refuse(w, r, c, epoch, err)
		return
	}
	w.Header().Set(HeaderCommandID, c.CommandID.String())
	out, err := h.opts.Primary.Apply(r.Context(), c, epoch)
	if err != nil {
		h.refuse(w, r, c, epoch, err)
		return
	}
	writeJSON(w, http.StatusOK, out)
}

// readCommand reads a command, whose id stands in the header alone.
func readCommand(w http.ResponseWriter, r *http.Request) (continuity.Command, continuity.Epoch, error) {
	var c continuity.Command
	invalid := func(format string, args ...any) (continuity.Command, continuity.Epoch, error) {
		return c, 0, fmt.Errorf("%w: "+format, append([]any{continuity.ErrInvalid}, args...)...)
	}
	id, err := uuid.Parse(r.Header.Get(HeaderCommandID))
	if err != nil {
		return invalid("%s is no UUID", HeaderCommandID)
	}
	c.CommandID = id
	epoch, err := strconv.ParseInt(r.Header.Get(HeaderEpoch), 10, 64)
	if err != nil || epoch < 0 || epoch > maxEpoch {
		return invalid("%s is no epoch", HeaderEpoch)
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return c, 0, fmt.Errorf("%w: the body has more than %d bytes", continuity.ErrPayloadTooLarge, maxBody)
	}
	if err != nil {
		return c, 0, err
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	var body struct {
		IdempotencyKey  string          `json:"idempotencyKey"`
		CommandType     string          `json:"commandType"`
		AggregateType   string          `json:"aggregateType"`
		AggregateID     string          `json:"aggregateId"`
		Payload         json.RawMessage `json:"payload"`
		OccurredAt      *time.Time      `json:"occurredAt"`
		ExpectedVersion *int64          `json:"expectedVersion"`
		CommandID       *uuid.UUID      `json:"commandId"`
	}
	if err := dec.Decode(&body); err != nil {
		return invalid("the body: %v", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return invalid("something follows the command in the body")
	}
	for _, name := range []string{body.IdempotencyKey, body.CommandType, body.AggregateType, body.AggregateID} {
		if strings.ContainsRune(name, utf8.RuneError) {
			// This is what half a character becomes: two such keys would be one.
			return invalid("a name that is not whole characters")
		}
	}
	if body.CommandID != nil && *body.CommandID != id {
		return invalid("%s is not the command's id", HeaderCommandID)
	}
	c.IdempotencyKey, c.CommandType = body.IdempotencyKey, body.CommandType
	c.AggregateType, c.AggregateID = body.AggregateType, body.AggregateID
	c.Payload, c.OccurredAt, c.ExpectedVersion = body.Payload, body.OccurredAt, body.ExpectedVersion
	return c, continuity.Epoch(epoch), nil
}

const (
	// maxEpoch leaves room for as many epochs as will ever be: a number beyond it is
	// no epoch.
	maxEpoch = 1 << 53
	// maxLead is by how many epochs a caller can know more than the primary, restored
	// as that may be. The fence never comes back from an epoch that it has taken in,
	// and a number out of the air would use up those that snapshots are numbered by.
	maxLead = 1 << 20
)

// refuse answers a command that had no effect. A caller who knows a higher epoch
// is right: the primary closes itself and reads the fence.
func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, c continuity.Command, epoch continuity.Epoch, err error) {
	ctx := r.Context()
	if ctx.Err() != nil {
		return // Nobody waits for an answer.
	}
	p, retry := problemOf(err)
	var stale *continuity.StaleEpochError
	if errors.As(err, &stale) {
		p, retry = Problem{Status: http.StatusConflict, Code: CodeStaleEpoch, Detail: stale.Error(), Epoch: stale.Current}, ""
		if epoch > stale.Current && epoch <= stale.Current+maxLead {
			p.Status, p.Code, retry = http.StatusServiceUnavailable, CodePrimaryStale, "1"
			if err := h.opts.Primary.See(ctx, epoch); err != nil {
				h.opts.Logger.ErrorContext(ctx, "the fence could not be closed", "command_id", c.CommandID, "epoch", epoch, "error", err)
			}
			h.opts.Resync()
		}
	}
	if p.Code == CodeStaleEpoch || p.Code == CodeGateClosed {
		// Only to tell the caller; what was decided, was decided in the transaction.
		if s, err := h.opts.Primary.State(ctx); err == nil {
			p.Epoch, p.Mode = s.Epoch, s.Mode
		}
	}
	if p.Status >= http.StatusInternalServerError {
		h.opts.Logger.WarnContext(ctx, "command not applied", "command_id", c.CommandID, "code", p.Code, "error", err)
	}
	writeProblem(w, p, retry)
}

func (h *Handler) read(w http.ResponseWriter, r *http.Request) {
	data, err := h.opts.Primary.Read(r.Context(), r.PathValue("key"))
	if err != nil {
		h.refuse(w, r, continuity.Command{}, 0, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]json.RawMessage{"data": data})
}

func (h *Handler) health(w http.ResponseWriter, r *http.Request) {
	health, err := h.opts.Primary.Health(r.Context())
	if err != nil {
		h.refuse(w, r, continuity.Command{}, 0, err)
		return
	}
	status := http.StatusOK
	if !health.OK {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, status, health)
}
