package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"time"

	"github.com/rollingd/rollingd/internal/app"
	"github.com/rollingd/rollingd/internal/daemon"
	"github.com/rollingd/rollingd/internal/devstack"
)

const (
	couchVariable = "ROLLINGD_COUCHDB_URL"
	// proxySecretVariable is the secret of a given CouchDB; a private one is
	// started with another at each start.
	proxySecretVariable = "ROLLINGD_COUCHDB_PROXY_SECRET"
	// standStopTimeout bounds the stop of a server on stores for development.
	standStopTimeout = 15 * time.Second
)

// stand is a server with the stores that it stands on, for dev and demo.
type stand struct {
	*devstack.Stack
	proxySecret string
	// given says that a store is not private to this process.
	given  bool
	server *app.App
}

// startStores starts the stores that the environment does not give.
func (c *cli) startStores(ctx context.Context, dir string) (*stand, error) {
	s := &stand{proxySecret: c.getenv(proxySecretVariable)}
	opts := devstack.StackOptions{
		Dir:         dir,
		DatabaseURL: c.getenv(databaseVariable),
		CouchDBURL:  c.getenv(couchVariable),
		Durable:     dir != "",
	}
	if err := checkGiven(opts.DatabaseURL, opts.CouchDBURL); err != nil {
		return nil, err
	}
	s.given = opts.DatabaseURL != "" || opts.CouchDBURL != ""
	if opts.CouchDBURL == "" {
		s.proxySecret = randomToken()
	}
	opts.ProxySecret = s.proxySecret
	var err error
	s.Stack, err = devstack.StartStack(ctx, opts)
	return s, err
}

// checkGiven refuses stores of the environment that no server can use, before
// private ones are started beside them.
func checkGiven(databaseURL, couchURL string) error {
	_, err := app.New(app.Options{
		Env:         devEnv,
		DatabaseURL: cmp.Or(databaseURL, "postgres://127.0.0.1/postgres"),
		CouchURL:    cmp.Or(couchURL, "http://admin:secret@127.0.0.1:5984"),
		AdminTokens: "dev=destroyer:" + randomToken(),
	})
	if invalid := (*daemon.InvalidError)(nil); errors.As(err, &invalid) {
		return wrongSettings(problemsOf(invalid, nil, variableOf))
	}
	return err
}

// serve starts the server on the stores; opts need neither of them.
func (s *stand) serve(ctx context.Context, opts app.Options) error {
	opts.CouchURL = s.CouchDBURL
	if opts.DatabaseURL == "" {
		opts.DatabaseURL = s.DatabaseURL
	}
	opts.Version = versionText()
	server, err := app.New(opts)
	if err != nil {
		return err
	}
	if err := server.Start(ctx); err != nil {
		return hintDatabase(err)
	}
	s.server = server
	return nil
}

// stop ends the server and then the stores. The context that has ended is
// usually the reason to stop, so the stop has time of its own.
func (s *stand) stop(ctx context.Context, beforeStores func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), standStopTimeout)
	defer cancel()
	var errs []error
	if s.server != nil {
		errs = append(errs, s.server.Stop(ctx))
	}
	if beforeStores != nil {
		errs = append(errs, beforeStores(ctx))
	}
	return errors.Join(append(errs, s.Stop())...)
}

// quietLog writes what went wrong, and nothing else.
func (c *cli) quietLog() *slog.Logger {
	return slog.New(slog.NewTextHandler(c.errOut, &slog.HandlerOptions{Level: slog.LevelError}))
}

// randomToken is 128 random bits.
func randomToken() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // It never fails.
	return hex.EncodeToString(b[:])
}
