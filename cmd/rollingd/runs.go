package main

import (
	"fmt"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/rollingd/rollingd/internal/cron"
)

func (c *cli) runsCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "runs [ID]",
		Short: "List the runs of the crons, or show one",
		Long: `List the last runs of the crons, the latest first; or show one run with its counters, changes and
failures. A run is marked "dry" if it only said what it would change, and "part" if it was of one
company or restaurant.

Needs the role viewer. Times are in UTC.`,
		Example: `  rollingd runs
  rollingd runs --cron archive
  rollingd runs 4711`,
		Args: cobra.MaximumNArgs(1),
	}
	reached := reach(cmd)
	cmd.Flags().StringVar(&name, "cron", "", "only runs of this cron")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		api, err := c.connect(reached)
		if err != nil {
			return err
		}
		if len(args) == 1 {
			return c.showRun(cmd, api, args[0], reached.json)
		}
		answer, err := api.get(cmd.Context(), map[string]string{"cron": name}, "runs")
		if err != nil {
			return err
		}
		if reached.json {
			return c.printJSON(answer)
		}
		var list struct {
			Runs []cron.Run `json:"runs"`
		}
		if err := decode(answer, &list); err != nil {
			return err
		}
		w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "ID\tCRON\tSTATE\tTRIGGER\tACTOR\tSTARTED\tCHANGES\tFAILURES")
		for _, r := range list.Runs {
			fmt.Fprintf(w, "%d\t%s\t%s%s\t%s\t%s\t%s\t%d\t%d\n", r.ID, r.Cron, r.State, narrowness(r), r.Trigger, r.Actor,
				r.StartedAt.UTC().Format(time.DateTime), len(r.Changes), len(r.Failures))
		}
		return w.Flush()
	}
	return cmd
}

func (c *cli) showRun(cmd *cobra.Command, api *client, id string, asJSON bool) error {
	if _, err := strconv.ParseInt(id, 10, 64); err != nil {
		return usagef("the id of a run is a number, as `rollingd runs` lists them, not %q", id)
	}
	answer, err := api.get(cmd.Context(), nil, "runs", id)
	if err != nil {
		return err
	}
	if asJSON {
		return c.printJSON(answer)
	}
	var r cron.Run
	if err := decode(answer, &r); err != nil {
		return err
	}
	return c.printRun(r)
}
