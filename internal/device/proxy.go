package device

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	dialTimeout = 5 * time.Second
	// idleConns is how many connections to CouchDB are kept: live replication
	// has one open for each feed of each device.
	idleConns = 256
	// copyBuffer is what one request holds of its answer at a time.
	copyBuffer = 32 << 10
	// answerTime is what is left to answer a write that has reached its limit.
	answerTime = time.Second
	// maxErrorBody bounds what is read of an answer to see what it says.
	maxErrorBody = 4 << 10
)

// Options of a proxy. All are required but Origins.
type Options struct {
	// CouchURL of CouchDB; credentials in it are not used.
	CouchURL string
	// ProxySecret is CouchDB's [chttpd_auth] secret.
	ProxySecret string
	// Env is the prefix of all database names.
	Env    string
	Tokens *Tokens
	View   *View
	// Pool of the ledger, for what devices report.
	Pool *pgxpool.Pool
	// WriteLimit caps the total time of a write, body and answer.
	WriteLimit time.Duration
	// Rate is how many requests a device may make in a second, in the long run.
	Rate int
	// Origins are those of pages that may read the answers; none is fine.
	Origins []string
	Metrics prometheus.Registerer
	Logger  *slog.Logger
}

// Proxy leads devices to the databases of their own restaurant. It streams both
// ways and keeps nothing of what passes.
//
// Whatever it decides, CouchDB decides again: a request is made under the role of
// the device's restaurant alone, and _security of its databases admits no other,
// so that a fault here does not open what belongs to somebody else.
type Proxy struct {
	Options
	couch   *url.URL
	reverse *httputil.ReverseProxy
	limits  *limits
	live    *live
	metrics *metrics
	shut    atomic.Bool
}

// New returns a proxy; Watch has to run beside it.
func New(opts Options) (*Proxy, error) {
	u, err := url.Parse(opts.CouchURL)
	if err != nil || u.Host == "" {
		return nil, errors.New("the CouchDB URL is not of the form http://user:password@host:port")
	}
	u.User = nil
	p := &Proxy{
		Options: opts,
		couch:   u,
		limits:  newLimits(opts.Rate),
		live:    newLive(),
		metrics: newMetrics(opts.Metrics),
	}
	p.reverse = &httputil.ReverseProxy{
		Rewrite:        p.rewrite,
		Transport:      newTransport(),
		FlushInterval:  -1, // A change that waits in a buffer is a till that does not see it.
		BufferPool:     buffers{},
		ModifyResponse: p.modifyResponse,
		ErrorHandler:   p.answerFailure,
		ErrorLog:       slog.NewLogLogger(opts.Logger.Handler(), slog.LevelDebug),
	}
	return p, nil
}

func newTransport() *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		MaxIdleConns:        idleConns,
		MaxIdleConnsPerHost: idleConns,
		IdleConnTimeout:     time.Minute,
		// The answer goes on as CouchDB sent it.
		DisableCompression: true,
	}
}

// Close gives the idle connections back.
func (p *Proxy) Close() {
	p.reverse.Transport.(*http.Transport).CloseIdleConnections()
}

// Covers reports whether a request is the device plane's: by the path as it was
// sent, so that no spelling of it reaches another handler's routes.
func Covers(r *http.Request) bool {
	path := r.URL.EscapedPath()
	return strings.HasPrefix(path, Prefix) || path+"/" == Prefix || path == ReportPath
}

// passage is a request that is let through, with what was decided about it.
type passage struct {
	route  route
	target target
	grant  Grant
}

type passageKey struct{}

func passageOf(r *http.Request) passage { return r.Context().Value(passageKey{}).(passage) }

// ServeHTTP answers a device's request.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	recorded := &recorder{ResponseWriter: w}
	kind := "none"
	defer func() { p.metrics.answered(kind, recorded.status) }()
	if r.ContentLength != 0 {
		// It ends the read of a body that trickles, which the end of a context does
		// not: also of one that is refused, for which the HTTP server waits before it
		// answers. It comes after the limit, or the device would be cut off without an
		// answer.
		start := time.Now()
		_ = http.NewResponseController(w).SetReadDeadline(start.Add(p.WriteLimit + answerTime))
	}
	if p.answerCORS(recorded, r) {
		return
	}
	if r.URL.EscapedPath() == ReportPath {
		kind = "report"
		p.takeReport(recorded, r)
		return
	}
	// PouchDB asks the path above a database who the server is.
	if path := r.URL.EscapedPath(); (path == Prefix || path+"/" == Prefix) && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		writeJSON(recorded, http.StatusOK, map[string]string{"rollingd": "Welcome"})
		return
	}
	pass, refused := p.check(r)
	if refused != nil {
		p.refuse(recorded, r, refused)
		return
	}
	kind, _, _ = strings.Cut(pass.route.suffix, "_")
	done, ok := p.limits.take(pass.grant.Identity)
	if !ok {
		p.refuse(recorded, r, tooMany())
		return
	}
	defer done()
	p.forward(recorded, r, pass)
}

// feeds that devices read. CouchDB also has eventsource, and ends it twice: the
// second end would be taken for the answer to another device's request, as the
// connection serves that next.
var feeds = []string{"normal", "longpoll", "continuous"}

// check decides on everything that can be decided without CouchDB.
func (p *Proxy) check(r *http.Request) (passage, *refusal) {
	if !p.View.Loaded() || p.shut.Load() {
		return passage{}, later(refusedNotReady, "the server starts or stops; try again")
	}
	grant, refused := p.authenticate(r)
	if refused != nil {
		return passage{}, refused
	}
	parsed, refused := parseRoute(r.Method, r.URL.EscapedPath())
	if refused != nil {
		return passage{}, refused
	}
	if r.Header.Get("Upgrade") != "" || headerHas(r.Header, "Connection", "upgrade") {
		return passage{}, badRequest(refusedRoute, "connections are not upgraded here")
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return passage{}, badRequest(refusedRoute, "the query cannot be read")
	}
	// CouchDB acknowledges such a write before it has stored it.
	if query.Has("batch") {
		return passage{}, badRequest(refusedRoute, "batch mode acknowledges what is not stored yet; leave it out")
	}
	for _, feed := range query["feed"] {
		if !slices.Contains(feeds, feed) {
			return passage{}, badRequest(refusedRoute, "the feed is one of "+strings.Join(feeds, ", "))
		}
	}
	where, refused := p.View.admit(grant, parsed.suffix, p.Env)
	if refused != nil {
		return passage{}, refused
	}
	if where.deliverOnly && !parsed.delivers {
		return passage{}, forbidden(refusedRouted, "the company's devices use core and the day databases; what is left in a legacy one can still be pushed")
	}
	return passage{route: parsed, target: where, grant: grant}, nil
}

func (p *Proxy) authenticate(r *http.Request) (Grant, *refusal) {
	all := r.Header.Values("Authorization")
	scheme, raw, _ := strings.Cut(strings.Join(all, ","), " ")
	if len(all) != 1 || !strings.EqualFold(scheme, "Bearer") {
		return Grant{}, unauthorized(refusedToken, "send the device token as \"Authorization: Bearer <token>\"")
	}
	grant, err := p.Tokens.Verify(r.Context(), strings.TrimSpace(raw), p.View.Now())
	switch {
	case errors.Is(err, ErrNoKeys):
		return Grant{}, later(refusedNotReady, err.Error())
	case errors.Is(err, ErrTokenExpired):
		return Grant{}, unauthorized(refusedExpired, err.Error())
	case err != nil:
		return Grant{}, unauthorized(refusedToken, err.Error())
	}
	return grant, nil
}

// forward streams the request to CouchDB and the answer back. A write ends at
// its limit, whatever trickles in; a read ends with the token, or as soon as the
// view would not admit it any more.
func (p *Proxy) forward(w *recorder, r *http.Request, pass passage) {
	limit := p.WriteLimit
	ctx, cancel := context.WithCancelCause(context.WithValue(r.Context(), passageKey{}, pass))
	defer cancel(nil)
	control := http.NewResponseController(w)
	if !pass.route.writes {
		limit = pass.grant.ExpiresAt.Sub(p.View.Now())
		r.Body = &body{ReadCloser: r.Body, ended: func() { _ = control.SetReadDeadline(time.Time{}) }}
	}
	defer time.AfterFunc(limit, func() { cancel(errLimit) }).Stop()
	defer p.live.enter(pass, cancel)()
	// The view may have changed since it was asked, and nobody looked here yet.
	p.expel(pass, cancel)

	w.written = func() {
		start := time.Now()
		_ = control.SetWriteDeadline(start.Add(clientStall))
	}
	defer func() { _ = control.SetWriteDeadline(time.Time{}) }()
	p.reverse.ServeHTTP(w, r.WithContext(ctx))
}

// Causes of a request's end.
var (
	errLimit       = errors.New("the request has lasted as long as it may")
	errNotAdmitted = errors.New("the device is not admitted any more")
)

// body notices its end: the time limit of a body is not one of the answer.
type body struct {
	io.ReadCloser
	ended func()
}

func (b *body) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	if errors.Is(err, io.EOF) {
		b.ended()
	}
	return n, err
}

// passedOn are the headers of a request that mean something to replication. All
// others stay here: credentials, forwarded addresses, overrides of the method,
// and whatever CouchDB is configured to take for an identity.
var passedOn = []string{
	"Accept", "Accept-Encoding", "Content-Encoding", "Content-Length", "Content-Type",
	"If-Match", "If-None-Match", "Range", "User-Agent",
}

func (p *Proxy) rewrite(r *httputil.ProxyRequest) {
	pass := passageOf(r.In)
	header := make(http.Header, len(passedOn)+3)
	for _, name := range passedOn {
		if values := r.In.Header.Values(name); len(values) > 0 {
			header[name] = values
		}
	}
	p.identify(header, pass.grant.user(), pass.target.roles)
	r.Out.Header = header
	r.Out.Host = p.couch.Host
	r.Out.URL = p.couch.JoinPath()
	r.Out.URL.RawQuery = r.In.URL.RawQuery
	// Both, so that the escapes stay as they were composed.
	r.Out.URL.RawPath = strings.TrimSuffix(p.couch.EscapedPath(), "/") + pass.route.path(pass.target.name)
	r.Out.URL.Path, _ = url.PathUnescape(r.Out.URL.RawPath) // What escape has made can be read.
}

// identify makes the request one of a user with these roles.
func (p *Proxy) identify(header http.Header, user string, roles []string) {
	mac := hmac.New(sha256.New, []byte(p.ProxySecret))
	mac.Write([]byte(user))
	header.Set("X-Auth-CouchDB-UserName", user)
	header.Set("X-Auth-CouchDB-Roles", strings.Join(roles, ","))
	header.Set("X-Auth-CouchDB-Token", hex.EncodeToString(mac.Sum(nil)))
}

// modifyResponse keeps from the device what is CouchDB's own affair, and answers
// of CouchDB that would mislead it.
func (p *Proxy) modifyResponse(res *http.Response) error {
	for _, name := range []string{"Set-Cookie", "Location", "Www-Authenticate"} {
		res.Header.Del(name)
	}
	switch res.StatusCode {
	case http.StatusUnauthorized:
		// The token is good: it is CouchDB that does not know the proxy.
		return errNotTrusted
	case http.StatusNotFound, http.StatusForbidden:
		return checkReason(res)
	}
	return nil
}

// Answers of CouchDB in place of which a device gets another one.
var (
	errNotTrusted = errors.New("CouchDB does not accept the proxy's authentication; rollingd doctor says which setting is missing")
	errNoDatabase = errors.New("the database is not there")
	errClosed     = errors.New("_security of the database does not admit the device")
)

// checkReason tells a document that is not there from a database, which PouchDB
// would create, and a document that is refused from a database that is closed.
func checkReason(res *http.Response) error {
	if res.StatusCode == http.StatusNotFound && passageOf(res.Request).route.onDatabase {
		return errNoDatabase
	}
	read, err := io.ReadAll(io.LimitReader(res.Body, maxErrorBody))
	if err != nil {
		return err
	}
	var said struct{ Reason string }
	_ = json.Unmarshal(read, &said) // An answer that is not of this kind goes on as it is.
	switch said.Reason {
	case "Database does not exist.", "no_db_file":
		return errNoDatabase
	case "You are not allowed to access this db.":
		return errClosed
	}
	rest := res.Body
	res.Body = &struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(read), rest), rest}
	return nil
}

// answerFailure answers a request that CouchDB did not, or not as it should.
func (p *Proxy) answerFailure(w http.ResponseWriter, r *http.Request, err error) {
	recorded, _ := w.(*recorder)
	refused := later(refusedUnavailable, "CouchDB is not reachable; documents stay on the device until it is")
	cause := context.Cause(r.Context())
	switch {
	case errors.Is(cause, errLimit) && !passageOf(r).route.writes:
		refused = unauthorized(refusedExpired, ErrTokenExpired.Error())
	case errors.Is(cause, errLimit), errors.Is(err, os.ErrDeadlineExceeded):
		refused = &refusal{status: http.StatusRequestTimeout, Error: "timeout", Reason: "the request took longer than it may", Code: refusedTimeout}
	case errors.Is(cause, errNotAdmitted):
		refused = later(refusedNotReady, "the device's databases have changed; try again")
	case r.Context().Err() != nil:
		// Whoever still listens must not take the end of the handler for a 200.
		recorded.status = statusHungUp
		panic(http.ErrAbortHandler)
	case errors.Is(err, errNoDatabase):
		refused = later(refusedUnavailable, "the database is not there at the moment; documents stay on the device")
		p.Logger.WarnContext(r.Context(), "database of a device is missing", "day_db", passageOf(r).target.name)
	case errors.Is(err, errClosed):
		refused = forbidden(refusedClosed, "the database was closed a moment ago, or does not admit this restaurant's devices; documents stay on the device")
	default:
		p.Logger.WarnContext(r.Context(), "request of a device failed", "day_db", passageOf(r).target.name, "error", err)
	}
	// What is left of the body is not waited for.
	recorded.Header().Set("Connection", "close")
	p.refuse(recorded, r, refused)
}

// statusHungUp stands in metrics for a client that did not wait.
const statusHungUp = 499

func (p *Proxy) refuse(w *recorder, r *http.Request, refused *refusal) {
	p.Logger.DebugContext(r.Context(), "request of a device refused", "code", refused.Code, "status", refused.status)
	if refused.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(refused.retryAfter.Seconds())))
	}
	if refused.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="rollingd"`)
	}
	writeJSON(w, refused.status, refused)
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	// The device has hung up if this fails.
	_ = json.NewEncoder(w).Encode(value)
}

func headerHas(h http.Header, name, token string) bool {
	for _, value := range h.Values(name) {
		for part := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.TrimSpace(part), token) {
				return true
			}
		}
	}
	return false
}

// buffers are those of the answers that are under way.
type buffers struct{}

var bufferPool = sync.Pool{New: func() any { return new([copyBuffer]byte) }}

func (buffers) Get() []byte { return bufferPool.Get().(*[copyBuffer]byte)[:] }

func (buffers) Put(b []byte) { bufferPool.Put((*[copyBuffer]byte)(b)) }

// AnswerOff answers a device while the plane is off: its software tries again.
func AnswerOff(w http.ResponseWriter) {
	refused := later(refusedNotReady, "the device plane is off on this server; set ROLLINGD_DEVICE_JWT_SECRET or ROLLINGD_DEVICE_JWKS_URL")
	writeJSON(w, refused.status, refused)
}
