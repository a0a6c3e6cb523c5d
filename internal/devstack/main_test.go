package devstack

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// ownerVariable makes the test binary a process that owns a server, "postgres" or "couchdb", in the folder of
// folderVariable, prints its URL, and waits to be killed.
const (
	ownerVariable  = "ROLLINGD_TEST_OWNER"
	folderVariable = "ROLLINGD_TEST_FOLDER"
)

func TestMain(m *testing.M) {
	if server := os.Getenv(ownerVariable); server != "" {
		own(server, os.Getenv(folderVariable))
	}
	os.Exit(m.Run())
}

func own(server, dir string) {
	var url string
	var err error
	switch server {
	case "postgres":
		var pg *Postgres
		if pg, err = StartPostgres(context.Background(), PostgresOptions{Dir: dir}); err == nil {
			url = pg.DSN()
		}
	case "couchdb":
		var couch *CouchDB
		if couch, err = StartCouchDB(context.Background(), couchDBOptions(dir)); err == nil {
			url = couch.URL()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(url)
	io.Copy(io.Discard, os.Stdin)
	os.Exit(1)
}

// startOwner starts a process that owns a server, and returns the server's URL and the function that kills the owner
// with SIGKILL and waits for its end.
func startOwner(t *testing.T, server, dir string) (url string, kill func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), ownerVariable+"="+server, folderVariable+"="+dir)
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	t.Cleanup(kill)
	if _, err := fmt.Fscanln(stdout, &url); err != nil {
		t.Fatalf("the owner of %s printed no URL: %v", server, err)
	}
	return url, kill
}

// folder is a temporary folder that every user can reach, unlike the one of testing.T.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rollingd-devstack-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "server")
}

// processesOf lists the processes that name the folder in their arguments or environment: the server and what it started.
func processesOf(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	pids, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		args, _ := os.ReadFile(pid + "/cmdline") // Unreadable when the process has ended meanwhile.
		env, _ := os.ReadFile(pid + "/environ")
		if strings.Contains(string(args)+string(env), dir) && filepath.Base(pid) != fmt.Sprint(os.Getpid()) {
			found = append(found, filepath.Base(pid)+" "+strings.ReplaceAll(string(args), "\x00", " "))
		}
	}
	return found
}

// expectNoProcess waits until no process of the folder is left.
func expectNoProcess(t *testing.T, dir string) {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	poll := time.NewTicker(20 * time.Millisecond)
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
