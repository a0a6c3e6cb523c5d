package hosted_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// pooledDSN starts a PgBouncer in transaction mode in front of the database and returns the URL that leads through it. It
// ends with the test. Without the binary the test is skipped.
func pooledDSN(t *testing.T, dsn string) string {
	t.Helper()
	binary, err := exec.LookPath("pgbouncer")
	if err != nil {
		binary = "/usr/sbin/pgbouncer" // Debian's place, which is not in everybody's PATH.
		if _, err := os.Stat(binary); err != nil {
			t.Skip("no pgbouncer: apt-get install pgbouncer")
		}
	}
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal("the URL of the test's database cannot be read")
	}
	file := poolerConfig(t, u)
	cmd := exec.Command(binary, file)
	if os.Geteuid() == 0 {
		// It refuses to run as root.
		const nobody = 65534
		for _, path := range []string{filepath.Dir(file), file} {
			if err := os.Chown(path, nobody, nobody); err != nil {
				t.Fatal(err)
			}
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal("start pgbouncer: ", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if t.Failed() {
			t.Log("pgbouncer: ", log.String())
		}
	})
	u.Host = ""
	u.RawQuery = url.Values{"host": {filepath.Dir(file)}, "port": {poolerPort}}.Encode()
	awaitPooler(t, u.String(), ended)
	return u.String()
}

// poolerPort is part of the name of a pooler's socket, which lies in a folder of its own: a port of the machine that was
// found free may be another's when the pooler starts.
const poolerPort = "6432"

// poolerConfig lies, as the socket will, in a folder that another user can reach, as t.TempDir does not.
func poolerConfig(t *testing.T, target *url.URL) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rollingd-pgbouncer-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	password, _ := target.User.Password()
	config := fmt.Sprintf(`[databases]
* = host=%s port=%s user=%s password='%s'
[pgbouncer]
listen_addr =
listen_port = %s
unix_socket_dir = %s
auth_type = any
pool_mode = transaction
default_pool_size = 6
`, target.Hostname(), target.Port(), target.User.Username(), password, poolerPort, dir)
	file := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func awaitPooler(t *testing.T, dsn string, ended <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		conn, err := pgx.Connect(ctx, dsn)
		if err == nil {
			conn.Close(ctx)
			return
		}
		select {
		case <-ended:
			t.Fatal("pgbouncer ended")
		case <-ctx.Done():
			t.Fatal("pgbouncer did not answer: ", err)
		case <-ticker.C:
		}
	}
}

// TestPoolerIsInTransactionMode makes sure that the tests over PgBouncer mean what they say: a session does not stay with
// a client.
func TestPoolerIsInTransactionMode(t *testing.T) {
	t.Parallel()
	dsn := pooledDSN(t, hostedDSN(t))
	connect := func() *pgx.Conn {
		config, err := pgx.ParseConfig(dsn)
		if err != nil {
			t.Fatal("the URL of the pooler cannot be read")
		}
		config.DefaultQueryExecMode = pgx.QueryExecModeExec
		conn, err := pgx.ConnectConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
		return conn
	}
	backend := func(row pgx.Row) int {
		var pid int
		if err := row.Scan(&pid); err != nil {
			t.Fatal(err)
		}
		return pid
	}
	const query = `select pg_backend_pid()`
	one, other := connect(), connect()
	before := backend(one.QueryRow(t.Context(), query))
	tx, err := other.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if held := backend(tx.QueryRow(t.Context(), query)); held != before {
		t.Fatalf("the only idle session is %d, and a transaction is given %d", before, held)
	}
	if after := backend(one.QueryRow(t.Context(), query)); after == before {
		t.Fatal("a session belongs to a client for longer than a transaction")
	}
}
