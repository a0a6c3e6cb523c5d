package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/history"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/continuity/primary"
	"github.com/rollingd/rollingd/internal/pg"
)

func (c *cli) continuityCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "continuity",
		Short: "Say which gate is open, and decide about the queue",
		Long: `Say how the continuity plane stands: the phase, the epoch, which gate is open here and in the hosted
database, what waits in the queue, and who was heard when.

Needs the role viewer.`,
		Example: `  rollingd continuity
  rollingd continuity dead
  rollingd continuity redrive 4f6f2b1e-… --reason "the gateway is back"`,
		Args: noArgs,
	}
	reached := reach(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		api, err := c.connect(reached)
		if err != nil {
			return err
		}
		answer, err := api.get(cmd.Context(), nil, "continuity")
		if err != nil {
			return err
		}
		if reached.json {
			return c.printJSON(answer)
		}
		return c.printContinuity(answer)
	}
	cmd.AddCommand(
		c.deadCommand(),
		c.commandDecision("redrive", "Bring a dead command back, with all of its attempts", "Needs the role operator."),
		c.commandDecision("skip", "Go on without a dead command, which stays in the books", "Needs the role destroyer: an accepted command is given up."),
		c.forceCommand("force-queue", "Open the queue and close direct writes, whatever edges and heartbeat say"),
		c.forceCommand("force-direct", "Open direct writes, whatever is left in the queue"),
	)
	return cmd
}

// continuityState is what the admin API says.
type continuityState struct {
	Phase   int
	Policy  string
	Direct  bool
	Primary primary.State
	Hosted  *struct {
		Error   string
		Fence   continuity.Fence
		Seconds float64
		Queue   struct {
			Commands           map[string]int64
			Oldest             float64 `json:"oldestPendingSeconds"`
			UnacknowledgedDead int64
			BlockedAggregates  int64
			UnknownTypes       []string
		}
		Nodes []struct {
			NodeID string
			Role   string
			Mode   string
			Silent float64 `json:"silentSeconds"`
		}
	}
}

func (c *cli) printContinuity(answer []byte) error {
	var s continuityState
	if err := decode(answer, &s); err != nil {
		return err
	}
	if s.Phase == 0 {
		_, err := fmt.Fprintln(c.out, "The continuity plane is off (LOCAL_CONTINUITY_PHASE).")
		return err
	}
	var b strings.Builder
	gate := "refused"
	if s.Direct {
		gate = "taken"
	}
	fmt.Fprintf(&b, "Phase %d, policy %s. Here: epoch %d, %s; direct writes are %s", s.Phase, s.Policy, s.Primary.Epoch, s.Primary.Mode, gate)
	if s.Primary.Reason != "" {
		fmt.Fprintf(&b, " (%s)", s.Primary.Reason)
	}
	fmt.Fprintln(&b, ".")
	switch h := s.Hosted; {
	case h == nil:
		fmt.Fprintln(&b, "The hosted database is not spoken to in this phase.")
	case h.Error != "":
		fmt.Fprintf(&b, "Hosted: no answer: %s.\n", h.Error)
	default:
		fmt.Fprintf(&b, "Hosted: epoch %d, %s for %s.\n", h.Fence.Epoch, h.Fence.Mode, ago(h.Seconds))
		q := h.Queue
		fmt.Fprintf(&b, "Queue: %d pending, %d claimed, %d acked, %d dead (%d undecided, holding %d aggregates); the oldest waits for %s.\n",
			q.Commands["pending"], q.Commands["claimed"], q.Commands["acked"], q.Commands["dead"], q.UnacknowledgedDead, q.BlockedAggregates, ago(q.Oldest))
		if len(q.UnknownTypes) > 0 {
			fmt.Fprintf(&b, "Commands of unknown types wait for a newer version: %s.\n", strings.Join(q.UnknownTypes, ", "))
		}
		for _, n := range h.Nodes {
			fmt.Fprintf(&b, "  %-8s %-24s %-10s heard %s ago\n", n.Role, n.NodeID, n.Mode, ago(n.Silent))
		}
	}
	_, err := fmt.Fprint(c.out, b.String())
	return err
}

func ago(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Round(time.Second).String()
}

func (c *cli) deadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dead",
		Short: "List dead commands, and why they are",
		Long: `List the commands that the primary has given up on, the oldest first.

Needs the role viewer.`,
		Example: `  rollingd continuity dead`,
		Args:    noArgs,
	}
	reached := reach(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		api, err := c.connect(reached)
		if err != nil {
			return err
		}
		answer, err := api.get(cmd.Context(), map[string]string{"status": "dead", "limit": "1000"}, "continuity", "commands")
		if err != nil {
			return err
		}
		if reached.json {
			return c.printJSON(answer)
		}
		var page struct{ Commands []hosted.QueuedCommand }
		if err := decode(answer, &page); err != nil {
			return err
		}
		if len(page.Commands) == 0 {
			_, err := fmt.Fprintln(c.out, "no dead command")
			return err
		}
		for _, d := range page.Commands {
			decided := ""
			if d.SkippedBy != nil {
				decided = ", skipped by " + *d.SkippedBy
			}
			why := "no reason"
			if d.LastError != nil {
				why = *d.LastError
			}
			fmt.Fprintf(c.out, "%s  %s %s/%s  %d attempts%s\n  %s\n", d.CommandID, d.CommandType, d.AggregateType, d.AggregateID, d.Attempts, decided, why)
		}
		return nil
	}
	return cmd
}

func (c *cli) commandDecision(name, short, role string) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:     name + " COMMAND",
		Short:   short,
		Long:    short + ".\n\n" + role,
		Example: "  rollingd continuity " + name + ` 4f6f2b1e-0d3c-4a57-9b1e-8d6a5c4b3a21 --reason "INC-1234"`,
		Args:    args("COMMAND"),
	}
	reached := reach(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "why, up to 256 bytes (required)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if reason == "" {
			return usagef("say why with --reason")
		}
		return c.postContinuity(cmd.Context(), reached, map[string]any{"reason": reason}, "commands", args[0], name)
	}
	return cmd
}

func (c *cli) forceCommand(name, short string) *cobra.Command {
	var (
		reason string
		epoch  int64
	)
	cmd := &cobra.Command{
		Use:   name,
		Short: short,
		Long: short + `.

It ends the epoch that --epoch names, as "rollingd continuity" shows it, and no other. Needs the
role destroyer.`,
		Example: "  rollingd continuity " + name + ` --epoch 7 --reason "INC-1234"`,
		Args:    noArgs,
	}
	reached := reach(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "why, up to 256 bytes (required)")
	cmd.Flags().Int64Var(&epoch, "epoch", 0, "the epoch to end (required)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if reason == "" || epoch < 1 {
			return usagef("name the epoch with --epoch, and say why with --reason")
		}
		return c.postContinuity(cmd.Context(), reached, map[string]any{"reason": reason, "epoch": epoch}, name)
	}
	return cmd
}

func (c *cli) postContinuity(ctx context.Context, reached *access, body any, path ...string) error {
	api, err := c.connect(reached)
	if err != nil {
		return err
	}
	answer, err := api.do(ctx, http.MethodPost, body, append([]string{"continuity"}, path...)...)
	if err != nil {
		return err
	}
	return c.printJSON(answer)
}

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
	cmd.Flags().BoolVar(&strict, "strict", false, "the primary runs under the policy strict")
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
	return history.Verify(ctx, history.Options{
		Queue:   hosted.NewQueue(transport),
		Fence:   hosted.NewFence(transport),
		Primary: pool,
		Settled: settled,
		Strict:  strict,
	})
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

func (c *cli) printHistory(r history.Report) error {
	fmt.Fprintf(c.out, "%d commands accepted: %d acked, %d dead, %d open. %d effects: %d drained, %d direct. Epoch %d.\n",
		r.Accepted, r.Acked, r.Dead, r.Open, r.Drained+r.Direct, r.Drained, r.Direct, r.Epoch)
	for title, findings := range map[string][]history.Finding{"WARNING": r.Warnings, "VIOLATION": r.Violations} {
		for _, f := range findings {
			fmt.Fprintf(c.out, "%s %s: %s (command %s)\n", title, f.Code, f.Detail, f.CommandID)
		}
	}
	if !r.OK() {
		return errors.New(strconv.Itoa(len(r.Violations)) + " promises were broken")
	}
	_, err := fmt.Fprintln(c.out, "Every promise was kept.")
	return err
}
