// Package couch is an embedded store that speaks CouchDB's wire protocol, for
// development, demos and tests. kivik and PouchDB take it for CouchDB 3.5: it
// has revision trees and conflicts, the changes feed, attachments, security
// objects, validation functions and purges, with the traps of the real one,
// because code that is only tested against kind answers fails in production.
//
// It is not a product: one process, one writer per database, no clustering, no
// views and no replicator. What it does and how it answers is held against a
// real CouchDB by the conformance suite of this package.
package couch

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/rollingd/rollingd/internal/devstack/couch/store"
)

// Options of a server.
type Options struct {
	// Dir is the data folder; it is made if need be.
	Dir string
	// Addr is where to listen; "" means a free port on loopback.
	Addr string
	// AdminUser and AdminPassword are the one server administrator.
	AdminUser, AdminPassword string
	// ProxySecret turns proxy authentication on; "" leaves it off.
	ProxySecret string
	// NoSync skips fsync: an acknowledged write then survives a crash of the
	// process, but not one of the machine.
	NoSync bool
	// Logger receives what goes wrong inside the server; nil discards it.
	Logger *slog.Logger
}

func (o Options) validate() error {
	var errs []error
	if o.Dir == "" {
		errs = append(errs, errors.New("couch: Dir is empty"))
	}
	if o.AdminUser == "" || o.AdminPassword == "" {
		errs = append(errs, errors.New("couch: AdminUser and AdminPassword are required"))
	}
	return errors.Join(errs...)
}

// Server is a running store.
type Server struct {
	opts       Options
	log        *slog.Logger
	dir        *store.Dir
	config     *config
	validators *validators
	passwords  *passwordCache
	uuid       string
	cookieKey  []byte

	listener net.Listener
	http     *http.Server
	stop     context.CancelFunc // ends waiting feeds
}

// Start opens the data folder, listens, and returns when requests are served.
func Start(opts Options) (*Server, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	if opts.Addr == "" {
		opts.Addr = "127.0.0.1:0"
	}
	s := &Server{
		opts:       opts,
		log:        opts.Logger,
		config:     newConfig(opts),
		validators: newValidators(),
		passwords:  newPasswordCache(),
		uuid:       randomHex(16),
		cookieKey:  []byte(randomHex(16)),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	var err error
	if s.dir, err = store.OpenDir(opts.Dir, store.Options{NoSync: opts.NoSync}); err != nil {
		return nil, fmt.Errorf("couch: %w", err)
	}
	if err := s.dir.Create(usersDB, 2); err != nil && !errors.Is(err, store.ErrDatabaseExists) {
		return nil, errors.Join(fmt.Errorf("couch: %w", err), s.dir.Close())
	}
	if s.listener, err = net.Listen("tcp", opts.Addr); err != nil {
		return nil, errors.Join(fmt.Errorf("couch: %w", err), s.dir.Close())
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.http = &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: time.Minute,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	go func() {
		if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("serve", "error", err)
		}
	}()
	return s, nil
}

// URL returns the address of the server with the administrator's credentials.
func (s *Server) URL() string {
	u := url.URL{Scheme: "http", User: url.UserPassword(s.opts.AdminUser, s.opts.AdminPassword), Host: s.Addr()}
	return u.String()
}

// Addr returns host and port of the listener.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Close ends all feeds, waits a moment for requests that are being answered,
// cuts off the rest and closes the files.
func (s *Server) Close() error {
	s.stop()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.http.Close()
	}
	return errors.Join(err, s.dir.Close())
}

// Handler returns the server's HTTP handler, for tests that put faults in
// front of it.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serve) }

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // It never fails.
	return hex.EncodeToString(b)
}
