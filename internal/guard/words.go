package guard

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/daydb"
)

// words says what a code means and what to do about it: of one, and of %d.
var words = map[string]struct{ one, many string }{
	CodeNonTerminal: {
		"1 document is still open: close, pay or cancel it on a till of the restaurant",
		"%d documents are still open: close, pay or cancel them on a till of the restaurant",
	},
	CodeCoreType: {
		"1 document is of a catalogue type and does not belong in a day: move it to core, then delete it here",
		"%d documents are of a catalogue type and do not belong in a day: move them to core, then delete them here",
	},
	CodeNoType: {
		"1 document has no type: give it one, or delete it",
		"%d documents have no type: give them one, or delete them",
	},
	CodeConflict: {
		"1 document has conflicting revisions: delete the losing ones",
		"%d documents have conflicting revisions: delete the losing ones",
	},
	CodeUnsynced: {
		"1 document has not left its device: connect it, or `rollingd waive` it",
		"%d documents have not left their devices: connect them, or `rollingd waive` them",
	},
	CodeUndelivered: {
		"1 document, event or command of the continuity plane is on its way here: `rollingd continuity` says what holds it",
		"%d documents, events or commands of the continuity plane are on their way here: `rollingd continuity` says what holds them",
	},
	CodeMissing: {
		"1 document is in CouchDB and not in Postgres as it is now; open ones are never archived",
		"%d documents are in CouchDB and not in Postgres as they are now; open ones are never archived",
	},
	CodeExtra: {
		"1 document is in Postgres and no longer in CouchDB, not even as a deletion: was it purged?",
		"%d documents are in Postgres and no longer in CouchDB, not even as deletions: were they purged?",
	},
	CodeChanged: {
		"1 document differs from what was archived",
		"%d documents differ from what was archived",
	},
	CodeAttachments: {
		"1 attachment is not in Postgres as it is in CouchDB",
		"%d attachments are not in Postgres as they are in CouchDB",
	},
	CodeRejected: {
		"1 document was refused by Postgres: see archive_rejects for the reason and the bytes",
		"%d documents were refused by Postgres: see archive_rejects for the reasons and the bytes",
	},
	CodePending: {
		"1 change came in while it was looked at: the next look decides",
		"%d changes came in while it was looked at: the next look decides",
	},
	CodePurged: {
		"1 purge: what was archived is in Postgres, what was not is lost to both",
		"%d purges: what was archived is in Postgres, what was not is lost to both",
	},
	CodeAbsent: {
		many: "CouchDB does not have the database, and rollingd did not drop it",
	},
	CodeIncarnation: {
		many: "the database under this name is not the one that rollingd created: somebody deleted and re-created it, or put another _security",
	},
	CodeAge: {
		"it is 1 day old",
		"it is %d days old",
	},
	CodeFutureDay: {
		"its business day is 1 day in the future",
		"its business day is %d days in the future",
	},
}

func (r Reason) words() string {
	text := words[r.Code].many
	switch {
	case r.Count == 1 && words[r.Code].one != "":
		text = words[r.Code].one
	case strings.Contains(text, "%d"):
		text = fmt.Sprintf(text, r.Count)
	}
	named := slices.Clone(r.DocIDs)
	if int64(len(named)) < r.Count && len(named) > 0 {
		named = append(named, "…")
	}
	for _, d := range r.Devices {
		named = append(named, fmt.Sprintf("%s has %d", d.DeviceID, d.Documents))
	}
	if len(named) == 0 {
		return text
	}
	return text + " (" + strings.Join(named, ", ") + ")"
}

// count says a number of things.
func count[N int | int64](n N, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// wordsOf lists what keeps locks 1 and 2 red.
func wordsOf(x Explanation) []string {
	var all []string
	for _, r := range append(append([]Reason(nil), x.Locks.Lock1.Reasons...), x.Locks.Lock2.Reasons...) {
		all = append(all, r.words())
	}
	return all
}

// summarize says an explanation in words, for somebody who was woken by it.
func summarize(x Explanation, c circumstances) []string {
	local := func(t time.Time) string { return t.In(c.zone).Format("2006-01-02 15:04 MST") }
	age := count(x.AgeDays, "day") + " old"
	if x.AgeDays < 0 {
		age = "begins in " + count(-x.AgeDays, "day")
	}
	lines := []string{fmt.Sprintf("%s is %s since %s; business day %s, %s.",
		x.DBName, x.State, local(x.Since), x.BusinessDay, age)}
	if x.Locks != nil && x.State != daydb.Dropped {
		lines = append(lines,
			fmt.Sprintf("It holds %s (deletions included), and Postgres %d.", count(*x.Documents, "document"), *x.Archived),
			lockLine("Lock 1 (all finished, no conflicts)", x.Locks.Lock1),
			lockLine("Lock 2 (CouchDB equals Postgres)", x.Locks.Lock2.Lock),
			ageLine(x.Locks.Lock3))
		lines = append(lines, fmt.Sprintf("Locks 1 and 2 were last looked at %s.", local(x.Locks.Lock1.EvaluatedAt)))
	}
	if x.Locks == nil && x.State != daydb.Dropped {
		lines = append(lines, "It has not been evaluated yet: what it holds is not known.")
	}
	if x.State != daydb.Dropped {
		for _, u := range x.Unsynced {
			lines = append(lines, unsyncedLine(u, local))
		}
	}
	for _, warning := range x.Warnings {
		lines = append(lines, "WARNING: "+warning+".")
	}
	if x.Hold != nil {
		lines = append(lines, fmt.Sprintf("Held by %s since %s: %s", x.Hold.Actor, local(x.Hold.Since), x.Hold.Reason))
	}
	if x.SealedAt != nil && x.State != daydb.Dropped {
		lines = append(lines, fmt.Sprintf("Sealed since %s: nobody can write to it.", local(*x.SealedAt)))
	}
	if x.DropIntendedAt != nil && x.State == daydb.Droppable {
		lines = append(lines, fmt.Sprintf("A drop was committed at %s and has not been seen to work; the next run looks.", local(*x.DropIntendedAt)))
	}
	if x.Proof != nil {
		lines = append(lines, fmt.Sprintf("Proven %s: %s, sha256 %s.", local(x.Proof.At), count(x.Proof.Documents, "document"), x.Proof.SHA256))
	}
	for _, r := range x.Restored {
		lines = append(lines, fmt.Sprintf("Copy %s (%s, %s), made by %s: %s", r.DBName, r.State, count(r.Documents, "document"), r.Actor, r.Reason))
	}
	next := fmt.Sprintf("Next: %s", x.Next.Action)
	if x.Next.When != nil {
		next += ", " + local(*x.Next.When)
	}
	because := x.Next.Because
	if red := "locks are red"; strings.HasPrefix(because, red+":") {
		because = red // The lines of the locks say why already.
	}
	return append(lines, next+", because "+because+".")
}

func lockLine(name string, l Lock) string {
	if l.Green {
		return name + ": green."
	}
	var reasons []string
	for _, r := range l.Reasons {
		reasons = append(reasons, r.words())
	}
	return name + ": RED: " + strings.Join(reasons, "; ") + "."
}

func unsyncedLine(u daydb.Unsynced, local func(time.Time) string) string {
	line := fmt.Sprintf("Device %s says that it still holds %s of this day; last heard %s, ", u.DeviceID, count(u.Documents, "document"), local(u.ReportedAt))
	switch {
	case u.Waiver != nil:
		return line + fmt.Sprintf("waived by %s since %s: %s", u.Waiver.Actor, local(u.Waiver.Since), u.Waiver.Reason)
	case !u.Waited:
		return line + fmt.Sprintf("not waited for since %s.", local(u.WaitUntil))
	}
	return line + fmt.Sprintf("waited for until %s.", local(u.WaitUntil))
}

func ageLine(l Lock3) string {
	if l.Green {
		return fmt.Sprintf("Lock 3 (older than %d days): green.", l.TTLDays)
	}
	return fmt.Sprintf("Lock 3 (older than %d days): RED until business day %s.", l.TTLDays, l.GreenOn)
}

func restoredOf(ctx context.Context, db daydb.Querier, dayID int64) ([]Restored, error) {
	rows, err := db.Query(ctx, `
		select db_name, state, documents, reason, actor, created_at
		from restored_databases
		where day_database_id = $1
		order by id`, dayID)
	if err != nil {
		return nil, fmt.Errorf("restored copies: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Restored, error) {
		var r Restored
		err := row.Scan(&r.DBName, &r.State, &r.Documents, &r.Reason, &r.Actor, &r.CreatedAt)
		return r, err
	})
	if err != nil {
		return nil, fmt.Errorf("restored copies: %w", err)
	}
	return all, nil
}
