package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/demo"
	"github.com/rollingd/rollingd/internal/devstack"
	"github.com/rollingd/rollingd/internal/devstack/couchtest"
)

// session is a running rollingd, whose temporary files all lie in tmp.
type session struct {
	cmd *exec.Cmd
	tmp string
	out bytes.Buffer
	mu  sync.Mutex
	log strings.Builder
	// said are the lines of its standard error that nobody has awaited yet. However
	// many there are, they are read: who is not read stands still.
	said []string
	// more says that there may be more of them, and is closed behind the last.
	more chan struct{}
}

// start runs rollingd with these variables of its own in the environment.
func start(t *testing.T, args string, env ...string) *session {
	t.Helper()
	p := &session{tmp: reachable(t), more: make(chan struct{}, 1)}
	variables := map[string]string{"TMPDIR": p.tmp, "HOME": os.Getenv("HOME")}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		variables[name] = value
	}
	p.cmd = program(variables, strings.Fields(args)...)
	p.cmd.Stdout = &p.out
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(p.more)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			p.mu.Lock()
			fmt.Fprintln(&p.log, lines.Text())
			p.said = append(p.said, lines.Text())
			p.mu.Unlock()
			select {
			case p.more <- struct{}{}:
			default: // It is said already.
			}
		}
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // It has ended already, unless the test failed.
		<-read
		_ = p.cmd.Wait()
	})
	return p
}

// reachable is a temporary folder that every user can reach, unlike the one of
// testing.T: a private Postgres does not run as root.
func reachable(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rollingd-cmd-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// await returns the first line that holds the text.
func (p *session) await(t *testing.T, text string) string {
	t.Helper()
	timer := time.NewTimer(90 * time.Second)
	defer timer.Stop()
	for open := true; ; {
		if line, found := p.find(text); found {
			return line
		}
		if !open {
			t.Fatalf("it ended without saying %q:\n%s", text, p.text())
		}
		select {
		case _, open = <-p.more:
		case <-timer.C:
			t.Fatalf("it does not say %q:\n%s", text, p.text())
		}
	}
}

// find takes the lines up to the first that holds the text, or all.
func (p *session) find(text string) (line string, found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, line := range p.said {
		if strings.Contains(line, text) {
			p.said = p.said[i+1:]
			return line, true
		}
	}
	p.said = nil
	return "", false
}

func (p *session) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// end waits for the end and returns the exit code.
func (p *session) end(t *testing.T) int {
	t.Helper()
	timer := time.AfterFunc(3*time.Minute, func() { _ = p.cmd.Process.Kill() })
	defer timer.Stop()
	for range p.more { // Until the last line was read, as Wait wants it.
	}
	err := p.cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *session) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// expectNothingLeft waits until no process names the folder.
func expectNothingLeft(t *testing.T, dir string) {
	t.Helper()
	deadline := time.NewTimer(90 * time.Second)
	defer deadline.Stop()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for {
		left := processesOf(t, dir)
		if len(left) == 0 {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("left behind: %v", left)
		case <-poll.C:
		}
	}
}

func processesOf(t *testing.T, dir string) []string {
	t.Helper()
	pids, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, pid := range pids {
		args, _ := os.ReadFile(pid + "/cmdline") // Unreadable when the process has ended meanwhile.
		if strings.Contains(string(args), dir) {
			found = append(found, filepath.Base(pid)+" "+strings.ReplaceAll(string(args), "\x00", " "))
		}
	}
	return found
}

// accessOf reads the line with the exports.
func accessOf(t *testing.T, line string) (url, token string) {
	t.Helper()
	for _, field := range strings.Fields(line) {
		name, value, _ := strings.Cut(field, "=")
		switch name {
		case urlVariable:
			url = value
		case tokenVariable:
			token = value
		}
	}
	if url == "" || token == "" {
		t.Fatalf("no access in %q", line)
	}
	return url, token
}

// activeDay asks a server of the demo tenant for its ACTIVE day.
func activeDay(t *testing.T, url, token string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/admin/day-dbs?companyId=demo&state=ACTIVE", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var page struct {
		DayDBs []struct {
			DBName string `json:"dbName"`
			Since  string `json:"since"`
		} `json:"dayDbs"`
	}
	if err := json.Unmarshal(body, &page); err != nil || len(page.DayDBs) != 1 {
		t.Fatalf("ACTIVE days of the demo tenant: %s, %v", body, err)
	}
	return page.DayDBs[0].DBName + " since " + page.DayDBs[0].Since
}

// manifestFor reads the manifest as a till does.
func manifestFor(t *testing.T, url, token string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/db/core/day_manifest", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// TestDevStopsAndComesBack stops it by Ctrl-C and by kill -9, and starts it again on the same folder.
func TestDevStopsAndComesBack(t *testing.T) {
	t.Parallel()
	data := filepath.Join(reachable(t), "data")
	args := "dev --listen 127.0.0.1:0 --data " + data

	first := start(t, args)
	line := first.await(t, "export ")
	url, token := accessOf(t, line)
	day := activeDay(t, url, token)
	_, till, _ := strings.Cut(first.await(t, "TILL="), "TILL=")
	if got := manifestFor(t, url, till); !strings.Contains(got, `"currentDayDb":"daily_`) {
		t.Errorf("a till reads the manifest: %s", got)
	}
	if len(processesOf(t, data)) < 2 {
		t.Error("its stores name the folder nowhere, so leftovers would not be found either")
	}
	second := start(t, args)
	if code := second.end(t); code != exitUsage || !strings.Contains(second.text(), "is used by another rollingd dev") {
		t.Errorf("a second one on the same folder exits with %d and says:\n%s", code, second.text())
	}
	first.signal(t, syscall.SIGINT)
	if code := first.end(t); code != exitOK {
		t.Errorf("after Ctrl-C it exits with %d and says:\n%s", code, first.text())
	}
	expectNothingLeft(t, data)

	again := start(t, args)
	url, newToken := accessOf(t, again.await(t, "export "))
	if newToken == token {
		t.Error("the token is that of the former start")
	}
	if got := activeDay(t, url, newToken); got != day {
		t.Errorf("after a restart the ACTIVE day is %s, was %s", got, day)
	}
	again.signal(t, syscall.SIGKILL)
	again.end(t)
	expectNothingLeft(t, data)
}

func TestDevOnAPortThatIsTaken(t *testing.T) {
	t.Parallel()
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	p := start(t, "dev --listen "+taken.Addr().String()+" --data "+filepath.Join(reachable(t), "data"))
	code := p.end(t)
	want := "error: --listen: another process listens on " + taken.Addr().String() + "; choose another port, or 127.0.0.1:0 for a free one\n"
	if code != exitUsage || p.text() != want {
		t.Errorf("exit code %d, said %q, want %q", code, p.text(), want)
	}
}

func TestDemoOnPrivateStores(t *testing.T) {
	t.Parallel()
	p := start(t, "demo --days 8 --ttl-days 3")
	if code := p.end(t); code != exitOK {
		t.Errorf("exit code %d:\n%s%s", code, p.out.String(), p.text())
	}
	if !strings.Contains(p.out.String(), ", 0 lost\n") || !strings.Contains(p.out.String(), "\nNothing was lost. 8 days in ") {
		t.Errorf("it prints:\n%s", p.out.String())
	}
	expectNothingLeft(t, p.tmp)
	if left, err := filepath.Glob(filepath.Join(p.tmp, "*")); err != nil || len(left) > 0 {
		t.Errorf("left behind in the temporary folder: %v, %v", left, err)
	}
}

func TestDemoThatIsInterrupted(t *testing.T) {
	t.Parallel()
	p := start(t, "demo --days 1000 --ttl-days 3") // It does not end before it is interrupted.
	p.await(t, "playing ")
	p.signal(t, syscall.SIGINT)
	if code := p.end(t); code != exitFailed || !strings.HasSuffix(p.text(), "error: interrupted\n") {
		t.Errorf("exit code %d:\n%s", code, p.text())
	}
	expectNothingLeft(t, p.tmp)
	if left, err := filepath.Glob(filepath.Join(p.tmp, "*")); err != nil || len(left) > 0 {
		t.Errorf("left behind in the temporary folder: %v, %v", left, err)
	}
}

// TestDemoOnGivenStores also shows that it leaves nothing in them.
func TestDemoOnGivenStores(t *testing.T) {
	t.Parallel()
	couch := couchtest.New(t)
	pg, err := devstack.StartPostgres(t.Context(), devstack.PostgresOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer pg.Stop()
	p := start(t, "demo --days 8 --ttl-days 3 --json",
		databaseVariable+"="+pg.DSN(), couchVariable+"="+couch, proxySecretVariable+"="+couchtest.ProxySecret)
	if code := p.end(t); code != exitOK {
		t.Fatalf("exit code %d:\n%s%s", code, p.out.String(), p.text())
	}
	var s demo.Summary
	if err := json.Unmarshal(p.out.Bytes(), &s); err != nil || !s.Good() || s.Verification.Acknowledged == 0 || s.States["DROPPED"] == 0 {
		t.Errorf("summary: %v\n%s", err, p.out.String())
	}
	for _, name := range []string{s.Databases[0].DBName, "tables-" + s.Env, s.Restored.DBName, s.Databases[len(s.Databases)-1].DBName} {
		res, err := http.Get(couch + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusNotFound {
			t.Errorf("%s after the demo: %d", name, res.StatusCode)
		}
	}
}

func TestDemoIsCalledWrongly(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"demo --days 20":               "--days: want 35 or more",
		"demo --days 8 --ttl-days 0":   "--ttl-days: want",
		"demo --days 8 --ttl-days 3 x": "demo takes no arguments",
	} {
		p := start(t, args)
		if code := p.end(t); code != exitUsage || !strings.Contains(p.text(), want) || strings.Count(p.text(), "\n") != 1 {
			t.Errorf("%s: exit code %d, said %q", args, code, p.text())
		}
	}
	p := start(t, "demo", couchVariable+"=http://admin:secret@127.0.0.1:1")
	if code := p.end(t); code != exitUsage || !strings.Contains(p.text(), proxySecretVariable) {
		t.Errorf("without the proxy secret: exit code %d, said %q", code, p.text())
	}
}
