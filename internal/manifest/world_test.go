package manifest_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/devstack/couchtest"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/manifest"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var r1 = daydb.Restaurant{CompanyID: "acme", RestaurantID: "r1"}

// world is a restaurant with an ACTIVE day and two DRAINING ones.
type world struct {
	testing.TB
	pool   *pgxpool.Pool
	leases *fence.Leases
	couch  *couch.Client
	url    string
	env    string
	core   string
	today  daydb.Day
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{TB: t, pool: pgtest.New(t), url: couchtest.New(t), env: couchtest.Env(t), today: parseDay(t, "20261130")}
	w.leases = fence.New(w.pool, "test", time.Minute)
	w.couch = w.client(nil)
	w.core = w.env + "_acme_r1_core"
	w.create(w.core)
	w.tx(func(tx pgx.Tx) error {
		return daydb.Register(t.Context(), tx, daydb.Registration{
			Restaurant: r1, Timezone: daydb.DefaultTimezone, LegacyDB: "tables-" + w.env, Active: true,
		})
	})
	for i := -2; i <= 0; i++ {
		w.begin(w.today.Add(i))
	}
	return w
}

func (w *world) client(transport http.RoundTripper) *couch.Client {
	w.Helper()
	c, err := couch.New(couch.Options{URL: w.url, Transport: transport})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = c.Close() })
	return c
}

func (w *world) create(db string) {
	w.Helper()
	if _, err := w.couch.Create(w.Context(), db); err != nil {
		w.Fatal(err)
	}
	if err := w.couch.PutSecurity(w.Context(), db, couch.OpenTo(r1.Role(), uuid.New())); err != nil {
		w.Fatal(err)
	}
}

func (w *world) tx(fn func(tx pgx.Tx) error) {
	w.Helper()
	if err := pgx.BeginFunc(w.Context(), w.pool, fn); err != nil {
		w.Fatal(err)
	}
}

func (w *world) day(day daydb.Day) string { return w.env + "_acme_r1_daily_" + day.String() }

// begin makes a day ACTIVE and drains the one before.
func (w *world) begin(day daydb.Day) {
	w.Helper()
	w.create(w.day(day))
	lease := w.lease()
	mark := daydb.Mark{Actor: "test", Token: lease.Token}
	w.tx(func(tx pgx.Tx) error {
		active, err := daydb.List(w.Context(), tx, daydb.Filter{States: []daydb.State{daydb.Active}})
		if err != nil {
			return err
		}
		for _, d := range active {
			if _, err := daydb.Move(w.Context(), tx, d, daydb.Drain, mark, nil); err != nil {
				return err
			}
		}
		d, err := daydb.Insert(w.Context(), tx, r1, day, w.day(day), mark)
		if err != nil {
			return err
		}
		if err := daydb.Update(w.Context(), tx, d, lease.Token, `instance_start_time = '1'`, nil); err != nil {
			return err
		}
		_, err = daydb.Move(w.Context(), tx, d, daydb.Activate, mark, nil)
		return err
	})
}

// lease takes the restaurant's lease anew, which draws the next token.
func (w *world) lease() fence.Lease {
	w.Helper()
	if _, err := w.pool.Exec(w.Context(), `update leases set expires_at = now()`); err != nil {
		w.Fatal(err)
	}
	lease, err := w.leases.Acquire(w.Context(), "restaurant/acme/r1")
	if err != nil {
		w.Fatal(err)
	}
	return lease
}

func (w *world) publish(c manifest.CouchDB, lease fence.Lease) (manifest.Published, error) {
	p := manifest.New(w.pool, c, w.env)
	var l manifest.Ledger
	err := pg.WithTx(w.Context(), w.pool, func(tx pgx.Tx) (err error) {
		if err := lease.Check(w.Context(), tx); err != nil {
			return err
		}
		l, err = p.Read(w.Context(), tx, r1)
		return err
	})
	if err != nil {
		return manifest.Published{}, err
	}
	published, err := p.Publish(w.Context(), lease, l)
	if err != nil || published.Recorded() {
		return published, err
	}
	return published, pg.WithTx(w.Context(), w.pool, func(tx pgx.Tx) error {
		if err := lease.Check(w.Context(), tx); err != nil {
			return err
		}
		return p.Record(w.Context(), tx, lease, published)
	})
}

func (w *world) mustPublish(lease fence.Lease) manifest.Published {
	w.Helper()
	published, err := w.publish(w.couch, lease)
	if err != nil {
		w.Fatal(err)
	}
	return published
}

// check holds that core says what the ledger says, without conflict, protected,
// and that the generation is recorded.
func (w *world) check() contracts.DayManifest {
	w.Helper()
	raw, err := w.couch.Doc(w.Context(), w.core, contracts.ManifestID, "")
	if err != nil {
		w.Fatal(err)
	}
	m, err := contracts.ParseDayManifest(raw)
	if err != nil {
		w.Fatalf("%v: %s", err, raw)
	}
	if m.CurrentBusinessDay == nil || *m.CurrentBusinessDay != "20261130" || fmt.Sprint(m.Overlays) !=
		"[{20261129 daily_20261129} {20261128 daily_20261128}]" {
		w.Errorf("manifest %s", raw)
	}
	if _, err := time.Parse(time.RFC3339, m.UpdatedAt); err != nil {
		w.Error(err)
	}
	conflicts, err := w.couch.Conflicts(w.Context(), w.core, contracts.ManifestID)
	if err != nil || len(conflicts) > 0 {
		w.Errorf("conflicts %v, %v", conflicts, err)
	}
	reg, err := daydb.LoadRestaurant(w.Context(), w.pool, r1)
	if err != nil {
		w.Fatal(err)
	}
	if reg.ManifestGeneration == nil || *reg.ManifestGeneration != m.Generation {
		w.Errorf("generation %d, recorded %v", m.Generation, reg.ManifestGeneration)
	}
	design, err := w.couch.Doc(w.Context(), w.core, manifest.DesignID, "")
	var dd couch.DesignDoc
	if err != nil || json.Unmarshal(design, &dd) != nil || dd.Validate != manifest.Validation {
		w.Errorf("design document %s, %v", design, err)
	}
	return m
}

// raw writes a manifest as it is given, past the validation.
func (w *world) raw(fields map[string]any) {
	w.Helper()
	ctx := w.Context()
	if err := w.couch.DropDesign(ctx, w.core, manifest.DesignID); err != nil {
		w.Fatal(err)
	}
	if doc, err := w.couch.Doc(ctx, w.core, contracts.ManifestID, ""); err == nil {
		var stored map[string]any
		if err := json.Unmarshal(doc, &stored); err != nil {
			w.Fatal(err)
		}
		fields["_rev"] = stored["_rev"]
	}
	if err := w.couch.Put(ctx, w.core, contracts.ManifestID, fields); err != nil {
		w.Fatal(err)
	}
	if err := w.couch.PutDesign(ctx, w.core, manifest.DesignID, manifest.Validation); err != nil {
		w.Fatal(err)
	}
}

// stored returns the manifest's fields as they are in core.
func (w *world) stored() map[string]any {
	w.Helper()
	raw, err := w.couch.Doc(w.Context(), w.core, contracts.ManifestID, "")
	if err != nil {
		w.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(raw, &fields); err != nil {
		w.Fatal(err)
	}
	return fields
}
