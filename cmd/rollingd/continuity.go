package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/continuity/primary"
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
	gate, why := "refused", s.Primary.Reason
	switch here := s.Primary; {
	case s.Direct:
		gate = "taken"
	case here.Mode == continuity.Direct && !here.Closed && !here.Leased:
		why = "the last lease began at " + here.ConfirmedAt.UTC().Format(time.RFC3339) +
			": the hosted database cannot be read, or edges that do not reach the primary ask for the queue"
	}
	fmt.Fprintf(&b, "Phase %d, policy %s. Here: epoch %d, %s; direct writes are %s", s.Phase, s.Policy, s.Primary.Epoch, s.Primary.Mode, gate)
	if why != "" {
		fmt.Fprintf(&b, " (%s)", why)
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
		all, err := listDead(cmd.Context(), api)
		if err != nil {
			return err
		}
		if reached.json {
			list, err := json.Marshal(map[string]any{"commands": append([]hosted.QueuedCommand{}, all...)})
			if err != nil {
				return err
			}
			return c.printJSON(list)
		}
		if len(all) == 0 {
			_, err := fmt.Fprintln(c.out, "no dead command")
			return err
		}
		for _, d := range all {
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

// listDead asks for page after page: commands that a person has decided about
// stay dead, and stand before the new ones.
func listDead(ctx context.Context, api *client) ([]hosted.QueuedCommand, error) {
	const most = 1000
	query := map[string]string{"status": "dead", "limit": strconv.Itoa(most)}
	var all []hosted.QueuedCommand
	for {
		answer, err := api.get(ctx, query, "continuity", "commands")
		if err != nil {
			return nil, err
		}
		var page struct{ Commands []hosted.QueuedCommand }
		if err := decode(answer, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Commands...)
		if len(page.Commands) < most {
			return all, nil
		}
		query["after"] = strconv.FormatInt(int64(page.Commands[most-1].Sequence), 10)
	}
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
