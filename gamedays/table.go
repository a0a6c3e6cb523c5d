package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// result is what became of a day.
type result struct {
	day
	faults int
	// longest is the longest that a client had to try until a command was taken.
	longest time.Duration
	found   verdict
	elapsed time.Duration
	// err is why the day was not played to its end.
	err error
}

func (r result) kept() bool { return r.err == nil && len(r.found.broken) == 0 }

func (r result) verdict() string {
	if r.kept() {
		return "kept"
	}
	return "BROKEN"
}

// columns are the heads of the table, and what they mean.
const columns = `
  FAULTS    how often something was done to the world
  ACCEPTED  commands that an edge has promised
  APPLIED   of them, those that had their effect
  DEAD      those that a person has to see to
  DOUBLED   effects, orders and events that came twice
  INVERTED  commands that were applied before an earlier one about the same order
  DOCS      orders and payments that tills see in their day, as the books have them
  CUTOVERS  from the queue back to direct writes
  SEALED    the longest time that a cutover had both closed
  WAIT      the longest that a client had to try
  TIME      what the day took
`

// printTable prints a line for each day, and below what was broken. It fits a
// terminal of 120 columns.
func printTable(out io.Writer, results []result) error {
	table := tabwriter.NewWriter(out, 0, 0, 1, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "DAY\tFAULTS\tACCEPTED\tAPPLIED\tDEAD\tDOUBLED\tINVERTED\tDOCS\tCUTOVERS\tSEALED\tWAIT\tTIME\tVERDICT\t")
	for _, r := range results {
		f := r.found
		fmt.Fprintf(table, "%-3s %-28s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%.0fms\t%.1fs\t%.0fs\t%s\t\n", r.id, r.name, r.faults,
			f.accepted, f.applied, f.dead, f.duplicates, f.inversions, f.documents, f.cutovers, f.sealed,
			r.longest.Seconds(), r.elapsed.Seconds(), r.verdict())
	}
	if err := table.Flush(); err != nil {
		return err
	}
	const most = 20
	for _, r := range results {
		if r.err != nil {
			fmt.Fprintf(out, "%s %s: %v\n", r.id, r.name, r.err)
		}
		for i, broken := range r.found.broken {
			if i == most {
				fmt.Fprintf(out, "%s %s: and %d more\n", r.id, r.name, len(r.found.broken)-most)
				break
			}
			fmt.Fprintf(out, "%s %s: %s\n", r.id, r.name, broken)
		}
	}
	return nil
}
