package main

import (
	"context"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

var update = flag.Bool("update", false, "write testdata/*.golden instead of comparing them")

// mainVariable makes the test binary be the program itself.
const mainVariable = "ROLLINGD_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainVariable) != "" {
		main()
		return
	}
	pgtest.Main(m)
}

// call runs a command line in this process.
func call(ctx context.Context, env map[string]string, args ...string) (code int, out, errOut string) {
	var stdout, stderr strings.Builder
	c := &cli{out: &stdout, errOut: &stderr, getenv: func(name string) string { return env[name] }}
	code = c.run(ctx, args)
	return code, stdout.String(), stderr.String()
}

// canned is a server that answers from testdata/<name>.json, and remembers what it was asked.
type canned struct {
	answers map[string]string // method and path -> status and file
	asked   []string
}

func (s *canned) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	s.asked = append(s.asked, strings.TrimSpace(r.Method+" "+r.URL.RequestURI()+" "+string(body)))
	answer, ok := s.answers[r.Method+" "+r.URL.Path]
	if !ok || r.Header.Get("Authorization") != "Bearer 0123456789abcdef" {
		w.WriteHeader(http.StatusTeapot)
		return
	}
	status, file, _ := strings.Cut(answer, " ")
	content, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		panic(err)
	}
	w.WriteHeader(map[string]int{"200": 200, "202": 202, "404": 404, "409": 409}[status])
	w.Write(content)
}

// TestOutput holds what the commands print against testdata/*.golden, and what they ask against the table.
func TestOutput(t *testing.T) {
	t.Parallel()
	const day = "prod_acme_centro_daily_20261101"
	answers := map[string]string{
		"GET /admin/day-dbs":                         "200 day-dbs.json",
		"GET /admin/day-dbs/" + day:                  "200 explain.json",
		"PUT /admin/day-dbs/" + day + "/hold":        "200 explain.json",
		"DELETE /admin/day-dbs/" + day + "/hold":     "200 explain.json",
		"POST /admin/day-dbs/" + day + "/restore":    "200 restored.json",
		"GET /admin/crons":                           "200 crons.json",
		"POST /admin/crons/rolling-db-rotate/pause":  "200 crons.json",
		"POST /admin/crons/rolling-db-rotate/resume": "200 crons.json",
		"POST /admin/crons/rolling-db-rotate/run":    "202 started.json",
		"POST /admin/crons/archive/run":              "409 running.json",
		"POST /admin/crons/daily/run":                "404 unknown-cron.json",
		"GET /admin/runs":                            "200 runs.json",
		"GET /admin/runs/7":                          "200 run.json",
		"GET /admin/flags/acme":                      "200 flags.json",
		"PUT /admin/flags/acme":                      "200 flags.json",
		"GET /admin/restaurants":                     "200 restaurants.json",
		"PUT /admin/restaurants/acme/rapanui":        "200 restaurant.json",
		"GET /admin/doctor":                          "200 doctor.json",
	}
	for _, c := range []struct {
		golden string
		args   string
		code   int
		asked  string
	}{
		{"day-dbs", "day-dbs --company acme --state draining", 0, "GET /admin/day-dbs?companyId=acme&state=DRAINING"},
		{"explain", "explain " + day, 0, "GET /admin/day-dbs/" + day},
		{"explain-json", "explain " + day + " --json", 0, "GET /admin/day-dbs/" + day},
		{"explain", "hold " + day + " --reason audit", 0, "PUT /admin/day-dbs/" + day + `/hold {"reason":"audit"}`},
		{"explain", "hold " + day + " --clear", 0, "DELETE /admin/day-dbs/" + day + `/hold {}`},
		{"restore", "restore " + day + " --reason audit", 0, "POST /admin/day-dbs/" + day + `/restore {"reason":"audit"}`},
		{"crons", "crons", 0, "GET /admin/crons"},
		{"crons", "crons pause rolling-db-rotate --reason audit", 0, `POST /admin/crons/rolling-db-rotate/pause {"reason":"audit"}`},
		{"crons", "crons resume rolling-db-rotate", 0, "POST /admin/crons/rolling-db-rotate/resume"},
		{"run", "run rolling-db-rotate --company acme --day 20261201 --dry-run", 1, `POST /admin/crons/rolling-db-rotate/run {"businessDay":"20261201","companyId":"acme","dryRun":true}; GET /admin/runs/7`},
		{"run-no-wait", "run rolling-db-rotate --no-wait", 0, "POST /admin/crons/rolling-db-rotate/run {}"},
		{"run-refused", "run archive", 1, "POST /admin/crons/archive/run {}"},
		{"run-unknown", "run daily", 1, "POST /admin/crons/daily/run {}"},
		{"runs", "runs --cron rolling-db-rotate", 0, "GET /admin/runs?cron=rolling-db-rotate"},
		{"run", "runs 7", 0, "GET /admin/runs/7"},
		{"flags", "flags acme", 0, "GET /admin/flags/acme"},
		{"flags", "flags acme --rolling-db=on", 0, `PUT /admin/flags/acme {"rollingDb":true}`},
		{"flags", "flags acme --rolling-db=off --rolling-db-drop=off", 0, `PUT /admin/flags/acme {"rollingDb":false,"rollingDbDrop":false}`},
		{"restaurants", "restaurants --company acme", 0, "GET /admin/restaurants?companyId=acme"},
		{"restaurant", "restaurants put acme rapanui --timezone Pacific/Easter --active=no", 0, `PUT /admin/restaurants/acme/rapanui {"active":false,"timezone":"Pacific/Easter"}`},
		{"doctor", "doctor", 1, "GET /admin/doctor"},
	} {
		t.Run(c.args, func(t *testing.T) {
			server := &canned{answers: answers}
			listening := httptest.NewServer(server)
			defer listening.Close()
			env := map[string]string{urlVariable: listening.URL, tokenVariable: "0123456789abcdef"}
			code, out, errOut := call(t.Context(), env, strings.Fields(c.args)...)
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			if asked := strings.Join(server.asked, "; "); asked != c.asked {
				t.Errorf("asked for %s, want %s", asked, c.asked)
			}
			compare(t, c.golden, out+errOut)
			for _, line := range strings.Split(out, "\n") {
				if !strings.Contains(c.args, "--json") && len([]rune(line)) > 100 && !strings.HasPrefix(line, "prod_") && !strings.HasPrefix(c.golden, "explain") && !strings.HasPrefix(c.golden, "doctor") {
					t.Errorf("wider than 100 columns: %s", line)
				}
			}
		})
	}
}

func compare(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("prints\n%s\nwant, as in %s,\n%s", got, file, want)
	}
}

// TestWrongCalls end with code 2 and one line, and ask nobody.
func TestWrongCalls(t *testing.T) {
	t.Parallel()
	server := &canned{}
	listening := httptest.NewServer(server)
	defer listening.Close()
	env := map[string]string{urlVariable: listening.URL, tokenVariable: "0123456789abcdef"}
	without := func(name string) map[string]string {
		less := make(map[string]string)
		for k, v := range env {
			if k != name {
				less[k] = v
			}
		}
		return less
	}
	serving := map[string]string{
		databaseVariable:        "postgres://127.0.0.1/rollingd",
		couchVariable:           "http://admin:secret@127.0.0.1:5984",
		"ROLLINGD_ADMIN_TOKENS": "ana=operator:0123456789abcdef",
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		env  map[string]string
		want string
	}{
		{"rotate", env, `rollingd has no command "rotate"`},
		{"run", env, "wants NAME"},
		{"run a b", env, "wants NAME"},
		{"run archive --dryrun", env, "unknown flag: --dryrun"},
		{"crons now", env, `rollingd crons has no command "now"`},
		{"doctor now", env, "takes no arguments"},
		{"crons pause archive", env, "--reason"},
		{"hold prod_acme_centro_daily_20261101", env, "--reason"},
		{"restore prod_acme_centro_daily_20261101", env, "--reason"},
		{"flags acme --rolling-db=yes", env, "--rolling-db wants on or off"},
		{"flags acme --rolling-db=", env, "--rolling-db wants on or off"},
		{"restaurants put acme centro --active=true", env, "--active wants yes or no"},
		{"crons", without(tokenVariable), tokenVariable},
		{"crons --token-file /nowhere", env, "--token-file"},
		{"crons --url localhost:8080", env, urlVariable},
		{"migrate", env, databaseVariable},
		{"serve", serving, "ROLLINGD_ENV"},
		{"demo --ttl-days 0", env, "--ttl-days"},
		{"demo --days 3", env, "--days"},
		{"dev --listen 127.0.0.1:0 --data " + file + "/x", env, "--data"},
		{"dev --listen 127.0.0.1:0", map[string]string{databaseVariable: "mysql://x"}, databaseVariable},
		{"dev --listen 127.0.0.1:0", map[string]string{couchVariable: "http://127.0.0.1:5984"}, couchVariable},
	} {
		code, out, errOut := call(t.Context(), c.env, strings.Fields(c.args)...)
		errOut = strings.TrimPrefix(errOut, "starting the stores…\n")
		if code != exitUsage || out != "" || strings.Count(errOut, "\n") != 1 || !strings.Contains(errOut, c.want) {
			t.Errorf("%s: code %d, %q, %q", c.args, code, out, errOut)
		}
	}
	if len(server.asked) > 0 {
		t.Errorf("asked for %v", server.asked)
	}
}

// TestSeveralWrongSettings are a line each.
func TestSeveralWrongSettings(t *testing.T) {
	t.Parallel()
	env := map[string]string{"ROLLINGD_ENV": "Prod_1", "DAY_DB_TTL_DAYS": "0"}
	code, out, errOut := call(t.Context(), env, "serve")
	lines := strings.Split(strings.TrimSpace(errOut), "\n")
	if code != exitUsage || out != "" || len(lines) != 5 {
		t.Fatalf("code %d, %q, %q", code, out, errOut)
	}
	for i, variable := range []string{"DAY_DB_TTL_DAYS", "ROLLINGD_ENV", databaseVariable, couchVariable, "ROLLINGD_ADMIN_TOKENS"} {
		if !strings.HasPrefix(lines[i], "error: "+variable+": want ") {
			t.Errorf("line %d is %q, want %s", i, lines[i], variable)
		}
	}
}

// TestUnreachableServer also is a server that is something else.
func TestUnreachableServer(t *testing.T) {
	t.Parallel()
	env := map[string]string{urlVariable: "http://127.0.0.1:1", tokenVariable: "0123456789abcdef"}
	code, out, errOut := call(t.Context(), env, "crons")
	if code != exitFailed || out != "" || !strings.Contains(errOut, "cannot reach http://127.0.0.1:1/admin") {
		t.Errorf("nobody: code %d, %q, %q", code, out, errOut)
	}
	code, out, _ = call(t.Context(), env, "doctor")
	if code != exitFailed || !strings.HasPrefix(out, "fail  api: cannot reach") {
		t.Errorf("doctor: code %d, %q", code, out)
	}
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	env[urlVariable] = other.URL
	code, _, errOut = call(t.Context(), env, "crons")
	if code != exitFailed || !strings.Contains(errOut, "404 Not Found, and not as rollingd does") {
		t.Errorf("something else: code %d, %q", code, errOut)
	}
}

// TestHelpIsComplete: every command says at length what it does and shows an example, within 100 columns.
func TestHelpIsComplete(t *testing.T) {
	t.Parallel()
	root := (&cli{out: new(strings.Builder), errOut: new(strings.Builder), getenv: os.Getenv}).root()
	commands := append(root.Commands(), root)
	for _, cmd := range root.Commands() {
		commands = append(commands, cmd.Commands()...)
	}
	for _, cmd := range commands {
		if cmd.Name() == "help" || cmd.Name() == "completion" {
			continue
		}
		if cmd.Short == "" || cmd.Long == "" || cmd.Example == "" {
			t.Errorf("%s: help is incomplete", cmd.CommandPath())
		}
		for _, line := range strings.Split(cmd.Long+"\n"+cmd.Example, "\n") {
			if len([]rune(line)) > 100 {
				t.Errorf("%s: wide line in help: %s", cmd.CommandPath(), line)
			}
		}
	}
}
