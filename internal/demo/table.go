package demo

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Row is a day database at the end of a play.
type Row struct {
	Restaurant string `json:"restaurant"`
	Day        string `json:"day"`
	DBName     string `json:"dbName"`
	State      string `json:"state"`
	// Documents and Archived are as of the last evaluation, null before the first.
	Documents *int64 `json:"documents"`
	Archived  *int64 `json:"archived"`
	AgeDays   int    `json:"ageDays"`
	// Why it is where it is, in a few words of the server.
	Why string `json:"why"`
}

func rowOf(d dayDB) Row {
	r := Row{
		Restaurant: d.RestaurantID,
		Day:        d.BusinessDay,
		DBName:     d.DBName,
		State:      d.State,
		AgeDays:    d.AgeDays,
		Why:        why(d),
	}
	if d.Locks != nil {
		r.Documents, r.Archived = &d.Documents, &d.Archived
	}
	return r
}

// why shortens what the server says: what keeps a lock red, a hold, the proof of
// what was dropped, or else why the next step comes when it comes.
func why(d dayDB) string {
	if d.State == "DROPPED" && d.Proof != nil {
		return fmt.Sprintf("%d documents proven, sha256 %.12s…", d.Proof.Documents, d.Proof.SHA256)
	}
	if d.Hold != nil {
		return fmt.Sprintf("held by %s: %s", d.Hold.Actor, d.Hold.Reason)
	}
	if d.Locks != nil && d.State != "ACTIVE" {
		for _, l := range []lock{d.Locks.Lock1, d.Locks.Lock2} {
			for _, r := range l.Reasons {
				return fmt.Sprintf("%d %s: %s", r.Count, strings.ReplaceAll(r.Code, "_", " "), strings.Join(r.DocIDs, ", "))
			}
		}
	}
	because := strings.TrimPrefix(d.Next.Because, "rolling-db-rotate makes it ")
	because, _, _ = strings.Cut(because, "; ")
	because, _, _ = strings.Cut(because, ", ")
	return because
}

// width is how wide the table is at most.
const width = 100

// WriteTable writes the life of every day database, and the totals.
func (s Summary) WriteTable(w io.Writer) error {
	var b strings.Builder
	line := func(restaurant, day, state string, documents, archived, age any, why string) {
		row := fmt.Sprintf("%-10s %-8s  %-9s %5v %8v %4v  %s", restaurant, day, state, documents, archived, age, why)
		fmt.Fprintln(&b, strings.TrimRight(cut(row, width), " "))
	}
	line("RESTAURANT", "DAY", "STATE", "DOCS", "ARCHIVED", "AGE", "WHY")
	for _, r := range s.Databases {
		line(r.Restaurant, r.Day, r.State, orDash(r.Documents), orDash(r.Archived), r.AgeDays, r.Why)
	}
	fmt.Fprintln(&b)
	var states []string
	for _, state := range []string{"PREWARMED", "ACTIVE", "DRAINING", "ARCHIVED", "DROPPABLE", "DROPPED"} {
		states = append(states, fmt.Sprintf("%d %s", s.States[state], state))
	}
	v := s.Verification
	fmt.Fprintf(&b, "%d day databases: %s\n", len(s.Databases), strings.Join(states, ", "))
	fmt.Fprintf(&b, "%d documents in %d acknowledged writes, %.1f MB, %d attachments; the archiver copied %d\n",
		s.Documents, s.Revisions, float64(s.Bytes)/1e6, v.Attachments, s.Archived)
	fmt.Fprintf(&b, "%s rebuilt from Postgres as %s: %d documents\n", s.Restored.From, s.Restored.DBName, s.Restored.Documents)
	fmt.Fprintf(&b, "%d acknowledged = %d in CouchDB (%d of them in Postgres too) + %d in Postgres only, %d lost\n",
		v.Acknowledged, v.InCouchDB, v.InBoth, v.OnlyInPostgres, len(v.Lost))
	for _, fault := range s.Faults {
		fmt.Fprintln(&b, "FAULT: "+fault)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func orDash(n *int64) any {
	if n == nil {
		return "-"
	}
	return *n
}

// cut shortens a line to a number of characters.
func cut(s string, most int) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' }), " ")
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}
