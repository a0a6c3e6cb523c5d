package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/rollingd/rollingd/internal/continuity/history"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/continuity/primary"
	"github.com/rollingd/rollingd/internal/pg"
)

func (c *cli) verifyHistoryCommand() *cobra.Command {
	var asJSON, settled, strict bool
	cmd := &cobra.Command{
		Use:   "verify-history",
		Short: "Check the books of the continuity plane against each other",
		Long: `Read the hosted database and the primary's, and check what was promised: every accepted key has
exactly one effect or one dead row with a reason, the commands of an aggregate were applied in the
order of the queue, epochs rise in both logs, and the two gates were never open together. Exits
with 1 if not.

It reads ` + databaseVariable + ` and ` + hostedVariable + `, or SUPABASE_URL and
SUPABASE_SERVICE_ROLE_KEY in place of the latter, and changes nothing.`,
		Example: `  rollingd verify-history
  rollingd verify-history --settled --json`,
		Args: noArgs,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON")
	cmd.Flags().BoolVar(&settled, "settled", false, "nothing is at work: a command that is neither acked nor dead is a violation")
	cmd.Flags().BoolVar(&strict, "strict", c.getenv("ROLLINGD_CONTINUITY_POLICY") == string(primary.Strict),
		"the primary runs under the policy strict; by default what ROLLINGD_CONTINUITY_POLICY says")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		report, err := c.verifyHistory(cmd.Context(), settled, strict)
		if err != nil {
			return err
		}
		if asJSON {
			text, err := json.Marshal(report)
			if err != nil {
				return err
			}
			err = c.printJSON(text)
			if err == nil && !report.OK() {
				err = errQuiet
			}
			return err
		}
		return c.printHistory(report)
	}
	return cmd
}

func (c *cli) verifyHistory(ctx context.Context, settled, strict bool) (history.Report, error) {
	pool, err := c.openNamed(ctx, databaseVariable, pg.Options{})
	if err != nil {
		return history.Report{}, err
	}
	defer pool.Close()
	var transport hosted.Transport
	if url := c.getenv("SUPABASE_URL"); url != "" {
		rest, err := hosted.NewPostgREST(url, c.getenv("SUPABASE_SERVICE_ROLE_KEY"))
		if err != nil {
			return history.Report{}, usagef("SUPABASE_URL: %w", err)
		}
		defer rest.Close()
		transport = rest
	} else {
		other, err := c.openNamed(ctx, hostedVariable, pg.Options{TransactionPooler: true})
		if err != nil {
			return history.Report{}, err
		}
		defer other.Close()
		transport = hosted.NewPostgres(other)
	}
	opts := history.Options{
		Queue:   hosted.NewQueue(transport),
		Fence:   hosted.NewFence(transport),
		Primary: pool,
		Settled: settled,
		Strict:  strict,
	}
	if c.terminal {
		opts.Progress = c.readingProgress
		defer fmt.Fprint(c.errOut, clearLine)
	}
	return history.Verify(ctx, opts)
}

// clearLine makes room on a terminal for another text in the same line.
const clearLine = "\r\x1b[K"

// readingProgress writes one line over and over, not for every line that is read.
func (c *cli) readingProgress(read int, of string) {
	if read%5000 == 0 {
		fmt.Fprintf(c.errOut, clearLine+"%d %s read", read, of)
	}
}

func (c *cli) printHistory(r history.Report) error {
	fmt.Fprintf(c.out, "%d commands accepted: %d acked, %d dead, %d open. %d effects: %d drained, %d direct. Epoch %d.\n",
		r.Accepted, r.Acked, r.Dead, r.Open, r.Drained+r.Direct, r.Drained, r.Direct, r.Epoch)
	for _, kind := range []struct {
		title    string
		findings []history.Finding
	}{{"WARNING", r.Warnings}, {"VIOLATION", r.Violations}} {
		for _, f := range kind.findings {
			fmt.Fprintf(c.out, "%s %s: %s (command %s)\n", kind.title, f.Code, f.Detail, f.CommandID)
		}
	}
	if !r.OK() {
		return errors.New(strconv.Itoa(len(r.Violations)) + " promises were broken")
	}
	_, err := fmt.Fprintln(c.out, "Every promise was kept.")
	return err
}
