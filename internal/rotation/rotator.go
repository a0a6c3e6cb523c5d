// Package rotation is the cron rolling-db-rotate: it creates each day's database
// before it is needed, switches restaurants from one business day to the next,
// fills core from the legacy database, and routes a company's devices once all
// its restaurants are ready.
package rotation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/manifest"
	"github.com/rollingd/rollingd/internal/run"
)

// Name of the cron.
const Name = "rolling-db-rotate"

// The counters of a run.
const (
	countRestaurants = "restaurants"
	countCreated     = "created"
	countActivated   = "activated"
	countDrained     = "drained"
	countPrewarmed   = "prewarmed"
	countManifests   = "manifests"
	countWarmed      = "warmed_documents"
	countCarried     = "carried_documents"
	countRouted      = "routed"
	// countWaiting: companies that were not routed because one of their restaurants
	// is not ready yet, though nothing failed.
	countWaiting = "waiting"
)

// The steps that a failure names.
const (
	stepLease    = "lease"
	stepPlan     = "plan"
	stepCore     = "core"
	stepToday    = "today"
	stepTomorrow = "tomorrow"
	stepManifest = "manifest"
	stepRecord   = "record"
	stepWarm     = "warm"
	stepCarry    = "carry"
	stepCutover  = "cutover"
)

// CouchDB is what rotation needs of the database server; couch.Client has it.
// Every call may have taken effect although it failed with ErrUnavailable of
// couch, and every one of them may be repeated.
type CouchDB interface {
	manifest.CouchDB
	databases
	documents
}

// databases are the calls that make and look at databases.
type databases interface {
	Create(ctx context.Context, db string) (created bool, err error)
	Info(ctx context.Context, db string) (couch.Info, error)
	Security(ctx context.Context, db string) (couch.Security, error)
	PutSecurity(ctx context.Context, db string, s couch.Security) error
}

// documents are the calls that copy documents from one database to another.
type documents interface {
	Changes(ctx context.Context, db string, opts couch.ChangesOptions) (*couch.Feed, error)
	Revisions(ctx context.Context, db string, refs []couch.Ref, history bool) ([]couch.Revision, error)
	Insert(ctx context.Context, db string, docs [][]byte) ([]couch.Refusal, error)
	Missing(ctx context.Context, db string, revs map[string][]string) (map[string][]string, error)
	Witness(ctx context.Context, db, reader string) (couch.Seq, error)
	PutWitness(ctx context.Context, db, reader string, since couch.Seq) error
}

const (
	defaultWorkers   = 8
	defaultLeaseWait = time.Minute
)

// Options of a rotator; all but the last three are required.
type Options struct {
	Pool   *pgxpool.Pool
	Couch  CouchDB
	Leases *fence.Leases
	// Env is the prefix of all database names, such as prod.
	Env string
	// Log; default slog.Default.
	Log *slog.Logger
	// Workers is how many restaurants are rotated at a time; default 8.
	Workers int
	// LeaseWait is how long to wait for a restaurant that another run works on;
	// default 1m. It should exceed the time that a lease lasts: a run that catches
	// up for a process that died has to wait for the leases of the dead.
	LeaseWait time.Duration
}

func (o Options) validate() error {
	var problems []error
	if o.Pool == nil || o.Couch == nil || o.Leases == nil {
		problems = append(problems, errors.New("pool, CouchDB and leases are required"))
	}
	if !contracts.ValidEnv(o.Env) {
		problems = append(problems, fmt.Errorf("%q is no environment", o.Env))
	}
	return errors.Join(problems...)
}

// Rotator runs the cron. It is safe for concurrent use.
type Rotator struct {
	pool      *pgxpool.Pool
	couch     CouchDB
	leases    *fence.Leases
	manifests *manifest.Publisher
	env       string
	log       *slog.Logger
	workers   int
	leaseWait time.Duration
}

// New returns a rotator.
func New(opts Options) (*Rotator, error) {
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("rotation: %w", err)
	}
	ro := &Rotator{
		pool:      opts.Pool,
		couch:     opts.Couch,
		leases:    opts.Leases,
		manifests: manifest.New(opts.Pool, opts.Couch, opts.Env),
		env:       opts.Env,
		log:       opts.Log,
		workers:   opts.Workers,
		leaseWait: opts.LeaseWait,
	}
	if ro.log == nil {
		ro.log = slog.Default()
	}
	if ro.workers <= 0 {
		ro.workers = defaultWorkers
	}
	if ro.leaseWait <= 0 {
		ro.leaseWait = defaultLeaseWait
	}
	return ro, nil
}

// Run rotates the active restaurants of companies whose rollingDb is on, within
// the run's scope and zone. What goes wrong for one restaurant is noted in the
// run's report and stops no other. Run itself fails only if nothing could be
// begun, with ErrBusinessDay for a day that the scope may not ask for, or if ctx
// has ended.
//
// Steps 1 to 4 are taken for each restaurant, many at a time; what devices wait
// for at five in the morning never waits for a copy. Every step is idempotent:
//
//  1. Core is created and secured, and its design document put; then, after step
//     4, it is warmed from the legacy database, all restaurants in one pass over
//     the feed. A crash after the creation leaves an empty database that admits
//     nobody; the next run adopts it. A crash within the pass leaves documents
//     under the revisions that they have in the legacy database; the next run
//     begins from the last checkpoint and finds them there.
//  2. Today's database, of which the row is entered first. A crash after the row
//     leaves a PREWARMED day without database, which the next run creates. Then,
//     in one transaction, today becomes ACTIVE, the former ACTIVE day DRAINING,
//     and PREWARMED days that passed unused go through both. A crash after it
//     leaves devices on the former day, still mounted and writable, until the
//     next run writes the manifest.
//  3. Tomorrow's database likewise, PREWARMED.
//  4. The manifest, see manifest.Publisher.
//  5. The cutover of a company, see cutOver.
func (ro *Rotator) Run(ctx context.Context, r run.Run) error {
	fleet, err := ro.fleet(ctx, r)
	if err != nil {
		return err
	}
	if err := ro.checkBusinessDay(ctx, fleet, r.Scope.BusinessDay); err != nil {
		return err
	}
	r.Report.Add(countRestaurants, int64(len(fleet)))

	byKey := make(map[string]*member, len(fleet))
	keys := make([]string, 0, len(fleet))
	for _, m := range fleet {
		byKey[m.String()] = m
		keys = append(keys, m.String())
	}
	err = r.Each(ctx, ro.workers, keys, func(ctx context.Context, r run.Run, key string) { ro.rotate(ctx, r, byKey[key]) })
	if err != nil {
		return err
	}
	for _, key := range r.Report.Result().Reached {
		if m := byKey[key]; m != nil {
			m.hasCore = true // Maybe another replica has seen to it.
		}
	}
	ro.copyFromLegacy(ctx, r, warmAndLate(fleet))
	ro.cutOver(ctx, r, fleet)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
