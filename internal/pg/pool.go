// Package pg is the project's Postgres: the pool with its time limits, transactions, errors told apart by code, and
// migrations. SQL itself stands in the packages that own the tables.
package pg

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Querier is what a store's queries need; *pgxpool.Pool, *pgx.Conn and pgx.Tx have it, so one query function serves
// inside and outside of a transaction.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Options of a pool. A zero field takes the default that is named beside it.
type Options struct {
	// ApplicationName is what pg_stat_activity shows; default "rollingd".
	ApplicationName string
	// MaxConns bounds the pool; default 16. The database URL's pool_max_conns is not looked at.
	MaxConns int32
	// ConnectTimeout bounds one attempt to connect; default 5s.
	ConnectTimeout time.Duration
	// StatementTimeout bounds one statement; default 30s. Work that may take longer raises it for its own transaction
	// with "set local statement_timeout".
	StatementTimeout time.Duration
	// LockTimeout bounds the wait for one lock; default 10s. The statement fails with code 55P03.
	LockTimeout time.Duration
	// IdleInTransactionTimeout ends a session that sits in an open transaction, since it holds its locks all that
	// time; default 30s.
	IdleInTransactionTimeout time.Duration
	// TransactionPooler says that the server is reached through PgBouncer or Supavisor in transaction mode. Such a
	// pooler refuses the start-up parameters of the time limits and hands every transaction to another session, where
	// a prepared statement of the last one does not exist. Neither is used then: statements run unnamed, and the time
	// limits are those of the role ("alter role ... set statement_timeout").
	TransactionPooler bool
}

func (o Options) withDefaults() Options {
	if o.ApplicationName == "" {
		o.ApplicationName = "rollingd"
	}
	if o.MaxConns == 0 {
		o.MaxConns = 16
	}
	for limit, standard := range map[*time.Duration]time.Duration{
		&o.ConnectTimeout:           5 * time.Second,
		&o.StatementTimeout:         30 * time.Second,
		&o.LockTimeout:              10 * time.Second,
		&o.IdleInTransactionTimeout: 30 * time.Second,
	} {
		if *limit == 0 {
			*limit = standard
		}
	}
	return o
}

// errDatabaseURL says no more than this, because what the parser says may repeat the password.
var errDatabaseURL = errors.New("database URL cannot be read: want postgres://user:password@host:port/database or key=value pairs")

// Open returns a pool for the database URL. It does not connect: a server that is down is found by the first use,
// which fails with ErrUnavailable, so a process can start while its database is away.
//
// Every session runs in UTC, whatever the server, the database, the role or the URL say, and a timestamptz is scanned
// in UTC: a business day must not move with somebody's setting.
func Open(ctx context.Context, databaseURL string, opts Options) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return nil, errDatabaseURL
	}
	opts = opts.withDefaults()
	cfg.MaxConns = opts.MaxConns
	cfg.ConnConfig.ConnectTimeout = opts.ConnectTimeout
	setParam(cfg.ConnConfig, "application_name", opts.ApplicationName)
	setParam(cfg.ConnConfig, "timezone", "UTC")
	if opts.TransactionPooler {
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	} else {
		setParam(cfg.ConnConfig, "statement_timeout", milliseconds(opts.StatementTimeout))
		setParam(cfg.ConnConfig, "lock_timeout", milliseconds(opts.LockTimeout))
		setParam(cfg.ConnConfig, "idle_in_transaction_session_timeout", milliseconds(opts.IdleInTransactionTimeout))
	}
	cfg.AfterConnect = scanInUTC
	return pgxpool.NewWithConfig(ctx, cfg)
}

// setParam sets a start-up parameter, which outranks the settings of server, database and role. Parameter names have no
// case in Postgres, so another spelling in the URL is taken out.
func setParam(cfg *pgx.ConnConfig, name, value string) {
	for other := range cfg.RuntimeParams {
		if strings.EqualFold(other, name) {
			delete(cfg.RuntimeParams, other)
		}
	}
	cfg.RuntimeParams[name] = value
}

func milliseconds(d time.Duration) string {
	return strconv.FormatInt(d.Milliseconds(), 10)
}

func scanInUTC(_ context.Context, conn *pgx.Conn) error {
	timestamptz := &pgtype.Type{
		Name:  "timestamptz",
		OID:   pgtype.TimestamptzOID,
		Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC},
	}
	conn.TypeMap().RegisterType(timestamptz)
	conn.TypeMap().RegisterType(&pgtype.Type{
		Name:  "_timestamptz",
		OID:   pgtype.TimestamptzArrayOID,
		Codec: &pgtype.ArrayCodec{ElementType: timestamptz},
	})
	return nil
}
