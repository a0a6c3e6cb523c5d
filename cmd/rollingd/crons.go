package main

import (
	"fmt"
	"net/http"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/rollingd/rollingd/internal/cron"
)

func (c *cli) cronsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "crons",
		Short: "List the crons; pause and resume them",
		Long: `List the crons, each in every time zone in use, with their next and last runs. A last run is marked
"dry" if it was one, and "part" if it was of one company or restaurant.

Needs the role viewer. Times are in UTC.`,
		Example: `  rollingd crons
  rollingd crons pause rolling-db-drop-eval --reason "INC-1234"
  rollingd crons resume rolling-db-drop-eval`,
		Args: noArgs,
	}
	reached := reach(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		api, err := c.connect(reached)
		if err != nil {
			return err
		}
		answer, err := api.get(cmd.Context(), nil, "crons")
		if err != nil {
			return err
		}
		return c.printCrons(answer, reached.json)
	}
	cmd.AddCommand(c.pauseCommand(), c.resumeCommand())
	return cmd
}

func (c *cli) pauseCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "pause NAME",
		Short: "Keep a cron from running",
		Long: `Keep a cron from running, by schedule or by hand, until it is resumed. A run that is under way
goes on.

Needs the role operator.`,
		Example: `  rollingd crons pause rolling-db-drop-eval --reason "INC-1234"`,
		Args:    args("NAME"),
	}
	reached := reach(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "why, for whoever looks next (required)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if reason == "" {
			return usagef("say why with --reason")
		}
		return c.changeCron(cmd, reached, args[0], "pause", map[string]string{"reason": reason})
	}
	return cmd
}

func (c *cli) resumeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "resume NAME",
		Short: "Let a paused cron run again",
		Long: `Let a paused cron run again. The last scheduled time that it missed is caught up within a minute.

Needs the role operator; a cron that may drop databases needs destroyer.`,
		Example: `  rollingd crons resume rolling-db-drop-eval`,
		Args:    args("NAME"),
	}
	reached := reach(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.changeCron(cmd, reached, args[0], "resume", nil)
	}
	return cmd
}

func (c *cli) changeCron(cmd *cobra.Command, reached *access, name, change string, body any) error {
	api, err := c.connect(reached)
	if err != nil {
		return err
	}
	answer, err := api.do(cmd.Context(), http.MethodPost, body, "crons", name, change)
	if err != nil {
		return err
	}
	return c.printCrons(answer, reached.json)
}

func (c *cli) printCrons(answer []byte, asJSON bool) error {
	if asJSON {
		return c.printJSON(answer)
	}
	var list struct {
		Crons []cron.Entry `json:"crons"`
	}
	if err := decode(answer, &list); err != nil {
		return err
	}
	table := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "CRON\tSCHEDULE\tZONE\tNEXT RUN\tLAST RUN")
	for _, e := range list.Crons {
		next, last := "-", "never"
		switch {
		case e.Paused:
			next = "paused"
		case e.Running:
			next = "running"
		case e.NextRunAt != nil:
			next = shortestTime(*e.NextRunAt)
		}
		if e.LastRun != nil {
			last = fmt.Sprintf("%s %s%s", shortTime(e.LastRun.StartedAt), e.LastRun.State, narrowness(*e.LastRun))
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", e.Name, e.Schedule, e.Zone, next, last)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	said := make(map[string]bool)
	for _, e := range list.Crons {
		if e.Pause == nil || said[e.Name] {
			continue
		}
		said[e.Name] = true
		fmt.Fprintf(c.out, "%s: paused by %s since %s: %s\n", e.Name, e.Pause.Actor, shortTime(e.Pause.Since), e.Pause.Reason)
	}
	return nil
}

// narrowness marks a run after which others are still to come: a rehearsal, or
// one of a part of the fleet.
func narrowness(r cron.Run) string {
	switch {
	case r.DryRun:
		return ", dry"
	case r.Scope.CompanyID != "":
		return ", part"
	}
	return ""
}
