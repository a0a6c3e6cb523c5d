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

// printTable prints a line for each day, and below what was broken.
func printTable(out io.Writer, results []result) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "DAY\tFAULTS\tACCEPTED\tAPPLIED\tDEAD\tDUPLICATES\tORDER VIOLATIONS\tCUTOVERS\tSEALED MS\tLONGEST WAIT MS\tSECONDS\tVERDICT\t")
	for _, r := range results {
		f := r.found
		fmt.Fprintf(table, "%-3s %-24s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%.0f\t%d\t%.0f\t%s\t\n", r.id, r.name, r.faults,
			f.accepted, f.applied, f.dead, f.duplicates, f.inversions, f.cutovers, f.sealed, r.longest.Milliseconds(), r.elapsed.Seconds(), r.verdict())
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
