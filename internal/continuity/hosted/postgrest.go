package hosted

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// maxAnswer bounds an answer: a claim of 100 commands of the largest size, with room for their other fields.
const maxAnswer = 16 << 20

// ErrSettings means that the URL or the key of PostgREST cannot be right.
var ErrSettings = errors.New("PostgREST settings")

// PostgREST is the Transport over PostgREST's RPC, as Supabase serves it.
type PostgREST struct {
	base   string
	header http.Header
	client *http.Client
}

// NewPostgREST returns the transport for a Supabase project: its URL (without /rest/v1) and its service key, of the legacy
// JWT kind or of the kind sb_secret_…. A URL without TLS is accepted on loopback only. What cannot be right is
// ErrSettings; nothing is sent yet. Close ends its idle connections.
func NewPostgREST(projectURL, serviceKey string) (*PostgREST, error) {
	u, err := url.Parse(projectURL)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return nil, fmt.Errorf("%w: the URL has to be https://host", ErrSettings)
	}
	if u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())) {
		return nil, fmt.Errorf("%w: the service key is sent over https only", ErrSettings)
	}
	header := http.Header{}
	header.Set("Accept", "application/json")
	header.Set("Content-Type", "application/json")
	header.Set("Content-Profile", "public")
	header.Set("Apikey", serviceKey)
	switch role := keyRole(serviceKey); role {
	case roleSecret:
	case roleService:
		// Only a JWT is a bearer token; the gateway refuses another kind of key there.
		header.Set("Authorization", "Bearer "+serviceKey)
	default:
		return nil, fmt.Errorf("%w: a service key is needed, this one is of role %q", ErrSettings, role)
	}
	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: connectTimeout, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:   connectTimeout,
		ResponseHeaderTimeout: callTimeout,
		ForceAttemptHTTP2:     true,
		MaxIdleConnsPerHost:   8,
		// Gateways end theirs after a minute or more: a call on a connection that has just ended is one whose outcome
		// nobody knows.
		IdleConnTimeout: 30 * time.Second,
	}
	return &PostgREST{
		base:   strings.TrimRight(u.String(), "/") + "/rest/v1/rpc/",
		header: header,
		client: &http.Client{
			Transport: transport,
			Timeout:   2*connectTimeout + callTimeout,
			// A redirect would send the key to another host, and turn the POST into a GET.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Close ends the idle connections.
func (p *PostgREST) Close() { p.client.CloseIdleConnections() }

// Call posts the arguments. From the moment that a connection is there, an error leaves the outcome open: how much of the
// request had been written is not told.
func (p *PostgREST) Call(ctx context.Context, function string, args map[string]any, into any) error {
	args, err := checked(function, args)
	if err != nil {
		return err
	}
	body, err := json.Marshal(args)
	if err != nil {
		return fmt.Errorf("%s: %w", function, err)
	}
	var sent atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { sent.Store(true) },
	})
	req, err := http.NewRequestWithContext(traced, http.MethodPost, p.base+url.PathEscape(function), bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%s: %w", function, err)
	}
	req.Header = p.header.Clone()
	res, err := p.client.Do(req)
	if err != nil && !sent.Load() {
		return unsent(function, err)
	}
	if err != nil {
		return unanswered(ctx, function, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if err == nil && len(text) > maxAnswer {
		err = errors.New("the answer is too long")
	}
	if res.StatusCode >= http.StatusMultipleChoices {
		// A status that arrived says enough if the body did not.
		return answeredError(function, res.StatusCode, text)
	}
	if err != nil {
		return unanswered(ctx, function, err)
	}
	if into == nil {
		return nil
	}
	return decode(ctx, function, text, into)
}

// answeredError tells errors apart by the code in the body: Postgres' timeouts and conflicts come with status 500, like
// much else. Gateways answer without a code, and a 401 may have no body.
func answeredError(function string, status int, body []byte) error {
	var e struct {
		Code    string `json:"code"`
		Details string `json:"details"`
	}
	// Details of PostgREST's own errors may be other than text; then the code alone is read.
	if err := json.Unmarshal(body, &e); err != nil && e.Code == "" {
		return statusRefusal(function, status)
	}
	if !sqlstate(e.Code) && !strings.HasPrefix(e.Code, "PGRST") {
		return statusRefusal(function, status)
	}
	return refusal(function, e.Code, e.Details)
}

// sqlstate tells whether the code has the form of one: five digits or capitals. Gateways have words for codes.
func sqlstate(code string) bool {
	const letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	return len(code) == 5 && strings.Trim(code, letters) == ""
}

const (
	roleSecret  = "secret"
	roleService = "service_role"
)

// keyRole reads what a Supabase key is for, without verifying it.
func keyRole(key string) string {
	if strings.HasPrefix(key, "sb_secret_") {
		return roleSecret
	}
	parts := strings.Split(key, ".")
	if len(parts) != 3 {
		return "unknown"
	}
	payload, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[1], "="))
	if err != nil {
		return "unknown"
	}
	var claims struct {
		Role string `json:"role"`
	}
	if json.Unmarshal(payload, &claims) != nil {
		return "unknown"
	}
	return claims.Role
}

func loopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}
