package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// results is what is printed at the end.
type results struct {
	sections []*section
}

// section is a table with a sentence above it and remarks below.
type section struct {
	title   string
	head    []string
	rows    [][]string
	remarks []string
}

func (r *results) section(title string, head ...string) *section {
	s := &section{title: title, head: head}
	r.sections = append(r.sections, s)
	return s
}

func (s *section) row(cells ...string) { s.rows = append(s.rows, cells) }

func (s *section) remark(format string, args ...any) {
	s.remarks = append(s.remarks, fmt.Sprintf(format, args...))
}

// String is the tables as text.
func (r *results) String() string {
	var b strings.Builder
	for _, s := range r.sections {
		fmt.Fprintf(&b, "\n%s\n\n", s.title)
		s.align(&b)
		for _, remark := range s.remarks {
			fmt.Fprintf(&b, "  %s\n", remark)
		}
	}
	return b.String()
}

// align writes the rows, each column as wide as its widest cell.
func (s *section) align(b *strings.Builder) {
	rows := append([][]string{s.head}, s.rows...)
	width := make([]int, len(s.head))
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		line := ""
		for i, cell := range row {
			line += fmt.Sprintf("  %-*s", width[i], cell)
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
}

// goal is a bound on a figure; the zero goal is none.
type goal struct {
	bound  float64
	unit   string
	atMost bool
}

func atMost(bound float64, unit string) goal  { return goal{bound, unit, true} }
func atLeast(bound float64, unit string) goal { return goal{bound, unit, false} }

// cells are the goal, and whether the figure meets it.
func (g goal) cells(figure float64) (want, verdict string) {
	switch {
	case g.bound == 0:
		return "", ""
	case g.atMost:
		want, verdict = fmt.Sprintf("at most %g%s", g.bound, g.unit), "met"
		if figure > g.bound {
			verdict = "missed"
		}
	default:
		want, verdict = fmt.Sprintf("at least %g%s", g.bound, g.unit), "met"
		if figure < g.bound {
			verdict = "missed"
		}
	}
	return want, verdict
}

func times(ratio float64) string { return fmt.Sprintf("%.2fx", ratio) }

// runs are the rounds of one thing.
type runs []took

func (r runs) median() time.Duration {
	return medianOf(r, func(t took) time.Duration { return t.wall })
}

func medianOf(r runs, of func(took) time.Duration) time.Duration {
	sorted := sortedBy(r, of)
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

func sortedBy(r runs, of func(took) time.Duration) []time.Duration {
	var all []time.Duration
	for _, t := range r {
		all = append(all, of(t))
	}
	slices.Sort(all)
	return all
}

// String is the median with the extremes.
func (r runs) String() string {
	all := sortedBy(r, func(t took) time.Duration { return t.wall })
	return fmt.Sprintf("%s (%s to %s)", seconds(r.median()), seconds(all[0]), seconds(all[len(all)-1]))
}

// over is how many times as long r takes as other.
func (r runs) over(other runs) float64 { return r.median().Seconds() / other.median().Seconds() }

// rate is how many of n things are done in a second.
func (r runs) rate(n int) string { return fmt.Sprintf("%.0f/s", float64(n)/r.median().Seconds()) }

// cpu are the medians of the three sides' CPU: client, CouchDB, Postgres.
func (r runs) cpu() []string {
	return []string{
		seconds(medianOf(r, func(t took) time.Duration { return t.client })),
		seconds(medianOf(r, func(t took) time.Duration { return t.couch })),
		seconds(medianOf(r, func(t took) time.Duration { return t.postgres })),
	}
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
