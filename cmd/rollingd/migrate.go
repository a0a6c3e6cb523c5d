package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/migrations"
)

func (c *cli) migrateCommand() *cobra.Command {
	var status bool
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Apply the migrations of the primary's Postgres",
		Long: `Apply the pending migrations to the Postgres that ` + databaseVariable + ` names. "rollingd serve"
does the same when it starts. Servers that start together take turns.

With --status it only lists them, and exits with 1 if one is pending.`,
		Example: `  rollingd migrate
  rollingd migrate --status`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			url := c.getenv(databaseVariable)
			if url == "" {
				return usagef("%s: want postgres://user:password@host:port/database", databaseVariable)
			}
			pool, err := pg.Open(cmd.Context(), url, pg.Options{})
			if err != nil {
				return usagef("%s: %w", databaseVariable, err)
			}
			defer pool.Close()
			if status {
				all, err := pg.Status(cmd.Context(), pool, migrations.Primary())
				if err != nil {
					return hintDatabase(err)
				}
				return c.printMigrations(all)
			}
			applied, err := pg.Migrate(cmd.Context(), pool, migrations.Primary())
			if err != nil {
				return hintDatabase(err)
			}
			if len(applied) == 0 {
				_, err := fmt.Fprintln(c.out, "nothing to do: all migrations are applied")
				return err
			}
			return c.printMigrations(applied)
		},
	}
	cmd.Flags().BoolVar(&status, "status", false, "list the migrations and apply none")
	return cmd
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
