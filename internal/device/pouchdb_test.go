package device

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/test/nodetest"
)

// TestPouchDB has the real client, PouchDB 9, replicate through the proxy.
func TestPouchDB(t *testing.T) {
	t.Parallel()
	s := newShop(t, shopOptions{})
	control := httptest.NewServer(&others{shop: s, next: 1})
	t.Cleanup(control.Close)
	nodetest.Run(t, "../../test/pouchdb",
		[]string{"PROXY_URL=" + s.url, "CONTROL_URL=" + control.URL, "COUCH_URL=" + s.couchURL}, "proxy/till.js")
}

// others do what a till does not: they begin, seal, reopen and drop its days. The
// days that they make are long past, and DRAINING unless the request says so.
type others struct {
	*shop
	mu   sync.Mutex
	next int
}

func (o *others) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	q, said := r.URL.Query(), map[string]string{}
	day := q.Get("day")
	name := o.db(north, "daily_"+day)
	switch r.URL.Path {
	case "/token":
		seconds, err := strconv.Atoi(q.Get("ttl"))
		if err != nil {
			o.t.Error(err)
		}
		said["token"] = o.tokenFor(north, "till-1", time.Duration(seconds)*time.Second)
	case "/names":
		said["legacy"] = "tables-" + o.env
	case "/flags":
		o.setFlags("acme", q.Get("rolling") == "true", q.Get("routed") == "true")
		o.until("the flags", func() bool {
			_, f, _ := o.view.find(north)
			return f.DeviceRouted == (q.Get("routed") == "true")
		})
	case "/day":
		o.next++
		state := daydb.Draining
		if q.Get("state") != "" {
			state = daydb.State(q.Get("state"))
		}
		day = time.Date(2026, 1, o.next, 0, 0, 0, 0, time.UTC).Format("20060102")
		name = o.db(north, "daily_"+day)
		o.createDB(name, north.Role())
		o.enter(north, day)
		o.move(day, state)
		said["suffix"], said["name"], said["day"] = "daily_"+day, name, day
	case "/begin":
		o.move(day, daydb.Draining)
	case "/seal":
		o.exec(`update day_databases set seal_started_at = now() where db_name = $1`, name)
		o.secure(name, couch.SealedRole)
		o.move(day, daydb.Droppable)
	case "/reopen":
		o.secure(name, north.Role())
		o.exec(`update day_databases set seal_started_at = null where db_name = $1`, name)
		o.move(day, daydb.Draining)
	case "/drop":
		o.move(day, daydb.Dropped)
		if err := o.couch.Delete(context.Background(), name); err != nil {
			o.t.Error(err)
		}
	default:
		o.t.Errorf("the script asks for %s", r.URL.Path)
	}
	_ = json.NewEncoder(w).Encode(said)
}

// move puts a day in a state, and waits until the view shows it.
func (o *others) move(text string, state daydb.State) {
	o.setState(north, text, state)
	date, err := daydb.ParseDay(text)
	if err != nil {
		o.t.Error(err)
	}
	var closed bool
	o.tx(func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `select seal_started_at is not null from day_databases where db_name = $1`, o.db(north, "daily_"+text)).Scan(&closed)
	})
	o.until("the state of a day", func() bool {
		known, _, _ := o.view.find(north)
		return known.days[date] == day{state: state, closed: closed}
	})
}

func (o *others) secure(name, role string) {
	if err := o.couch.PutSecurity(context.Background(), name, couch.OpenTo(role, uuidOf(o.t))); err != nil {
		o.t.Error(err)
	}
}
