package edge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/router"
)

// The headers that a command travels with.
const (
	headerCommandID = "X-Command-Id"
	headerEpoch     = "X-Continuity-Epoch"
)

const (
	// maxAnswer bounds an answer of the primary. What it publishes as a snapshot
	// is smaller.
	maxAnswer = 4 << 20
	// primaryConns bounds how many requests the primary gets at once, above all in
	// the moment in which the circuit closes and everybody comes back.
	primaryConns = 64
)

// ErrPrimaryURL and ErrPrimaryToken mean that one of the two cannot be right.
var (
	ErrPrimaryURL   = errors.New("want https://host of the primary")
	ErrPrimaryToken = fmt.Errorf("want a service token of %d characters or more", MinTokenLength)
)

// Primary is the client of the primary's internal API, which is reached through
// a tunnel. It is a router.Primary.
type Primary struct {
	base   string
	token  string
	client *http.Client
}

// NewPrimary returns the client for a base URL such as https://primary.example,
// ErrPrimaryURL or ErrPrimaryToken. The token is sent over TLS, or to loopback,
// alone.
func NewPrimary(base, token string) (*Primary, error) {
	u, err := url.Parse(base)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, ErrPrimaryURL
	case u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname())):
		return nil, fmt.Errorf("%w: the service token is sent over https only", ErrPrimaryURL)
	case len(token) < MinTokenLength:
		return nil, ErrPrimaryToken
	}
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 2 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: 2 * time.Second,
		ForceAttemptHTTP2:   true,
		MaxConnsPerHost:     primaryConns,
		MaxIdleConnsPerHost: primaryConns,
		IdleConnTimeout:     time.Minute,
		// A tunnel that died without a word leaves a connection on which every
		// request would wait for its whole time.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 2 * time.Second},
	}
	return &Primary{
		base:  strings.TrimRight(u.String(), "/"),
		token: token,
		client: &http.Client{
			Transport: transport,
			// What redirects is not the primary.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Close ends idle connections.
func (p *Primary) Close() { p.client.CloseIdleConnections() }

// Execute applies a command.
func (p *Primary) Execute(ctx context.Context, epoch continuity.Epoch, cmd continuity.Command) (router.Applied, error) {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false) // A payload would grow by it, beyond the limit.
	if err := enc.Encode(cmd); err != nil {
		return router.Applied{}, fmt.Errorf("%w: %w", continuity.ErrInvalid, err)
	}
	var answer struct {
		CommandID    *uuid.UUID      `json:"commandId"`
		Result       json.RawMessage `json:"result"`
		Deduplicated bool            `json:"deduplicated"`
	}
	header := http.Header{
		headerCommandID: {cmd.CommandID.String()},
		headerEpoch:     {strconv.FormatInt(int64(epoch), 10)},
		"Content-Type":  {"application/json"},
		// It says to the transport, and to nobody else, that the request may be sent
		// again when a connection was closed that lay idle, as by a primary that was
		// started anew. That is no failure, for which the queue would be opened.
		"Idempotency-Key": {},
	}
	if err := p.call(ctx, http.MethodPost, "/internal/commands", header, body.Bytes(), &answer); err != nil {
		return router.Applied{}, fmt.Errorf("apply: %w", err)
	}
	if answer.CommandID == nil {
		return router.Applied{}, fmt.Errorf("apply: %w: no commandId", errNotThePrimary)
	}
	return router.Applied{CommandID: *answer.CommandID, Result: answer.Result, Deduplicated: answer.Deduplicated}, nil
}

// Read returns what is under a key.
func (p *Primary) Read(ctx context.Context, key string) (json.RawMessage, error) {
	var answer struct {
		Data json.RawMessage `json:"data"`
	}
	if err := p.call(ctx, http.MethodGet, "/internal/reads/"+pathOf(key), http.Header{}, nil, &answer); err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	if answer.Data == nil {
		return nil, fmt.Errorf("read: %w: no data", errNotThePrimary)
	}
	return answer.Data, nil
}

// Health asks whether the primary can do its work.
func (p *Primary) Health(ctx context.Context) (continuity.Fence, error) {
	var answer struct {
		OK    bool             `json:"ok"`
		Epoch continuity.Epoch `json:"epoch"`
		Mode  continuity.Mode  `json:"mode"`
	}
	if err := p.call(ctx, http.MethodGet, "/internal/health", http.Header{}, nil, &answer); err != nil {
		return continuity.Fence{}, fmt.Errorf("health: %w", err)
	}
	if !answer.OK {
		return continuity.Fence{}, errors.New("health: the primary says that it is not well")
	}
	return continuity.Fence{Epoch: answer.Epoch, Mode: answer.Mode}, nil
}

// errNotThePrimary is an answer that the primary does not give: one of a tunnel,
// a proxy or a login page on the way.
var errNotThePrimary = errors.New("the answer is not the primary's")

// call makes a request. Errors that are none of the primary's own words mean
// that it did not answer.
func (p *Primary) call(ctx context.Context, method, path string, header http.Header, body []byte, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, p.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header = header
	req.Header.Set("Authorization", "Bearer "+p.token)
	req.Header.Set("Accept", "application/json")
	resp, err := p.client.Do(req)
	if err != nil {
		var named *url.Error
		if errors.As(err, &named) {
			err = named.Err // The URL holds keys of reads.
		}
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return err
	case len(text) > maxAnswer:
		return fmt.Errorf("%w: more than %d bytes", errNotThePrimary, maxAnswer)
	case resp.StatusCode != http.StatusOK:
		return refusal(resp.StatusCode, text)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%w: %w", errNotThePrimary, err)
	}
	return nil
}

// refusals are the primary's codes that have a meaning of their own here. A 5xx
// that is among them is an answer, too: the primary works, and says no.
var refusals = map[string]error{
	"gate_closed": continuity.ErrNotOpen,
	// Another write, or a flip of the fence, holds the lock.
	"busy":              continuity.ErrNotOpen,
	"primary_stale":     continuity.ErrNotOpen,
	"key_reused":        continuity.ErrKeyReused,
	"invalid_command":   continuity.ErrInvalid,
	"payload_too_large": continuity.ErrPayloadTooLarge,
	"unknown_key":       router.ErrNotFound,
	"unauthorized":      router.ErrDenied,
	"forbidden":         router.ErrDenied,
}

// refusal translates an answer that is an error. One without a code was given by
// something on the way: a 404 of a tunnel that has lost its host is no answer.
func refusal(status int, text []byte) error {
	var problem struct {
		Code   string           `json:"code"`
		Detail string           `json:"detail"`
		Epoch  continuity.Epoch `json:"epoch"`
	}
	if json.Unmarshal(text, &problem) != nil || problem.Code == "" {
		return fmt.Errorf("%w: status %d", errNotThePrimary, status)
	}
	if problem.Code == "stale_epoch" && problem.Epoch > 0 {
		return &continuity.StaleEpochError{Current: problem.Epoch}
	}
	refused := &router.RefusedError{Status: status, Code: problem.Code, Detail: problem.Detail}
	if known, ok := refusals[problem.Code]; ok {
		return &knownRefusal{known, refused}
	}
	if status < http.StatusBadRequest || status >= http.StatusInternalServerError {
		return fmt.Errorf("status %d, code %s", status, problem.Code)
	}
	return refused
}

// knownRefusal is a sentinel together with the primary's own words. It hides from
// errors.As what they were made of, so that the sentinel alone decides.
type knownRefusal struct {
	known   error
	refused *router.RefusedError
}

func (r *knownRefusal) Error() string { return r.known.Error() + ": " + r.refused.Error() }
func (r *knownRefusal) Unwrap() error { return r.known }

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// pathOf escapes a key, and keeps its slashes.
func pathOf(key string) string {
	segments := strings.Split(key, "/")
	for i, segment := range segments {
		segments[i] = url.PathEscape(segment)
	}
	return strings.Join(segments, "/")
}
