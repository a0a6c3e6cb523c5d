package guard

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/daydb"
)

func (w *world) explained(g *Guard, name string) (Explanation, string) {
	w.t.Helper()
	x, err := g.Explain(w.t.Context(), name)
	if err != nil {
		w.t.Fatal(err)
	}
	return x, strings.Join(x.Summary, "\n")
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.pool.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

// TestExplainKnowsThatACronIsPaused: what waits for a person has no time.
func TestExplainKnowsThatACronIsPaused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.draining(3)
	g := w.guard(parts{})
	w.exec(`insert into cron_pauses (cron, reason, actor) values ('rolling-db-rotate', 'INC-1', 'ana')`)
	if x, text := w.explained(g, d.Name); x.Next.When == nil {
		t.Errorf("the guard waits for rotation:\n%s", text)
	}
	w.exec(`insert into cron_pauses (cron, reason, actor) values ('rolling-db-drop-eval', 'INC-2', 'eva')`)
	if x, text := w.explained(g, d.Name); x.Next.When != nil || !strings.Contains(text, "rolling-db-drop-eval is paused by eva: INC-2") {
		t.Errorf("the day is said to be evaluated, %v:\n%s", x.Next.When, text)
	}
	all, err := g.List(t.Context(), daydb.Filter{})
	if err != nil || len(all) != 1 || all[0].Next.When != nil {
		t.Errorf("the listing says %+v, %v", all, err)
	}
	next := w.prewarmed(1)
	if x, text := w.explained(g, next.Name); x.Next.When != nil || !strings.Contains(text, "rolling-db-rotate is paused by ana: INC-1") {
		t.Errorf("the day is said to begin, %v:\n%s", x.Next.When, text)
	}
	if _, text := w.explained(g, next.Name); !strings.Contains(text, "begins in 1 day") {
		t.Errorf("a day that has not come is said to be old:\n%s", text)
	}
}

// prewarmed enters a day to come, without its database.
func (w *world) prewarmed(daysAhead int) (d daydb.DayDB) {
	w.t.Helper()
	day := w.today().Add(daysAhead)
	name, err := daydb.ComposeName(w.env, w.r, day)
	if err != nil {
		w.t.Fatal(err)
	}
	w.tx(func(tx pgx.Tx) (err error) {
		d, err = daydb.Insert(w.t.Context(), tx, w.r, day, name, daydb.Mark{Actor: "test", Token: w.token()})
		return err
	})
	return d
}

// TestExplainKnowsThatARestaurantIsInactive: nobody rotates it.
func TestExplainKnowsThatARestaurantIsInactive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := w.guard(parts{})
	d, next := w.draining(3), w.prewarmed(1)
	w.exec(`update restaurants set active = false`)
	if x, text := w.explained(g, next.Name); x.Next.When != nil || !strings.Contains(text, "is not active") {
		t.Errorf("the day is said to begin:\n%s", text)
	}
	if x, text := w.explained(g, d.Name); x.Next.When == nil {
		t.Errorf("what it left behind is said not to be evaluated:\n%s", text)
	}
}

// TestExplainOfADropThatWasNotRecorded: a DELETE whose process died before it
// could say so is no reason to look for who deleted the database.
func TestExplainOfADropThatWasNotRecorded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.undropped()
	w.request(http.MethodDelete, d.Name, nil)
	_, text := w.explained(w.guard(parts{}), d.Name)
	if strings.Contains(text, "not dropped by rollingd") || !strings.Contains(text, "the drop that was committed has worked") {
		t.Errorf("the explanation says:\n%s", text)
	}
}

// TestExplainWhileCouchDBHangs: the ledger answers, and soon.
func TestExplainWhileCouchDBHangs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.draining(3)
	hangs := w.guard(parts{transport: &faultyTransport{decide: func(_ int64, req *http.Request) fault {
		if deadline, ok := req.Context().Deadline(); !ok || time.Until(deadline) > presentWithin {
			t.Errorf("the look may take until %v", deadline)
			return fails
		}
		<-req.Context().Done()
		return fails
	}}})
	if _, text := w.explained(hangs, d.Name); !strings.Contains(text, "does not answer") || !strings.Contains(text, "DRAINING") {
		t.Errorf("the explanation says:\n%s", text)
	}
}
