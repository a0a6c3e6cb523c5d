// Package project makes what the primary has applied visible to tills: orders and
// payments appear as documents in the day databases of their restaurant.
package project

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg"
)

// CouchDB holds the day databases; *couch.Client has it, with the server's rights.
type CouchDB interface {
	// Doc returns the winning revision, or couch.ErrNotFound.
	Doc(ctx context.Context, db, id, rev string) ([]byte, error)
	// Put writes a document, which holds its _rev unless it is new;
	// couch.ErrConflict when another revision is there, couch.ErrForbidden when
	// the day is sealed.
	Put(ctx context.Context, db, id string, doc any) error
	Security(ctx context.Context, db string) (couch.Security, error)
}

// LeaseName is the lease under which one process projects at a time, so that each
// restaurant has one writer.
const LeaseName = "continuity-project"

const (
	// parallel is how many restaurants are written to at the same time.
	parallel = 8
	// batch is how many documents are bound to their day, and marked, at once.
	batch = 100
	// putTries bounds how often a document is read again because a till was faster.
	putTries = 5
)

// Options of a projector; all are required.
type Options struct {
	Pool    *pgxpool.Pool
	Couch   CouchDB
	Leases  *fence.Leases
	Metrics prometheus.Registerer
	Logger  *slog.Logger
}

// Projector projects. RunOnce may be called by several processes; one of them
// works.
type Projector struct {
	Options
	written prometheus.Counter
	waiting prometheus.Gauge
}

// New returns a projector.
func New(opts Options) (*Projector, error) {
	if opts.Pool == nil || opts.Couch == nil || opts.Leases == nil || opts.Metrics == nil || opts.Logger == nil {
		return nil, errors.New("a projector needs a pool, CouchDB, leases, metrics and a logger")
	}
	p := &Projector{
		Options: opts,
		written: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "continuity_documents_projected_total",
			Help: "Orders and payments that were written to day databases.",
		}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "continuity_documents_waiting",
			Help: "Orders and payments that are not in a day database after the last run.",
		}),
	}
	opts.Metrics.MustRegister(p.written, p.waiting)
	return p, nil
}

// Result is what a run has done.
type Result struct {
	Written int
	// Waiting have no ACTIVE day, a day that is just being sealed, or a CouchDB
	// that did not take them. The next run tries again.
	Waiting int
	// Elsewhere: another process projects.
	Elsewhere bool
}

// RunOnce writes what is not written. Orders and payments are taken as they are
// now, whatever has led there:
//
//  1. each is bound to a day in Postgres: the one in which it is, or the ACTIVE
//     one; a day that is sealed is left for the ACTIVE one
//  2. the document is written, under an id that is made of the order's
//  3. the version that was written is marked
//
// A crash behind 1 leaves a binding, which the next run keeps although the day
// has moved on meanwhile: a document is never in two days that are open. A crash
// behind 2 repeats it, and the version within the document says that it is there.
// One restaurant's failure does not stop the others; the errors are joined.
func (p *Projector) RunOnce(ctx context.Context) (Result, error) {
	var r Result
	err := p.Leases.Hold(ctx, LeaseName, func(ctx context.Context, lease fence.Lease) error {
		w := &work{Projector: p, lease: lease, result: &r}
		return w.run(ctx)
	})
	if errors.Is(err, fence.ErrHeld) {
		return Result{Elsewhere: true}, nil
	}
	p.written.Add(float64(r.Written))
	p.waiting.Set(float64(r.Waiting))
	if err != nil {
		return r, fmt.Errorf("project: %w", err)
	}
	return r, nil
}

// work is one run under one lease.
type work struct {
	*Projector
	lease fence.Lease

	mu     sync.Mutex
	result *Result
}

func (w *work) run(ctx context.Context) error {
	// What is in no day, of a restaurant that has no ACTIVE one, may be years of
	// orders. It is counted, and not touched.
	rows, err := w.Pool.Query(ctx, `
		select company_id, restaurant_id
		from day_databases d
		where state = 'ACTIVE'
		  and (exists (select from orders o
		               where (o.company_id, o.restaurant_id) = (d.company_id, d.restaurant_id) and o.projected_version < o.version)
		    or exists (select from payments p
		               where (p.company_id, p.restaurant_id) = (d.company_id, d.restaurant_id) and p.projected_version < p.version))
		union
		select company_id, restaurant_id from orders where projected_version < version and day_database_id is not null
		union
		select company_id, restaurant_id from payments where projected_version < version and day_database_id is not null`)
	if err != nil {
		return fmt.Errorf("list restaurants: %w", pg.Translate(err))
	}
	restaurants, err := pgx.CollectRows(rows, pgx.RowToStructByPos[daydb.Restaurant])
	if err != nil {
		return fmt.Errorf("list restaurants: %w", pg.Translate(err))
	}
	var (
		group errgroup.Group
		errs  = make([]error, len(restaurants))
	)
	group.SetLimit(parallel)
	for i, r := range restaurants {
		group.Go(func() error {
			if err := w.restaurant(ctx, r); err != nil {
				errs[i] = fmt.Errorf("%s: %w", r, err)
			}
			return nil
		})
	}
	_ = group.Wait() // The errors stand in errs.
	unbound, err := w.unbound(ctx)
	w.result.Waiting += unbound
	return errors.Join(append(errs, err)...)
}

// mostCounted bounds what is counted of orders, and of payments, that no day can
// take: more of them say no more.
const mostCounted = 10_000

// unbound counts what is in no day after a run.
func (w *work) unbound(ctx context.Context) (n int, err error) {
	err = w.Pool.QueryRow(ctx, `
		select (select count(*) from (
		          select from orders where projected_version < version and day_database_id is null limit $1) o)
		     + (select count(*) from (
		          select from payments where projected_version < version and day_database_id is null limit $1) p)`, mostCounted).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count what is in no day: %w", pg.Translate(err))
	}
	return n, nil
}

func (w *work) restaurant(ctx context.Context, r daydb.Restaurant) error {
	s := &shop{work: w, Restaurant: r, verified: make(map[string]bool)}
	var errs []error
	if err := s.behind(ctx); errors.Is(err, errLedgerBehind) {
		s.closed = true
		errs = append(errs, err)
	} else if err != nil {
		return err
	}
	for _, k := range kinds {
		if err := s.passOver(ctx, k); err != nil {
			return errors.Join(append(errs, err)...)
		}
		for after := ""; ctx.Err() == nil; {
			items, err := s.bind(ctx, k, after)
			if err != nil {
				return errors.Join(append(errs, err)...)
			}
			if len(items) == 0 {
				break
			}
			after = items[len(items)-1].ID
			written, err := s.write(ctx, k, items)
			errs = append(errs, err, s.mark(ctx, k, written))
			w.mu.Lock()
			w.result.Written += len(written)
			w.result.Waiting += len(items) - len(written)
			w.mu.Unlock()
		}
	}
	return errors.Join(errs...)
}

// shop is the one writer of a restaurant's documents.
type shop struct {
	*work
	daydb.Restaurant
	// closed: no day takes what is in none, since the ledger is behind.
	closed bool
	// verified are the databases that carry their day's marker.
	verified map[string]bool
}

// write writes each document, and returns those that are in their day now. The
// first error that concerns all of them ends it.
func (s *shop) write(ctx context.Context, k kind, items []item) ([]item, error) {
	var (
		written []item
		errs    []error
	)
	for _, it := range items {
		if it.Day == nil {
			continue
		}
		err := s.one(ctx, k, it)
		switch {
		case err == nil:
			written = append(written, it)
		case errors.Is(err, couch.ErrForbidden):
			// The day is being sealed. Once it is, the next run leaves it.
			s.Logger.InfoContext(ctx, "day refuses a document", "day_db", it.Day.Name, "error", err)
		case errors.Is(err, couch.ErrUnavailable), ctx.Err() != nil:
			return written, errors.Join(append(errs, err)...)
		default:
			errs = append(errs, err)
		}
	}
	return written, errors.Join(errs...)
}

// errForeign is a database that does not carry its day's marker.
var errForeign = errors.New("the database under this name is not the one in the ledger")

func (s *shop) verify(ctx context.Context, d *day) error {
	if s.verified[d.Name] {
		return nil
	}
	security, err := s.Couch.Security(ctx, d.Name)
	if err != nil {
		return fmt.Errorf("security of %s: %w", d.Name, err)
	}
	if !security.Marked(d.Generation) {
		return fmt.Errorf("%s: %w", d.Name, errForeign)
	}
	s.verified[d.Name] = true
	return nil
}

// one makes sure that the document shows the version, or a later one.
func (s *shop) one(ctx context.Context, k kind, it item) error {
	if err := s.verify(ctx, it.Day); err != nil {
		return err
	}
	id := k.docID(it.ID)
	for range putTries {
		present, err := s.Couch.Doc(ctx, it.Day.Name, id, "")
		if err != nil && !errors.Is(err, couch.ErrNotFound) {
			return fmt.Errorf("read a document of %s: %w", it.Day.Name, err)
		}
		doc, err := k.merge(present, it)
		if err != nil || doc == nil {
			return err
		}
		body, err := json.Marshal(doc)
		if err != nil {
			return fmt.Errorf("encode a document: %w", err)
		}
		err = s.Couch.Put(ctx, it.Day.Name, id, body)
		if errors.Is(err, couch.ErrConflict) {
			continue // A till has written it meanwhile.
		}
		if err != nil {
			return fmt.Errorf("write a document of %s: %w", it.Day.Name, err)
		}
		return nil
	}
	return fmt.Errorf("write a document of %s: %w, %d times", it.Day.Name, couch.ErrConflict, putTries)
}
