package demo

import (
	"fmt"
	"io"
	"time"
)

// progress says where a play is: one line that is written over on a terminal, a
// line every few days elsewhere.
type progress struct {
	w       io.Writer
	inPlace bool
	began   time.Time
	pending bool
}

// everyDays is how often a line is written where lines cannot be written over.
const everyDays = 5

func newProgress(w io.Writer, inPlace bool, began time.Time) *progress {
	if w == nil {
		w = io.Discard
	}
	return &progress{w: w, inPlace: inPlace, began: began}
}

// day reports that a day and its night have been played.
func (pr *progress) day(p *play, i int) {
	done := i + 1
	text := fmt.Sprintf("day %2d of %d  %s  %6d writes  %5d documents archived  %2d days dropped  %4.1fs",
		done, len(p.days), p.days[i], p.truth.revisions, p.archived, p.moves["DROPPED"], time.Since(pr.began).Seconds())
	switch {
	case pr.inPlace:
		fmt.Fprintf(pr.w, "\r\x1b[K%s", text)
		pr.pending = true
	case done%everyDays == 0 || done == len(p.days):
		fmt.Fprintln(pr.w, text)
	}
}

// end leaves the last line where it is.
func (pr *progress) end() {
	if pr.pending {
		fmt.Fprintln(pr.w)
	}
}
