package devstack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/rollingd/rollingd/internal/devstack/couch"
)

// ErrInUse is returned for a data folder that another process has started its stores on.
var ErrInUse = errors.New("another process uses this data folder")

// StackOptions of all stores together.
type StackOptions struct {
	// Dir holds the data of the private stores. It is made if it does not exist; one that a former stack left is used
	// again, data and all. Empty means temporary folders, removed by Stop.
	Dir string
	// DatabaseURL and CouchDBURL name stores that run already, the latter with an administrator's credentials; each one
	// that is "" is started as a private one.
	DatabaseURL, CouchDBURL string
	// ProxySecret is the secret for proxy authentication of a private CouchDB: letters, digits and "-._~".
	ProxySecret string
	// Durable makes writes survive a crash of the machine; without it they survive one of the processes.
	Durable bool
	// Logger gets starts and stops; nil discards them.
	Logger *slog.Logger
}

// Stack is all the stores that rollingd needs.
type Stack struct {
	// DatabaseURL and CouchDBURL are where the stores answer, with credentials.
	DatabaseURL, CouchDBURL string
	// Postgres and CouchDB say for people which stores these are.
	Postgres, CouchDB string

	stops []func() error
}

// StartStack starts the stores that are not given: a private Postgres; and a private node of the installed Apache
// CouchDB, or, if none is installed, the embedded store. A data folder keeps the kind of CouchDB that it was begun with.
// ctx bounds the start only. Whatever was started is stopped again when a later start fails.
func StartStack(ctx context.Context, opts StackOptions) (_ *Stack, err error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Stack{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	if opts.Dir != "" {
		if err := s.lock(opts.Dir); err != nil {
			return nil, err
		}
	}
	if err := s.startPostgres(ctx, opts); err != nil {
		return nil, err
	}
	if err := s.startCouchDB(ctx, opts); err != nil {
		return nil, err
	}
	return s, nil
}

// Stop ends the private stores, the last one started first, and returns when no process of them is left. Stopping twice
// is no error.
func (s *Stack) Stop() error {
	var errs []error
	for _, stop := range slices.Backward(s.stops) {
		errs = append(errs, stop())
	}
	s.stops = nil
	return errors.Join(errs...)
}

// lock keeps a second process off the folder. The kernel lifts the lock when this process ends, however it does.
func (s *Stack) lock(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = ErrInUse
		}
		return errors.Join(fmt.Errorf("%s: %w", dir, err), f.Close())
	}
	s.stops = append(s.stops, f.Close)
	return nil
}

func (s *Stack) startPostgres(ctx context.Context, opts StackOptions) error {
	if opts.DatabaseURL != "" {
		s.DatabaseURL, s.Postgres = opts.DatabaseURL, "the given Postgres"
		return nil
	}
	pg, err := StartPostgres(ctx, PostgresOptions{
		Dir:     subfolder(opts.Dir, "postgres"),
		Durable: opts.Durable,
		Logger:  opts.Logger,
	})
	if err != nil {
		return err
	}
	s.DatabaseURL, s.Postgres = pg.DSN(), "a private Postgres"
	s.stops = append(s.stops, pg.Stop)
	return nil
}

// The administrator of a private CouchDB. The password is another one at every start.
const couchDBAdmin = "admin"

func (s *Stack) startCouchDB(ctx context.Context, opts StackOptions) error {
	if opts.CouchDBURL != "" {
		s.CouchDBURL, s.CouchDB = opts.CouchDBURL, "the given CouchDB"
		return nil
	}
	embedded := subfolder(opts.Dir, "couch-embedded")
	_, installed := InstalledCouchDB()
	if installed && !exists(embedded) {
		node, err := StartCouchDB(ctx, CouchDBOptions{
			Dir:           subfolder(opts.Dir, "couchdb"),
			AdminUser:     couchDBAdmin,
			AdminPassword: randomHex(),
			ProxySecret:   opts.ProxySecret,
			Logger:        opts.Logger,
		})
		if err != nil {
			return err
		}
		s.CouchDBURL, s.CouchDB = node.URL(), "a private Apache CouchDB"
		s.stops = append(s.stops, node.Stop)
		return nil
	}
	if node := subfolder(opts.Dir, "couchdb"); exists(node) {
		return fmt.Errorf("%s was begun with an Apache CouchDB, and none is installed any more: install it, or choose another data folder", opts.Dir)
	}
	return s.startEmbedded(embedded, opts)
}

func (s *Stack) startEmbedded(dir string, opts StackOptions) error {
	if dir == "" {
		temporary, err := os.MkdirTemp("", "rollingd-couch-")
		if err != nil {
			return err
		}
		s.stops = append(s.stops, func() error { return os.RemoveAll(temporary) })
		dir = temporary
	}
	server, err := couch.Start(couch.Options{
		Dir:           dir,
		AdminUser:     couchDBAdmin,
		AdminPassword: randomHex(),
		ProxySecret:   opts.ProxySecret,
		NoSync:        !opts.Durable,
		Logger:        opts.Logger,
	})
	if err != nil {
		return err
	}
	s.CouchDBURL, s.CouchDB = server.URL(), "the embedded CouchDB-compatible store"
	s.stops = append(s.stops, server.Close)
	return nil
}

// subfolder of the data folder; "" of a temporary one.
func subfolder(dir, name string) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, name)
}

func exists(path string) bool {
	if path == "" {
		return false
	}
	_, err := os.Stat(path)
	return err == nil
}
