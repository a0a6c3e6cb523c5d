package app_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/app"
)

// TestCanary runs each cron by hand for the one company that has its flags on. Another one, whose documents are in the
// same legacy database, stays exactly as it was: no database, no row, not a byte of what it had.
func TestCanary(t *testing.T) {
	t.Parallel()
	opts := options(t)
	a := started(t, opts)
	w := &canaryWorld{t: t, opts: opts, app: a}
	w.admin("PUT", "/admin/restaurants/acme/centro", "", nil)
	w.admin("PUT", "/admin/restaurants/other/norte", "", nil)
	w.admin("PUT", "/admin/flags/acme", `{"rollingDb":true}`, nil)
	w.admin("PUT", "/admin/flags/acme", `{"rollingDbDrop":true}`, nil)
	w.legacy("acme", "centro")
	w.legacy("other", "norte")
	databases, rows, documents := w.databases("other"), w.rows("other"), w.documents("other")
	if len(databases) != 0 || rows["restaurants"] == "" || len(rows) != 1 || len(documents) != 3 {
		t.Fatalf("the other company begins with the databases %v, rows in %v and %d documents", databases, slices.Sorted(maps.Keys(rows)), len(documents))
	}

	for _, cron := range []string{"rolling-db-rotate", "archive", "rolling-db-drop-eval"} {
		var ended struct {
			State    string
			Failures []json.RawMessage
		}
		w.admin("POST", "/admin/crons/"+cron+"/run", `{"companyId":"acme","wait":true}`, &ended)
		if ended.State != "succeeded" || len(ended.Failures) > 0 {
			t.Errorf("%s of the canary: %+v", cron, ended)
		}
		if got := w.databases("other"); len(got) != 0 {
			t.Errorf("%s of the canary created %v for the other company", cron, got)
		}
		if got := w.rows("other"); !maps.Equal(got, rows) {
			t.Errorf("%s of the canary changed rows of the other company from %v to %v", cron, rows, got)
		}
		if got := w.documents("other"); !slices.Equal(got, documents) {
			t.Errorf("%s of the canary changed documents of the other company from %v to %v", cron, documents, got)
		}
	}

	// The same looks see what was done for the canary.
	if got := w.databases("acme"); len(got) != 3 {
		t.Errorf("the canary has the databases %v, want core, today and tomorrow", got)
	}
	got := w.rows("acme")
	for _, table := range []string{"archived_docs", "day_databases", "legacy_copies", "company_feature_flags"} {
		if got[table] == "" {
			t.Errorf("the canary has no row in %s", table)
		}
	}
	var flags struct{ DeviceRouted bool }
	w.admin("GET", "/admin/flags/acme", "", &flags)
	if !flags.DeviceRouted {
		t.Error("the canary is not routed")
	}
	w.admin("GET", "/admin/flags/other", "", &flags)
	if flags.DeviceRouted {
		t.Error("the other company is routed")
	}
}

// canaryWorld looks at the stores of a server past the server.
type canaryWorld struct {
	t    *testing.T
	opts app.Options
	app  *app.App
}

// admin calls the API, which must not refuse, and reads its answer into out unless that is nil.
func (w *canaryWorld) admin(method, path, body string, out any) {
	w.t.Helper()
	status, answer := call(w.t, w.app, method, path, body)
	if status != http.StatusOK {
		w.t.Fatalf("%s %s %s: %d %s", method, path, body, status, answer)
	}
	if out != nil {
		if err := json.Unmarshal([]byte(answer), out); err != nil {
			w.t.Fatalf("%s %s: %v", method, path, err)
		}
	}
}

// legacy puts a product, a finished order and an open one of a restaurant into the legacy database.
func (w *canaryWorld) legacy(company, restaurant string) {
	w.t.Helper()
	db := "/tables-" + w.opts.Env
	var created json.RawMessage
	w.couch("PUT", db, "", &created)
	for id, own := range map[string]string{
		"product": `"type":"product"`,
		"paid":    `"type":"order","status":"closed"`,
		"open":    `"type":"order","status":"open"`,
	} {
		doc := `{"companyId":"` + company + `","restaurantId":"` + restaurant + `",` + own + `}`
		w.couch("PUT", db+"/"+company+"-"+id, doc, &created)
	}
}

// documents are those of a company in the legacy database, as CouchDB sends them.
func (w *canaryWorld) documents(company string) []string {
	w.t.Helper()
	var all struct {
		Rows []struct {
			ID  string
			Doc json.RawMessage
		}
	}
	w.couch("GET", "/tables-"+w.opts.Env+"/_all_docs?include_docs=true", "", &all)
	var own []string
	for _, row := range all.Rows {
		if strings.HasPrefix(row.ID, company+"-") {
			own = append(own, string(row.Doc))
		}
	}
	return own
}

// databases are the names in CouchDB that begin as those of a company do.
func (w *canaryWorld) databases(company string) []string {
	w.t.Helper()
	var all []string
	w.couch("GET", "/_all_dbs", "", &all)
	return slices.DeleteFunc(all, func(name string) bool {
		return !strings.HasPrefix(name, w.opts.Env+"_"+company+"_")
	})
}

func (w *canaryWorld) couch(method, path, body string, out any) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.opts.CouchURL+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	// The second company finds the legacy database there.
	if res.StatusCode >= 300 && res.StatusCode != http.StatusPreconditionFailed {
		w.t.Fatalf("%s %s: %s", method, path, res.Status)
	}
	if err := json.NewDecoder(res.Body).Decode(out); err != nil {
		w.t.Fatalf("%s %s: %v", method, path, err)
	}
}

// rows are all rows of a company, by table; tables without any are left out. A table belongs to companies if it has a
// company_id, or names a database, whose name has the company's id in it.
func (w *canaryWorld) rows(company string) map[string]string {
	w.t.Helper()
	ctx := w.t.Context()
	conn, err := pgx.Connect(ctx, w.opts.DatabaseURL)
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close(ctx)
	tables, err := conn.Query(ctx, `
		select relname
		from pg_class
		where relnamespace = 'public'::regnamespace
		  and relkind in ('r', 'p')
		  and not relispartition
		  and relname <> 'cron_runs'`) // It names the canary's own scope, and failures, which are looked at.
	if err != nil {
		w.t.Fatal(err)
	}
	names, err := pgx.CollectRows(tables, pgx.RowTo[string])
	if err != nil {
		w.t.Fatal(err)
	}
	all := make(map[string]string)
	for _, name := range names {
		var rows string
		err := conn.QueryRow(ctx, `
			select coalesce(string_agg(r::text, e'\n' order by r::text), '')
			from `+pgx.Identifier{name}.Sanitize()+` r
			where to_jsonb(r) ->> 'company_id' = $1
			   or strpos(r::text, '_' || $1 || '_') > 0
			   or strpos(r::text, $1 || '/') > 0`, company).Scan(&rows)
		if err != nil {
			w.t.Fatalf("%s: %v", name, err)
		}
		if rows != "" {
			all[name] = rows
		}
	}
	return all
}
