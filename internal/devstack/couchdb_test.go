package devstack

import (
	"fmt"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"testing"
)

func couchDBOptions(dir string) CouchDBOptions {
	return CouchDBOptions{Dir: dir, AdminUser: "admin", AdminPassword: "sesame", ProxySecret: "proxy-sesame"}
}

func needCouchDB(t *testing.T) {
	t.Helper()
	if _, ok := InstalledCouchDB(); !ok {
		t.Skip("no Apache CouchDB is installed")
	}
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc to list processes")
	}
}

func startCouchDB(t *testing.T, dir string) *CouchDB {
	t.Helper()
	couch, err := StartCouchDB(t.Context(), couchDBOptions(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := couch.Stop(); err != nil {
			t.Error(err)
		}
	})
	return couch
}

// request returns the status of the answer.
func request(t *testing.T, method, address, body string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	return res.StatusCode
}

// mapView makes CouchDB start a process of its query server, which must go as well.
func mapView(t *testing.T, base string) {
	t.Helper()
	const design = `{"views": {"ids": {"map": "function (doc) { emit(doc._id) }"}}}`
	for _, step := range []struct {
		method, path, body string
		status             int
	}{
		{http.MethodPut, "/kept", "", http.StatusCreated},
		{http.MethodPut, "/kept/_design/d", design, http.StatusCreated},
		{http.MethodPut, "/kept/doc", "{}", http.StatusCreated},
		{http.MethodGet, "/kept/_design/d/_view/ids", "", http.StatusOK},
	} {
		if got := request(t, step.method, base+step.path, step.body); got != step.status {
			t.Fatalf("%s %s: %d, want %d", step.method, step.path, got, step.status)
		}
	}
}

func TestCouchDBFromStartToStop(t *testing.T) {
	needCouchDB(t)
	t.Parallel()
	dir := folder(t)
	first := startCouchDB(t, dir)
	mapView(t, first.URL())
	if len(processesOf(t, dir)) < 2 {
		t.Error("the processes of the running node were not found, so the test for leftovers would find none either")
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	expectNoProcess(t, dir)

	second := startCouchDB(t, dir)
	if got := request(t, http.MethodGet, second.URL()+"/kept/doc", ""); got != http.StatusOK {
		t.Errorf("the document of the first run: %d", got)
	}
	anonymous, err := url.Parse(second.URL())
	if err != nil {
		t.Fatal(err)
	}
	anonymous.User = nil
	if got := request(t, http.MethodGet, anonymous.String()+"/_all_dbs", ""); got != http.StatusUnauthorized {
		t.Errorf("an anonymous request: %d", got)
	}
	var session struct {
		Info struct {
			Handlers []string `json:"authentication_handlers"`
		}
	}
	anonymous.Path = "/_session"
	if err := getJSON(t.Context(), *anonymous, &session); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(fmt.Sprint(session.Info.Handlers), "proxy") {
		t.Errorf("authentication handlers %v, want proxy among them", session.Info.Handlers)
	}
}

func TestCouchDBEndsWithAKilledOwner(t *testing.T) {
	needCouchDB(t)
	t.Parallel()
	dir := folder(t)
	base, kill := startOwner(t, "couchdb", dir)
	mapView(t, base)
	kill()
	expectNoProcess(t, dir)
	next := startCouchDB(t, dir)
	if got := request(t, http.MethodGet, next.URL()+"/kept/doc", ""); got != http.StatusOK {
		t.Errorf("the document of the killed run: %d", got)
	}
}

func TestCouchDBOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*CouchDBOptions){
		"no user":                 func(o *CouchDBOptions) { o.AdminUser = "" },
		"no password":             func(o *CouchDBOptions) { o.AdminPassword = "" },
		"a comment":               func(o *CouchDBOptions) { o.AdminPassword = "a ;b" },
		"a line break":            func(o *CouchDBOptions) { o.AdminUser = "a\nport = 1" },
		"a secret with a bracket": func(o *CouchDBOptions) { o.ProxySecret = "[admins]" },
	} {
		opts := couchDBOptions("")
		change(&opts)
		if opts.validate() == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if err := couchDBOptions("").validate(); err != nil {
		t.Error(err)
	}
}
