package pg

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

// ErrNewerSchema means that the database holds a migration that this binary does not know: a newer rollingd has
// migrated it. What the older one would do to such a schema nobody has tested.
var ErrNewerSchema = errors.New("database was migrated by a newer rollingd")

// migrationLockPoll is the pause between two tries for the migration lock.
const migrationLockPoll = 100 * time.Millisecond

// Migrations is one forward-only sequence of migration files. The files lie in the root of FS and are named
// NNN_name.sql with consecutive numbers from First on. Their content carries goose's comments ("-- +goose Up").
type Migrations struct {
	FS fs.FS
	// Table records which migrations were applied. Every sequence in a database needs its own.
	Table string
	// First is the number of the first file.
	First int64
}

// Migration is the state of one migration in one database.
type Migration struct {
	Version int64
	// Name is the file's name.
	Name string
	// AppliedAt is nil while the migration is pending.
	AppliedAt *time.Time
}

// Migrate applies what is pending, each migration in its own transaction, and returns what it applied. If one fails, it is
// rolled back and those before it remain.
//
// Instances that start together take turns under an advisory lock; those that come later find nothing left to do. A
// database that holds an unknown migration is refused with ErrNewerSchema before anything is written.
func Migrate(ctx context.Context, pool *pgxpool.Pool, set Migrations) ([]Migration, error) {
	files, err := set.files()
	if err != nil {
		return nil, err
	}
	unlock, err := lockMigrations(ctx, pool, set.Table)
	if err != nil {
		return nil, fmt.Errorf("lock migrations: %w", Translate(err))
	}
	defer unlock()
	before, err := set.status(ctx, pool, files)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(before, pending) {
		return nil, nil
	}
	if err := up(ctx, pool, set); err != nil {
		return nil, err
	}
	after, err := set.status(ctx, pool, files)
	if err != nil {
		return nil, err
	}
	var applied []Migration
	for i, m := range after {
		if pending(before[i]) && !pending(m) {
			applied = append(applied, m)
		}
	}
	return applied, nil
}

// Status lists every migration that the binary knows, in order. It writes nothing. A database that holds an unknown
// migration is ErrNewerSchema.
func Status(ctx context.Context, db Querier, set Migrations) ([]Migration, error) {
	files, err := set.files()
	if err != nil {
		return nil, err
	}
	return set.status(ctx, db, files)
}

// Current tells whether no migration is pending; it is the readiness check. A database that holds an unknown migration
// is ErrNewerSchema.
func Current(ctx context.Context, db Querier, set Migrations) (bool, error) {
	all, err := Status(ctx, db, set)
	if err != nil {
		return false, err
	}
	return !slices.ContainsFunc(all, pending), nil
}

func pending(m Migration) bool {
	return m.AppliedAt == nil
}

var migrationName = regexp.MustCompile(`^([0-9]{3})_[a-z0-9_]+\.sql$`)

// files lists the sequence and refuses a gap or a name that goose would pass over in silence.
func (set Migrations) files() ([]Migration, error) {
	names, err := fs.Glob(set.FS, "*.sql")
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("migrations of %s: no files", set.Table)
	}
	files := make([]Migration, 0, len(names))
	for i, name := range names {
		match := migrationName.FindStringSubmatch(path.Base(name))
		if match == nil {
			return nil, fmt.Errorf("migrations of %s: %s: want NNN_name.sql in lower case", set.Table, name)
		}
		version, err := strconv.ParseInt(match[1], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("migrations of %s: %s: %w", set.Table, name, err)
		}
		if want := set.First + int64(i); version != want {
			return nil, fmt.Errorf("migrations of %s: %s stands where number %03d is expected", set.Table, name, want)
		}
		files = append(files, Migration{Version: version, Name: name})
	}
	return files, nil
}

func (set Migrations) status(ctx context.Context, db Querier, files []Migration) ([]Migration, error) {
	all := slices.Clone(files)
	table := pgx.Identifier{set.Table}.Sanitize()
	var exists bool
	if err := db.QueryRow(ctx, `select to_regclass($1) is not null`, table).Scan(&exists); err != nil {
		return nil, fmt.Errorf("read %s: %w", set.Table, Translate(err))
	}
	if !exists {
		return all, nil
	}
	// goose stores the session's local time without a zone; sessions run in UTC. Its version 0 marks the table's creation.
	rows, err := db.Query(ctx, `
		select version_id,
		       min(tstamp) at time zone 'UTC'
		from `+table+`
		where is_applied
		  and version_id > 0
		group by version_id
		order by version_id`)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", set.Table, Translate(err))
	}
	type row struct {
		Version   int64
		AppliedAt time.Time
	}
	applied, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", set.Table, Translate(err))
	}
	for _, r := range applied {
		i := r.Version - set.First
		if i < 0 || i >= int64(len(all)) {
			return nil, fmt.Errorf("%w: %s holds migration %d, this binary knows %d to %d",
				ErrNewerSchema, set.Table, r.Version, set.First, set.First+int64(len(all))-1)
		}
		all[i].AppliedAt = &r.AppliedAt
	}
	return all, nil
}

// up lets goose run what is pending, on connections of its own: a migration may take longer than the pool's time limits
// allow.
func up(ctx context.Context, pool *pgxpool.Pool, set Migrations) error {
	db := openForMigration(pool)
	defer db.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, set.FS,
		goose.WithTableName(set.Table),
		goose.WithDisableGlobalRegistry(true),
		goose.WithLogger(goose.NopLogger()),
	)
	if err != nil {
		return fmt.Errorf("read migrations of %s: %w", set.Table, err)
	}
	_, err = provider.Up(ctx)
	if partial := (*goose.PartialError)(nil); errors.As(err, &partial) {
		return fmt.Errorf("migrate %s: %w", path.Base(partial.Failed.Source.Path), Translate(partial.Err))
	}
	if err != nil {
		return fmt.Errorf("migrate %s: %w", set.Table, Translate(err))
	}
	return nil
}

func openForMigration(pool *pgxpool.Pool) *sql.DB {
	return stdlib.OpenDB(*migrationConfig(pool))
}

// migrationConfig is the pool's configuration without the time limits of everyday statements, and without prepared
// statements, which a change of the schema invalidates. The limit on waiting for a lock remains: while a migration waits
// for a table, every later statement on that table waits behind it.
func migrationConfig(pool *pgxpool.Pool) *pgx.ConnConfig {
	const noLimit = "0"
	cfg := pool.Config().ConnConfig.Copy()
	for _, name := range []string{"statement_timeout", "idle_in_transaction_session_timeout"} {
		if _, limited := cfg.RuntimeParams[name]; limited {
			cfg.RuntimeParams[name] = noLimit
		}
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	return cfg
}

// lockMigrations waits for the lock of one sequence and returns the function that lets it go.
//
// The lock belongs to a transaction, since a session's lock has no meaning behind a transaction pooler. It is asked for
// again and again instead of waited for: a statement that waits holds a snapshot, and a "create index concurrently"
// of the instance that has the lock would wait for that snapshot for ever.
func lockMigrations(ctx context.Context, pool *pgxpool.Pool, table string) (unlock func(), err error) {
	conn, err := pgx.ConnectConfig(ctx, migrationConfig(pool))
	if err != nil {
		return nil, err
	}
	// Closing the connection ends its transaction, and the lock with it.
	unlock = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		conn.Close(ctx)
	}
	poll := time.NewTicker(migrationLockPoll)
	defer poll.Stop()
	for {
		locked, err := tryLock(ctx, conn, table)
		if err != nil {
			unlock()
			return nil, err
		}
		if locked {
			return unlock, nil
		}
		select {
		case <-ctx.Done():
			unlock()
			return nil, ctx.Err()
		case <-poll.C:
		}
	}
}

// tryLock leaves the transaction open if it got the lock.
func tryLock(ctx context.Context, conn *pgx.Conn, table string) (bool, error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return false, err
	}
	var locked bool
	err = tx.QueryRow(ctx, `select pg_try_advisory_xact_lock(hashtext($1))`, table).Scan(&locked)
	if err != nil || locked {
		return locked, err
	}
	return false, tx.Rollback(ctx)
}
