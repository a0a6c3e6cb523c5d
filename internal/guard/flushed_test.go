package guard

import (
	"testing"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

// TestIntentionIsOnDisk drops a day on a server whose commits do not wait for
// the disk: the one before the DELETE does.
func TestIntentionIsOnDisk(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, sql := range []string{
		`do $$ begin execute format('alter database %I set synchronous_commit = off', current_database()); end $$`,
		`create table commits (event text, synchronous_commit text)`,
		`create function note_commit() returns trigger language plpgsql as $$
		begin
		  insert into commits values (new.event, current_setting('synchronous_commit'));
		  return null;
		end $$`,
		`create constraint trigger note_commit after insert on day_database_transitions
		  deferrable initially deferred for each row execute function note_commit()`,
	} {
		if _, err := w.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	w.pool = pgtest.Open(t, w.dsn) // Sessions that know the setting.
	d := w.draining(40)
	w.sales(d.Name, 2)
	w.nights(w.guard(parts{}), d.Name, daydb.Dropped)

	for event, want := range map[string]string{string(daydb.Archive): "off", string(intend): "on"} {
		var got string
		err := w.pool.QueryRow(t.Context(), `select synchronous_commit from commits where event = $1`, event).Scan(&got)
		if err != nil || got != want {
			t.Errorf("%s was committed with synchronous_commit %q, %v; want %s", event, got, err, want)
		}
	}
}
