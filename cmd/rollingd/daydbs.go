package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/rollingd/rollingd/internal/guard"
)

func (c *cli) dayDBsCommand() *cobra.Command {
	var company, restaurant, state, day string
	cmd := &cobra.Command{
		Use:   "day-dbs",
		Short: "List day databases",
		Long: `List day databases: their state, age, and what happens next; as of the last evaluation, the
documents in CouchDB and in the archive, and which of the three locks are green. "rollingd explain"
says more of one.

Needs the role viewer. Times are in UTC.`,
		Example: `  rollingd day-dbs --company acme --state DRAINING
  rollingd day-dbs --state ARCHIVED,DROPPABLE --json`,
		Args: noArgs,
	}
	reached := reach(cmd)
	cmd.Flags().StringVar(&company, "company", "", "only of this company")
	cmd.Flags().StringVar(&restaurant, "restaurant", "", "only of this restaurant")
	cmd.Flags().StringVar(&state, "state", "", "only in these states, such as DRAINING or ARCHIVED,DROPPABLE")
	cmd.Flags().StringVar(&day, "day", "", "only of this business day, as YYYYMMDD")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		api, err := c.connect(reached)
		if err != nil {
			return err
		}
		query := map[string]string{"companyId": company, "restaurantId": restaurant, "state": strings.ToUpper(state), "businessDay": day}
		var all []json.RawMessage
		for {
			answer, err := api.get(cmd.Context(), query, "day-dbs")
			if err != nil {
				return err
			}
			var page struct {
				DayDBs     []json.RawMessage `json:"dayDbs"`
				NextCursor *string           `json:"nextCursor"`
			}
			if err := decode(answer, &page); err != nil {
				return err
			}
			all = append(all, page.DayDBs...)
			if page.NextCursor == nil {
				break
			}
			query["cursor"] = *page.NextCursor
		}
		if reached.json {
			list, err := json.Marshal(map[string]any{"dayDbs": append([]json.RawMessage{}, all...)})
			if err != nil {
				return err
			}
			return c.printJSON(list)
		}
		return c.printDayDBs(all)
	}
	return cmd
}

// widestName is the longest name that stands in a row of the table; a longer
// one has a line of its own, so that the table fits 100 columns.
const widestName = 36

func (c *cli) printDayDBs(all []json.RawMessage) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(c.out, "no day database")
		return err
	}
	var rows bytes.Buffer
	above := make([]string, len(all))
	table := tabwriter.NewWriter(&rows, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "DAY DATABASE\tSTATE\tAGE\tDOCS\tARCHIVED\tLOCKS\tHOLD\tNEXT")
	for i, raw := range all {
		var d guard.Explanation
		if err := decode(raw, &d); err != nil {
			return err
		}
		name := d.DBName
		if len(name) > widestName {
			above[i] = name + "\n"
			name = "  …" + d.BusinessDay.String()
		}
		held := "-"
		if d.Hold != nil {
			held = "held"
		}
		documents, archived := "-", "-"
		if d.Documents != nil && d.Archived != nil {
			documents, archived = strconv.FormatInt(*d.Documents, 10), strconv.FormatInt(*d.Archived, 10)
		}
		fmt.Fprintf(table, "%s\t%s\t%dd\t%s\t%s\t%s\t%s\t%s\n",
			name, d.State, d.AgeDays, documents, archived, lockMarks(d.Locks), held, nextWords(d.Next))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	lines := strings.SplitAfter(rows.String(), "\n")
	var b strings.Builder
	b.WriteString(lines[0])
	for i := range all {
		b.WriteString(above[i] + lines[i+1])
	}
	_, err := fmt.Fprint(c.out, b.String())
	return err
}

// lockMarks names the locks that are green.
func lockMarks(l *guard.Locks) string {
	if l == nil {
		return "-"
	}
	marks := ""
	for i, green := range []bool{l.Lock1.Green, l.Lock2.Green, l.Lock3.Green} {
		if green {
			marks += fmt.Sprint(i + 1)
		} else {
			marks += "."
		}
	}
	return marks
}

func nextWords(n guard.Next) string {
	if n.When == nil {
		return n.Action
	}
	return n.Action + " " + shortestTime(*n.When)
}

func (c *cli) explainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain DAY_DB",
		Short: "Say why a day database is still there",
		Long: `Say of a day database what state it is in and since when, which locks are red and why, holds, its
history, and what happens next and when.

Needs the role viewer.`,
		Example: `  rollingd explain prod_acme_centro_daily_20261101`,
		Args:    args("DAY_DB"),
	}
	reached := reach(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		api, err := c.connect(reached)
		if err != nil {
			return err
		}
		answer, err := api.get(cmd.Context(), nil, "day-dbs", args[0])
		if err != nil {
			return err
		}
		return c.printExplanation(answer, reached.json)
	}
	return cmd
}

func (c *cli) printExplanation(answer []byte, asJSON bool) error {
	if asJSON {
		return c.printJSON(answer)
	}
	var d guard.Explanation
	if err := decode(answer, &d); err != nil {
		return err
	}
	var b strings.Builder
	for _, line := range d.Summary {
		fmt.Fprintln(&b, line)
	}
	if len(d.History) > 0 {
		fmt.Fprintln(&b, "history (UTC):")
		for _, line := range d.History {
			fmt.Fprintf(&b, "  %s  %-11s -> %s by %s%s\n", shortTime(line.At), line.Event, line.To, line.Actor, reasonIn(line.Evidence))
		}
	}
	_, err := fmt.Fprint(c.out, b.String())
	return err
}

// reasonIn is the reason that a person gave for an event.
func reasonIn(evidence json.RawMessage) string {
	var given struct {
		Reason string `json:"reason"`
	}
	// The evidence of other events has other shapes.
	if json.Unmarshal(evidence, &given) != nil || given.Reason == "" {
		return ""
	}
	return ": " + given.Reason
}

func (c *cli) restoreCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "restore DAY_DB",
		Short: "Rebuild a dropped day from the archive",
		Long: `Rebuild a dropped day from the archive, with the same ids and revisions, into a new database under
another name, which no device reaches and nothing drops. Delete it by hand when you are done.

Needs the role operator. It takes as long as the day is large.`,
		Example: `  rollingd restore prod_acme_centro_daily_20261101 --reason "audit 2026-31"`,
		Args:    args("DAY_DB"),
	}
	reached := reach(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "why, up to 500 characters (required)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if reason == "" {
			return usagef("say why with --reason")
		}
		api, err := c.connect(reached)
		if err != nil {
			return err
		}
		answer, err := api.do(cmd.Context(), http.MethodPost, map[string]string{"reason": reason}, "day-dbs", args[0], "restore")
		if err != nil {
			return err
		}
		if reached.json {
			return c.printJSON(answer)
		}
		var restored struct {
			DBName    string `json:"dbName"`
			Documents int64  `json:"documents"`
		}
		if err := decode(answer, &restored); err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.out, "%d documents of %s are in %s\n", restored.Documents, args[0], restored.DBName)
		return err
	}
	return cmd
}

// shortestTime is a time in UTC within a year from now, to the minute.
func shortestTime(t time.Time) string { return t.UTC().Format("01-02 15:04") }

// shortTime is a time in UTC, to the minute.
func shortTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04") }
