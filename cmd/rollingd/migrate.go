package main

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/migrations"
)

func (c *cli) migrateCommand() *cobra.Command {
	var status, hosted bool
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Apply the migrations of a Postgres",
		Long: `Apply the pending migrations to the primary's Postgres, which ` + databaseVariable + ` names.
"rollingd serve" does the same when it starts. Servers that start together take turns.

With --hosted it is the hosted Postgres of the continuity plane, which ` + hostedVariable + `
names: as its owner, past any pooler. Supabase's own tooling may apply the same files, which are in
migrations/hosted.

With --status it only lists them, and exits with 1 if one is pending.`,
		Example: `  rollingd migrate
  rollingd migrate --hosted
  rollingd migrate --status`,
		Args: noArgs,
	}
	cmd.Flags().BoolVar(&status, "status", false, "list the migrations and apply none")
	cmd.Flags().BoolVar(&hosted, "hosted", false, "those of the hosted Postgres")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		// The primary has the queue of the hosted Postgres, too, for its own work.
		variable, sets := databaseVariable, []pg.Migrations{migrations.Primary(), migrations.Hosted()}
		if hosted {
			variable, sets = hostedVariable, sets[1:]
		}
		apply := pg.Migrate
		if status {
			apply = func(ctx context.Context, pool *pgxpool.Pool, set pg.Migrations) ([]pg.Migration, error) {
				return pg.Status(ctx, pool, set)
			}
		}
		all, err := c.migrate(cmd.Context(), variable, sets, apply)
		if err != nil {
			return err
		}
		if len(all) == 0 {
			_, err := fmt.Fprintln(c.out, "nothing to do: all migrations are applied")
			return err
		}
		return c.printMigrations(all)
	}
	return cmd
}

// migrate applies something to each set of migrations of a Postgres.
func (c *cli) migrate(
	ctx context.Context, variable string, sets []pg.Migrations,
	apply func(context.Context, *pgxpool.Pool, pg.Migrations) ([]pg.Migration, error),
) ([]pg.Migration, error) {
	pool, err := c.openNamed(ctx, variable, pg.Options{})
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	var all []pg.Migration
	for _, set := range sets {
		some, err := apply(ctx, pool, set)
		if err != nil {
			return nil, hintDatabase(err)
		}
		all = append(all, some...)
	}
	return all, nil
}

// openNamed opens the Postgres that a variable names.
func (c *cli) openNamed(ctx context.Context, variable string, opts pg.Options) (*pgxpool.Pool, error) {
	url := c.getenv(variable)
	if url == "" {
		return nil, usagef("%s: want postgres://user:password@host:port/database", variable)
	}
	pool, err := pg.Open(ctx, url, opts)
	if err != nil {
		return nil, usagef("%s: %w", variable, err)
	}
	return pool, nil
}

func (c *cli) printMigrations(all []pg.Migration) error {
	table := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "MIGRATION\tAPPLIED")
	pending := false
	for _, m := range all {
		applied := "pending"
		if m.AppliedAt == nil {
			pending = true
		} else {
			applied = shortTime(*m.AppliedAt)
		}
		fmt.Fprintf(table, "%s\t%s\n", m.Name, applied)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if pending {
		return errQuiet
	}
	return nil
}
