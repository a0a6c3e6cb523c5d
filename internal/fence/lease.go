// Package fence gives a job the sole right to its work, and a fencing token
// that the rows it writes remember.
//
// A lease alone protects nothing: its holder may be paused past its end and
// resume without noticing. Hence every transaction of a job calls Lease.Check,
// which fails once the lease has ended or passed on, and every row keeps the
// highest token that wrote it and refuses a lower one.
package fence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

var (
	// ErrHeld is returned while somebody else holds the lease; HeldError has
	// the details.
	ErrHeld = errors.New("lease is held")
	// ErrLost is returned once a lease has ended or passed on. What the job
	// does then is stop.
	ErrLost = errors.New("lease is lost")
)

// HeldError says who holds a lease, and until when unless it is renewed.
type HeldError struct {
	Name      string
	Holder    string
	ExpiresAt time.Time
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("lease %s is held by %s until %s", e.Name, e.Holder, e.ExpiresAt.UTC().Format(time.RFC3339))
}

// Is makes a HeldError an ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// Leases hands out leases to one holder, a process.
type Leases struct {
	pool   *pgxpool.Pool
	holder string
	ttl    time.Duration
}

// New returns the leases of a process. holder names it to operators, ttl is how
// long a lease lasts without being renewed.
func New(pool *pgxpool.Pool, holder string, ttl time.Duration) *Leases {
	return &Leases{pool: pool, holder: holder, ttl: ttl}
}

// Lease is the right to a piece of work until it expires, by Postgres' clock.
type Lease struct {
	Name string
	// Token is higher than that of every lease that was acquired before,
	// whatever its name.
	Token int64
}

// Acquire takes the lease of this name, or returns a HeldError. An expired
// lease is taken over under a new token. A take-over waits for the end of every
// transaction that has passed Check, so the two never overlap; one that is still
// open at the session's lock_timeout counts as held.
func (l *Leases) Acquire(ctx context.Context, name string) (Lease, error) {
	lease := Lease{Name: name}
	err := pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		// One at a time: two that find no row must not both insert one. The
		// clock of this transaction stands still from here on; a lease that
		// ends while we wait for its row still counts as held.
		if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock(hashtext($1))`, name); err != nil {
			return err
		}
		held := HeldError{Name: name}
		var live bool
		err := tx.QueryRow(ctx, `
			select holder, expires_at, expires_at > now()
			from leases
			where name = $1
			for update`, name).Scan(&held.Holder, &held.ExpiresAt, &live)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if live {
			return &held
		}
		return tx.QueryRow(ctx, `
			insert into leases (name, holder, token, expires_at)
			values (@name, @holder, nextval('fencing_tokens_seq'), now() + @ttl)
			on conflict on constraint leases_pkey do update set
			  holder = excluded.holder,
			  token = excluded.token,
			  acquired_at = now(),
			  expires_at = excluded.expires_at
			returning token`,
			pgx.NamedArgs{"name": name, "holder": l.holder, "ttl": l.ttl}).Scan(&lease.Token)
	})
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == lockNotAvailable {
		err = l.occupied(ctx, name, err)
	}
	if err != nil {
		return Lease{}, fmt.Errorf("acquire lease %s: %w", name, err)
	}
	return lease, nil
}

// lockNotAvailable is the SQLSTATE of a wait that reached lock_timeout.
const lockNotAvailable = "55P03"

// occupied makes a HeldError of a wait that took too long: a transaction of the
// holder's is open, be its lease over or not. A process that was suspended in
// the middle of one keeps it until Postgres ends its session.
func (l *Leases) occupied(ctx context.Context, name string, cause error) error {
	held := HeldError{Name: name}
	err := l.pool.QueryRow(ctx, `select holder, expires_at from leases where name = $1`, name).Scan(&held.Holder, &held.ExpiresAt)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return errors.Join(cause, err)
	}
	return fmt.Errorf("%w: %w", &held, cause)
}

// Check fails with ErrLost unless the lease is still this job's. Every
// transaction of a job begins with it: until the transaction ends, nobody can
// take the lease over, while its holder can still renew it.
func (le Lease) Check(ctx context.Context, tx pgx.Tx) error {
	var live bool
	err := tx.QueryRow(ctx, `
		select expires_at > now()
		from leases
		where name = $1 and token = $2
		for key share`, le.Name, le.Token).Scan(&live)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && !live {
		return fmt.Errorf("%w: %s, token %d", ErrLost, le.Name, le.Token)
	}
	if err != nil {
		return fmt.Errorf("check lease %s: %w", le.Name, err)
	}
	return nil
}

// renew extends the lease, or fails with ErrLost.
func (l *Leases) renew(ctx context.Context, le Lease) error {
	tag, err := l.pool.Exec(ctx, `
		update leases set expires_at = now() + $3
		where name = $1 and token = $2 and expires_at > now()`, le.Name, le.Token, l.ttl)
	if err != nil {
		return fmt.Errorf("renew lease %s: %w", le.Name, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("%w: %s, token %d", ErrLost, le.Name, le.Token)
	}
	return nil
}

// Release gives the lease back before its end. Releasing a lost lease is no error.
func (l *Leases) Release(ctx context.Context, le Lease) error {
	_, err := l.pool.Exec(ctx, `update leases set expires_at = now() where name = $1 and token = $2`, le.Name, le.Token)
	if err != nil {
		return fmt.Errorf("release lease %s: %w", le.Name, err)
	}
	return nil
}
