// Package socket tells connected devices what concerns them, over Socket.IO 4.
//
// A device connects to /socket.io/ with its token in the handshake, as
// auth: {token}. A token that does not hold is answered by connect_error, whose
// data is {code: "invalid" | "expired" | "unavailable"}, before anything is
// joined. Websocket alone works behind any balancer; polling, which the client
// begins with unless told otherwise, needs one that keeps a device on a replica.
//
//	event             from    payload
//	sdk:init:ready    server  {flags, manifest}: all there is to know; manifest is null before the first one was written
//	sdk:updates       server  {flags?, manifest?}: whichever changed, each as a whole
//	sdk:auth          device  {token}: a fresh token of the same device; acknowledged by {ok} or {ok: false, code}
//	sdk:auth:expired  server  {graceSeconds}: without sdk:auth in that time the device is disconnected, and it is told nothing meanwhile
//	sdk:auth:revoked  server  nothing; the device is disconnected
//
// After sdk:auth has answered sdk:auth:expired comes sdk:init:ready again. Flags
// have the canonical shape, the manifest that of day_manifest in core.
package socket

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	socketio "github.com/zishang520/socket.io/servers/socket/v3"
	"github.com/zishang520/socket.io/v3/pkg/types"

	"github.com/rollingd/rollingd/internal/daydb"
)

// The events.
const (
	eventReady   = "sdk:init:ready"
	eventUpdates = "sdk:updates"
	eventAuth    = "sdk:auth"
	eventExpired = "sdk:auth:expired"
	eventRevoked = "sdk:auth:revoked"
)

const (
	// writeLimit ends a connection whose device does not read: until then no
	// more than the updates of that time are kept for it.
	writeLimit = 10 * time.Second
	// connectLimit is how long a connection may stay without a token, and how long a
	// body may take.
	connectLimit = 10 * time.Second
	// admitTimeout bounds the look at one token.
	admitTimeout = 5 * time.Second
	// maxMessage is the most that a device may send at once: a token.
	maxMessage = 16 << 10
	// defaultGrace is how long a device whose token has expired may take to send
	// a fresh one.
	defaultGrace = 10 * time.Second
)

// Sentinels of tokens.
var (
	// ErrExpired: the token was good once.
	ErrExpired = errors.New("the token has expired")
	// ErrRefused: the token is none, or was revoked.
	ErrRefused = errors.New("the token is refused")
)

// Pass is what a token says that holds.
type Pass struct {
	daydb.Restaurant
	DeviceID string
	// IssuedAt and ExpiresAt are times of the clock that the tokens go by.
	IssuedAt  time.Time
	ExpiresAt time.Time
}

// same reports whether two passes name one device.
func (p Pass) same(other Pass) bool {
	return p.Restaurant == other.Restaurant && p.DeviceID == other.DeviceID
}

// Tokens judges device tokens.
type Tokens interface {
	// Admit returns what a token says: ErrExpired, ErrRefused, or another error
	// when it cannot be judged now.
	Admit(ctx context.Context, token string) (Pass, error)
	// Left returns how long a token still holds that was admitted: ErrExpired, or
	// ErrRefused once it was revoked. It waits for nothing, since it is asked of
	// many at a time. A revocation has to count before Server.Revoked is called.
	Left(p Pass) (time.Duration, error)
}

// Source knows what devices are told.
type Source interface {
	// Load returns the states of those of the restaurants that exist, as of now.
	Load(ctx context.Context, restaurants []daydb.Restaurant) (map[daydb.Restaurant]State, error)
}

// anyOrigin admits pages of every origin: a browser does not send a token of its
// own accord, as it would a cookie.
const anyOrigin = "*"

// Options of the server; all but Origins and Grace are required.
type Options struct {
	Tokens  Tokens
	Source  Source
	Metrics prometheus.Registerer
	Logger  *slog.Logger
	// Origins are those of pages that may connect, * for all; without any, only
	// this server's own may, and what is no page.
	Origins []string
	// Grace is how long a device whose token has expired may take to send a
	// fresh one; 0 is 10 s.
	Grace time.Duration
}

// Server holds the connections of devices. It is an http.Handler for /socket.io/.
type Server struct {
	Options
	io      *socketio.Server
	handler http.Handler
	metrics *metrics
	rooms   *rooms
	closed  atomic.Bool
	cancel  context.CancelFunc
	ended   sync.WaitGroup
}

// New returns a server that takes connections until Close.
func New(opts Options) *Server {
	if opts.Grace == 0 {
		opts.Grace = defaultGrace
	}
	s := &Server{Options: opts, metrics: newMetrics(opts.Metrics), rooms: newRooms()}
	io := socketio.DefaultServerOptions()
	io.SetServeClient(false)
	io.SetConnectTimeout(connectLimit)
	io.SetMaxHttpBufferSize(maxMessage)
	switch {
	case slices.Contains(opts.Origins, anyOrigin):
		io.SetCors(&types.Cors{Origin: anyOrigin})
	case len(opts.Origins) > 0:
		io.SetCors(&types.Cors{Origin: opts.Origins})
	}
	s.io = socketio.NewServer(nil, io)
	s.io.Use(s.admit)
	_ = s.io.On("connection", func(args ...any) { s.connected(args[0].(*socketio.Socket)) })
	s.handler = s.io.ServeHandler(nil)

	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.ended.Go(func() { s.publish(ctx) })
	return s
}

// ServeHTTP serves a request of the protocol.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.closed.Load() {
		http.Error(w, "the server is being stopped", http.StatusServiceUnavailable)
		return
	}
	if r.ContentLength != 0 {
		// The HTTP server, too, reads what is left of it before it answers.
		start := time.Now()
		_ = http.NewResponseController(w).SetReadDeadline(start.Add(connectLimit))
	}
	s.handler.ServeHTTP(&response{ResponseWriter: w}, r)
}

// Changed says that what the devices of a restaurant are told may have changed.
// No restaurant means all of the company's, no company everybody's.
func (s *Server) Changed(company, restaurant string) { s.rooms.mark(company, restaurant) }

// Revoked says that tokens of a restaurant may have been revoked; names as in
// Changed. Their devices' tokens have been judged again when it returns.
func (s *Server) Revoked(company, restaurant string) {
	for _, d := range s.rooms.devices(company, restaurant) {
		s.recheck(d)
	}
}

// Close ends all connections; the devices connect again to another replica, or
// to this one's successor.
func (s *Server) Close(ctx context.Context) error {
	if s.closed.Swap(true) {
		return nil
	}
	s.cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.io.Close(nil)
		s.ended.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
