package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/rollingd/rollingd/internal/app"
)

func (c *cli) serveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Run the server of the primary",
		Long: `Run the server: the administration API, the proxy of the devices and the crons. Pending migrations
are applied first. Several servers may run on the same stores: each run of a cron happens once.

A first SIGINT or SIGTERM stops it in order; what was cut off is caught up at the next start. A
second one ends it at once.

Settings, from the environment:
` + settingsHelp(),
		Example: `  ROLLINGD_ENV=prod \
  ROLLINGD_DATABASE_URL=postgres://rollingd:secret@db.internal/rollingd \
  ROLLINGD_COUCHDB_URL=http://admin:secret@couch.internal:5984 \
  ROLLINGD_ADMIN_TOKENS=ana=operator:2f6c0d1e9a7b4c58 \
  rollingd serve`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, server, err := c.configure()
			if err != nil {
				return err
			}
			return serveUntilStopped(cmd.Context(), cfg, server)
		},
	}
}

// serveUntilStopped runs a server until ctx ends or it fails by itself.
func serveUntilStopped(ctx context.Context, cfg config, server *app.App) error {
	if err := server.Start(ctx); err != nil {
		return hintDatabase(err)
	}
	var failure error
	select {
	case <-ctx.Done():
		cfg.Logger.InfoContext(ctx, "stopping", "timeout", cfg.stopTimeout)
	case failure = <-server.Failed():
	}
	// The context that has ended is the reason to stop.
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.stopTimeout)
	defer cancel()
	err := errors.Join(failure, server.Stop(stopping))
	if err == nil {
		cfg.Logger.InfoContext(ctx, "stopped")
	}
	return err
}

// hintDatabase names the variable to look at when no connection to Postgres
// could be made, for whatever reason.
func hintDatabase(err error) error {
	if connect := (*pgconn.ConnectError)(nil); errors.As(err, &connect) {
		return fmt.Errorf("%w; does Postgres run, and is %s right?", err, databaseVariable)
	}
	return err
}
