package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/rollingd/rollingd/internal/devstack/couchtest"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

const destroyerToken = "destroyer-token-0123456789"

// program is the program with a command line and no environment but this.
func program(env map[string]string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = []string{mainVariable + "=1", "PATH=" + os.Getenv("PATH"), "TZ=UTC", "ZONEINFO=/nowhere"}
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd
}

var addrInLog = regexp.MustCompile(`msg=started .*addr=(\S+)`)

// TestServeAndItsTools starts the program as an operator does, on empty stores, switches a canary on with the hand tools,
// and stops it.
func TestServeAndItsTools(t *testing.T) {
	t.Parallel()
	env := couchtest.Env(t)
	server := program(map[string]string{
		"ROLLINGD_ENV":          env,
		databaseVariable:        pgtest.EmptyDSN(t),
		"ROLLINGD_COUCHDB_URL":  couchtest.New(t),
		"ROLLINGD_ADMIN_TOKENS": "dora=destroyer:" + destroyerToken,
		"ROLLINGD_LISTEN_ADDR":  "127.0.0.1:0",
	}, "serve")
	stderr, err := server.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Process.Kill() // Fails for a process that has ended, which is as well.
		server.Wait()
	})
	log := bufio.NewScanner(stderr)
	var logged strings.Builder
	url := ""
	for url == "" && log.Scan() {
		fmt.Fprintln(&logged, log.Text())
		if found := addrInLog.FindStringSubmatch(log.Text()); found != nil {
			url = "http://" + found[1]
		}
	}
	if url == "" {
		t.Fatalf("it did not start:\n%s", logged.String())
	}

	client := map[string]string{urlVariable: url, tokenVariable: destroyerToken}
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"restaurants put acme centro", 0, "America/Santiago"},
		{"restaurants put acme rapanui --timezone Pacific/Easter", 0, "Pacific/Easter"},
		{"flags acme --rolling-db=on", 0, "rolling-db       on"},
		{"run rolling-db-rotate --company acme --dry-run", 0, "dry run"},
		{"run rolling-db-rotate --company acme", 0, "succeeded"},
		{"day-dbs --state active", 0, env + "_acme_centro_daily_"},
		{"run rolling-db-drop-eval --dry-run --day 20991231", 0, "succeeded"},
		{"run rolling-db-drop-eval --day 20991231", 1, "code:  business_day_refused"},
		{"run rolling-db-rotate --company acmee", 1, "code:  scope_refused"},
		{"crons", 0, "Pacific/Easter"},
		{"doctor", 0, "ok    postgres: answers"},
	} {
		code, out, errOut := call(t.Context(), client, strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(out+errOut, c.want) {
			t.Errorf("%s: code %d\n%s%s", c.args, code, out, errOut)
		}
	}

	if err := server.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for log.Scan() {
		fmt.Fprintln(&logged, log.Text())
	}
	if err := server.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	if !strings.Contains(logged.String(), "msg=stopped") || strings.Contains(logged.String(), destroyerToken) || strings.Contains(logged.String(), "secret") {
		t.Errorf("log:\n%s", logged.String())
	}
}

// TestServeRefusesWrongSettings in one line that names them, with code 2, and never with a stack or a secret.
func TestServeRefusesWrongSettings(t *testing.T) {
	t.Parallel()
	good := map[string]string{
		"ROLLINGD_ENV":          "prod",
		databaseVariable:        "postgres://rollingd:secret@127.0.0.1:1/rollingd",
		"ROLLINGD_COUCHDB_URL":  "http://admin:secret@127.0.0.1:1",
		"ROLLINGD_ADMIN_TOKENS": "dora=destroyer:" + destroyerToken,
		"ROLLINGD_LISTEN_ADDR":  "127.0.0.1:0",
	}
	for _, c := range []struct {
		name, value string
		code        int
		want        string
	}{
		{"ROLLINGD_ENV", "Prod_1", exitUsage, "ROLLINGD_ENV: want the prefix"},
		{"ROLLINGD_COUCHDB_URL", "couch:secret", exitUsage, "ROLLINGD_COUCHDB_URL: want http://"},
		{"ROLLINGD_ADMIN_TOKENS", "dora=destroyer:secret", exitUsage, "ROLLINGD_ADMIN_TOKENS: want actor=role:token"},
		{"ROLLINGD_LISTEN_ADDR", "8080", exitUsage, "ROLLINGD_LISTEN_ADDR: want host:port"},
		{"DAY_DB_TTL_DAYS", "thirty", exitUsage, "DAY_DB_TTL_DAYS: want a whole number"},
		{"DAY_DB_TTL_DAYS", "0", exitUsage, "DAY_DB_TTL_DAYS: want a whole number"},
		{"ROLLINGD_SEAL_SETTLE", "20", exitUsage, "ROLLINGD_SEAL_SETTLE: want a duration"},
		{"ROLLINGD_SEAL_SETTLE", "1m", exitUsage, "ROLLINGD_SEAL_SETTLE: want a duration"},
		{"ROLLINGD_DEVICE_WRITE_LIMIT", "-5m", exitUsage, "ROLLINGD_DEVICE_WRITE_LIMIT: want a duration"},
		{"ROLLINGD_LEASE_TTL", "1s", exitUsage, "ROLLINGD_LEASE_TTL: want a duration"},
		{"ROLLINGD_WORKERS", "many", exitUsage, "ROLLINGD_WORKERS: want a whole number"},
		{"ROLLINGD_CATCH_UP", "yes", exitUsage, "ROLLINGD_CATCH_UP: want one of off, on"},
		{"ROLLINGD_STOP_TIMEOUT", "0s", exitUsage, "ROLLINGD_STOP_TIMEOUT: want a duration"},
		{"ROLLINGD_LOG_LEVEL", "loud", exitUsage, "ROLLINGD_LOG_LEVEL: want one of"},
		{"ROLLINGD_LOG_FORMAT", "xml", exitUsage, "ROLLINGD_LOG_FORMAT: want one of"},
		{databaseVariable, "postgres://rollingd:secret@:port", exitUsage, databaseVariable + ": want postgres://"},
		{databaseVariable, "postgres://rollingd:secret@127.0.0.1:1/rollingd", exitFailed, "postgres is unavailable"},
	} {
		env := make(map[string]string)
		for k, v := range good {
			env[k] = v
		}
		env[c.name] = c.value
		cmd := program(env, "serve")
		out, err := cmd.CombinedOutput()
		code := cmd.ProcessState.ExitCode()
		if err == nil || code != c.code || strings.Count(string(out), "\n") != 1 || !strings.Contains(string(out), c.want) {
			t.Errorf("%s=%s: code %d\n%s", c.name, c.value, code, out)
		}
		if strings.Contains(string(out), "secret") {
			t.Errorf("%s: a secret is told\n%s", c.name, out)
		}
	}
}

// TestMigrate applies once, and says what is there.
func TestMigrate(t *testing.T) {
	t.Parallel()
	env := map[string]string{databaseVariable: pgtest.EmptyDSN(t)}
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"migrate --status", 1, "pending"},
		{"migrate", 0, "001_foundation.sql"},
		{"migrate", 0, "nothing to do"},
		{"migrate --status", 0, "004_crons.sql"},
	} {
		code, out, errOut := call(t.Context(), env, strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(out, c.want) || errOut != "" {
			t.Errorf("%s: code %d\n%s%s", c.args, code, out, errOut)
		}
	}
}
