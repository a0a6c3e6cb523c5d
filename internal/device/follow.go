package device

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/internal/daydb"
)

const (
	// channel is that of notify_device_plane.
	channel = "rollingd_device_plane"
	// sessionName is what pg_stat_activity shows.
	sessionName = "rollingd device plane"
	// quietTime is how long the follower waits before it asks whether its
	// connection still lives, and reads the clock again.
	quietTime = 15 * time.Second
	// askTimeout bounds that question, and what a notification makes it read.
	askTimeout = 10 * time.Second
	// loadTimeout bounds the read of everything.
	loadTimeout = time.Minute
	// reconnectPause is the time between two attempts to connect.
	reconnectPause = 500 * time.Millisecond
)

// Follow keeps the view fresh until ctx ends: it listens first and reads
// everything then, so that no change falls between the two; each notification
// has it read what it names; a lost connection begins it all anew.
func (v *View) Follow(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger) {
	for ctx.Err() == nil {
		start := time.Now()
		err := v.followOnce(ctx, pool)
		if ctx.Err() != nil {
			return
		}
		log.WarnContext(ctx, "view of the ledger not followed", "error", err, "elapsed", time.Since(start))
		select {
		case <-ctx.Done():
		case <-time.After(reconnectPause):
		}
	}
}

// followOnce returns when the connection is lost.
func (v *View) followOnce(ctx context.Context, pool *pgxpool.Pool) error {
	pooled, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	// A session that listens never goes back to the pool.
	conn := pooled.Hijack()
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `set application_name = '`+sessionName+`'; listen `+channel); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if err := within(ctx, loadTimeout, func(ctx context.Context) error { return v.LoadAll(ctx, conn) }); err != nil {
		return err
	}
	for {
		named, everything, err := v.wait(ctx, conn.WaitForNotification)
		if err != nil {
			return err
		}
		err = within(ctx, askTimeout, func(ctx context.Context) error {
			switch {
			case everything:
				return v.LoadAll(ctx, conn)
			case named == nil:
				return v.readClock(ctx, conn)
			}
			return v.load(ctx, conn, named)
		})
		if err != nil {
			return err
		}
	}
}

// wait returns the restaurants that notifications have named: those that have
// arrived already are taken together. None after a quiet time.
func (v *View) wait(ctx context.Context, next func(context.Context) (*pgconn.Notification, error)) (named []daydb.Restaurant, everything bool, err error) {
	seen := make(map[daydb.Restaurant]bool)
	for patience := quietTime; ; patience = time.Millisecond {
		var n *pgconn.Notification
		err := within(ctx, patience, func(ctx context.Context) (err error) {
			n, err = next(ctx)
			return err
		})
		if errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err) {
			return named, everything, nil
		}
		if err != nil {
			return nil, false, err
		}
		company, id, ok := strings.Cut(n.Payload, "/")
		if !ok {
			everything = true
		}
		if r := (daydb.Restaurant{CompanyID: company, RestaurantID: id}); !seen[r] {
			seen[r] = true
			named = append(named, r)
		}
	}
}

func within(ctx context.Context, limit time.Duration, fn func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return fn(ctx)
}
