// Package couch is what the product asks of CouchDB. Control requests go
// through kivik; bytes that must stay exact (documents, feeds, _security) go
// over plain HTTP, because kivik decodes them, escapes them again, or drops
// fields that it does not know.
package couch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-kivik/kivik/v4"
	"github.com/go-kivik/kivik/v4/couchdb"
)

// Sentinels for what CouchDB answered. Everything else, a lost connection
// among it, is an error without a sentinel: the outcome is not known.
var (
	// ErrNotFound: 404. Only GET of a database proves that it is absent.
	ErrNotFound = errors.New("not found in CouchDB")
	// ErrConflict: 409, another revision is there.
	ErrConflict = errors.New("revision conflict")
	// ErrExists: 412. While a DELETE runs CouchDB says so of absent databases too.
	ErrExists = errors.New("CouchDB says the database exists")
	// ErrForbidden: 401 or 403.
	ErrForbidden = errors.New("refused by CouchDB")
	// ErrRejected: 400, 413 or another 4xx: the request will never be taken.
	ErrRejected = errors.New("rejected by CouchDB")
	// ErrUnavailable: 5xx, a time-out or no connection. What was asked for may
	// have happened.
	ErrUnavailable = errors.New("CouchDB is unavailable")
)

const (
	// DefaultTimeout bounds a control request, from the dial to the last byte.
	DefaultTimeout = 30 * time.Second
	// DefaultStall bounds the silence within a stream.
	DefaultStall = 60 * time.Second
	// idleConns is how many connections are kept; the default of 2 redials for
	// nearly every request of a concurrent sweep.
	idleConns = 64
)

// Options of a client.
type Options struct {
	// URL of the server, with the administrator's name and password.
	URL string
	// Timeout bounds a control request, Stall the silence within a stream; zero
	// is the default.
	Timeout time.Duration
	Stall   time.Duration
	// Transport replaces the HTTP transport, for tests that break it.
	Transport http.RoundTripper
}

// Client speaks to one CouchDB server as its administrator. It is safe for
// concurrent use.
type Client struct {
	base     string
	user     string
	password string
	http     *http.Client
	kivik    *kivik.Client
	timeout  time.Duration
	stall    time.Duration
}

// New returns a client; it does not connect yet.
func New(opts Options) (*Client, error) {
	u, err := url.Parse(opts.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		// The URL holds a password, so the error does not repeat it.
		return nil, errors.New("the CouchDB URL is not of the form http://user:password@host:port")
	}
	transport := opts.Transport
	if transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.MaxIdleConnsPerHost = idleConns
		t.MaxIdleConns = idleConns
		// Go would ask for gzip and unpack it: CPU on both sides for nothing.
		t.DisableCompression = true
		transport = t
	}
	c := &Client{
		user:    u.User.Username(),
		http:    &http.Client{Transport: transport},
		timeout: orDefault(opts.Timeout, DefaultTimeout),
		stall:   orDefault(opts.Stall, DefaultStall),
	}
	c.password, _ = u.User.Password()
	u.User = nil
	c.base = strings.TrimSuffix(u.String(), "/")

	// On a stale connection Go repeats the plain body under the header of the
	// compressed one; CouchDB then answers 400.
	params := []kivik.Option{couchdb.OptionHTTPClient(c.http), couchdb.OptionNoRequestCompression()}
	if c.user != "" {
		// Basic instead of the cookie that credentials in the URL would start:
		// a cookie that CouchDB no longer knows is not renewed.
		params = append(params, couchdb.BasicAuth(c.user, c.password))
	}
	c.kivik, err = kivik.New("couch", c.base, params...)
	if err != nil {
		return nil, fmt.Errorf("CouchDB client: %w", err)
	}
	return c, nil
}

func orDefault(d, fallback time.Duration) time.Duration {
	if d == 0 {
		return fallback
	}
	return d
}

// Close gives the idle connections back.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return c.kivik.Close()
}

// Addr returns the server's URL without credentials, for messages.
func (c *Client) Addr() string { return c.base }

// Ping fails unless the server answers that it is up.
func (c *Client) Ping(ctx context.Context) error {
	return c.doJSON(ctx, http.MethodGet, "/_up", nil, nil)
}

// path joins segments, each escaped as one.
func path(segments ...string) string {
	var b strings.Builder
	for _, s := range segments {
		b.WriteByte('/')
		// A plus is legal in names and ids; unescaped CouchDB reads it as a space.
		b.WriteString(strings.ReplaceAll(url.PathEscape(s), "+", "%2B"))
	}
	return b.String()
}

// docPath keeps the slash of _design/ and _local/ ids.
func docPath(db, id string) string {
	for _, prefix := range []string{"_design/", "_local/"} {
		if rest, ok := strings.CutPrefix(id, prefix); ok {
			return path(db) + "/" + strings.TrimSuffix(prefix, "/") + path(rest)
		}
	}
	return path(db, id)
}

// doJSON sends a body (raw bytes, or anything that encodes to JSON) and decodes
// the answer into out, within the control time-out.
func (c *Client) doJSON(ctx context.Context, method, target string, body, out any) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	raw, err := c.read(ctx, method, target, body)
	if err != nil {
		return err
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("%w: answer to %s %s is not the JSON it should be", ErrUnavailable, method, target)
	}
	return nil
}

// read returns the whole body of a successful answer.
func (c *Client) read(ctx context.Context, method, target string, body any) ([]byte, error) {
	res, err := c.send(ctx, method, target, body)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, unavailable(method, target, err)
	}
	return raw, nil
}

// send returns a successful answer with its body still to be read.
func (c *Client) send(ctx context.Context, method, target string, body any) (*http.Response, error) {
	var payload io.Reader
	switch b := body.(type) {
	case nil:
	case []byte:
		payload = bytes.NewReader(b)
	case io.Reader:
		payload = b
	default:
		encoded, err := json.Marshal(b)
		if err != nil {
			return nil, fmt.Errorf("encode body of %s %s: %w", method, target, err)
		}
		payload = bytes.NewReader(encoded)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+target, payload)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, target, err)
	}
	req.Header.Set("Accept", "application/json")
	if payload != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.user != "" {
		req.SetBasicAuth(c.user, c.password)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, unavailable(method, target, err)
	}
	if res.StatusCode >= http.StatusBadRequest {
		defer res.Body.Close()
		return nil, answered(method, target, res)
	}
	return res, nil
}

func unavailable(method, target string, err error) error {
	// url.Error repeats method and URL; its cause says what happened.
	var urlErr *url.Error
	if errors.As(err, &urlErr) {
		err = urlErr.Err
	}
	return fmt.Errorf("%w: %s %s: %w", ErrUnavailable, method, target, err)
}

// maxReason bounds what is read of an error's body.
const maxReason = 4096

// answered makes an error of an answer of 400 and above.
func answered(method, target string, res *http.Response) error {
	var body struct{ Error, Reason string }
	raw, _ := io.ReadAll(io.LimitReader(res.Body, maxReason))
	_ = json.Unmarshal(raw, &body) // Without a reason the status has to do.
	return fmt.Errorf("%w: %s %s: %d %s %s", sentinel(res.StatusCode), method, target, res.StatusCode, body.Error, body.Reason)
}

func sentinel(status int) error {
	switch {
	case status == http.StatusNotFound:
		return ErrNotFound
	case status == http.StatusConflict:
		return ErrConflict
	case status == http.StatusPreconditionFailed:
		return ErrExists
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return ErrForbidden
	case status < http.StatusInternalServerError && status != http.StatusRequestTimeout && status != http.StatusTooManyRequests:
		return ErrRejected
	default:
		return ErrUnavailable
	}
}

// fromKivik gives an error of kivik the sentinel of its status. Kivik has no
// status of its own for a lost connection: it says 502.
func fromKivik(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", sentinel(kivik.HTTPStatus(err)), err)
}
