package crew

import (
	"context"
	"fmt"
	"time"
)

// channel is where a run says that it has handed out units.
const channel = "rollingd_crew"

// listen has this replica look as soon as another has handed out units, until
// ctx ends. Without a connection it looks every second all the same.
func (c *Crew) listen(ctx context.Context) {
	for ctx.Err() == nil {
		if err := c.listenOnce(ctx); err != nil && ctx.Err() == nil {
			c.Logger.DebugContext(ctx, "units of other replicas are only looked for", "error", err)
		}
		timer := time.NewTimer(lookEvery)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// listenOnce returns when the connection is lost.
func (c *Crew) listenOnce(ctx context.Context) error {
	pooled, err := c.Pool.Acquire(ctx)
	if err != nil {
		return err
	}
	// A session that listens never goes back to the pool.
	conn := pooled.Hijack()
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `listen `+channel); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	for {
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return err
		}
		c.look()
	}
}
