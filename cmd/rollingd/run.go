package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rollingd/rollingd/internal/cron"
	"github.com/rollingd/rollingd/internal/run"
)

// lookEvery is how often a run that is waited for is looked at.
const lookEvery = 500 * time.Millisecond

func (c *cli) runCommand() *cobra.Command {
	var (
		company, restaurant, day string
		dryRun, noWait           bool
	)
	cmd := &cobra.Command{
		Use:   "run NAME",
		Short: "Run a cron now",
		Long: `Run a cron now, for all or, as a canary, for one company or restaurant, and wait until it has ended.
Interrupting the command does not interrupt the run.

--day counts as today. rolling-db-rotate moves only forward, from the current ACTIVE day up to
today. rolling-db-drop-eval takes an earlier day freely, and a later one only with --dry-run.

Needs the role operator; a cron that may drop databases needs destroyer, unless --dry-run.`,
		Example: `  rollingd run rolling-db-rotate --company acme
  rollingd run rolling-db-drop-eval --dry-run --day 20270105
  rollingd run archive --no-wait`,
		Args: args("NAME"),
	}
	reached := reach(cmd)
	cmd.Flags().StringVar(&company, "company", "", "only this company")
	cmd.Flags().StringVar(&restaurant, "restaurant", "", "only this restaurant; needs --company")
	cmd.Flags().StringVar(&day, "day", "", "business day that counts as today, as YYYYMMDD")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "report what would change, and change nothing")
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "return when the run has started, with its id")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		api, err := c.connect(reached)
		if err != nil {
			return err
		}
		body := map[string]any{}
		for field, value := range map[string]string{"companyId": company, "restaurantId": restaurant, "businessDay": day} {
			if value != "" {
				body[field] = value
			}
		}
		if dryRun {
			body["dryRun"] = true
		}
		answer, err := api.do(cmd.Context(), http.MethodPost, body, "crons", args[0], "run")
		if err != nil {
			return err
		}
		var started struct {
			RunID int64 `json:"runId"`
		}
		if err := decode(answer, &started); err != nil {
			return err
		}
		if noWait {
			if reached.json {
				return c.printJSON(answer)
			}
			_, err := fmt.Fprintf(c.out, "run %d started\n", started.RunID)
			return err
		}
		answer, ended, err := c.awaitRun(cmd.Context(), api, started.RunID)
		if err != nil {
			return err
		}
		if reached.json {
			err = c.printJSON(answer)
		} else {
			err = c.printRun(ended)
		}
		if err == nil && ended.State != cron.Succeeded {
			err = errQuiet
		}
		return err
	}
	return cmd
}

// awaitRun looks at a run until it has ended, and shows how far it has come to
// somebody who watches.
func (c *cli) awaitRun(ctx context.Context, api *client, id int64) ([]byte, cron.Run, error) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	shown := 0
	for {
		answer, err := api.get(ctx, nil, "runs", strconv.FormatInt(id, 10))
		if ctx.Err() != nil {
			return nil, cron.Run{}, fmt.Errorf("run %d goes on without being watched: interrupted", id)
		}
		if err != nil {
			return nil, cron.Run{}, fmt.Errorf("run %d was started and cannot be watched any more: %w; `rollingd runs %d` will tell how it ended", id, err, id)
		}
		var r cron.Run
		if err := decode(answer, &r); err != nil {
			return nil, cron.Run{}, err
		}
		if c.terminal {
			line := fmt.Sprintf("run %d %s %s", r.ID, r.State, counters(r.Counters))
			fmt.Fprintf(c.errOut, "\r%-*s", shown, line)
			shown = len(line)
		}
		if r.State != cron.Running {
			if c.terminal {
				fmt.Fprintf(c.errOut, "\r%*s\r", shown, "")
			}
			return answer, r, nil
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

func counters(all map[string]int64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		parts = append(parts, fmt.Sprintf("%s=%d", name, all[name]))
	}
	return strings.Join(parts, " ")
}

// about says of what part of the fleet a run was, and as of when.
func about(r cron.Run) string {
	var b strings.Builder
	switch {
	case r.Scope.RestaurantID != "":
		b.WriteString(", only " + r.Scope.CompanyID + "/" + r.Scope.RestaurantID)
	case r.Scope.CompanyID != "":
		b.WriteString(", only " + r.Scope.CompanyID)
	case r.Zone != nil:
		b.WriteString(", " + *r.Zone)
	}
	if !r.Scope.BusinessDay.IsZero() {
		b.WriteString(", as of " + r.Scope.BusinessDay.String())
	}
	return b.String()
}

// printRun prints a run that has ended.
func (c *cli) printRun(r cron.Run) error {
	var b strings.Builder
	dry := ""
	if r.DryRun {
		dry = ", dry run"
	}
	took := ""
	if r.FinishedAt != nil {
		took = " in " + r.FinishedAt.Sub(r.StartedAt).Round(time.Millisecond).String()
	}
	fmt.Fprintf(&b, "%s: run %d %s%s%s\n", r.Cron, r.ID, r.State, took, dry)
	fmt.Fprintf(&b, "  started %s UTC by %s, %s%s\n", shortTime(r.StartedAt), r.Actor, r.Trigger, about(r))
	names := slices.Sorted(maps.Keys(r.Counters))
	width := 24
	for _, name := range names {
		width = max(width, len(name))
	}
	for _, name := range names {
		fmt.Fprintf(&b, "  %-*s %d\n", width, name, r.Counters[name])
	}
	if len(r.Counters)+len(r.Changes)+len(r.Failures) == 0 {
		fmt.Fprintln(&b, "  nothing was to be done")
	}
	if len(r.Changes) > 0 {
		title := "changes"
		if r.DryRun {
			title = "would change"
		}
		fmt.Fprintf(&b, "%s:\n", title)
		// Workers report in any order; the moves of one day stay in theirs.
		changes := slices.SortedStableFunc(slices.Values(r.Changes), func(x, y run.Change) int { return strings.Compare(x.DBName, y.DBName) })
		for _, change := range changes {
			fmt.Fprintf(&b, "  %s  %s -> %s (%s)\n", change.DBName, change.From, change.To, change.Event)
		}
	}
	if len(r.Failures) > 0 {
		fmt.Fprintf(&b, "failures:\n")
		for _, f := range r.Failures {
			where := f.DBName
			if where == "" && f.CompanyID != "" {
				where = f.CompanyID
				if f.RestaurantID != "" {
					where += "/" + f.RestaurantID
				}
			}
			if where != "" {
				where += "  "
			}
			// Errors mostly begin with the step that they are of.
			fmt.Fprintf(&b, "  %s%s: %s\n", where, f.Step, strings.TrimPrefix(f.Error, f.Step+": "))
		}
	}
	_, err := fmt.Fprint(c.out, b.String())
	return err
}
