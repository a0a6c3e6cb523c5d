package fence_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

// holderVariable holds the database URL of a process that is to hold a lease.
const holderVariable = "ROLLINGD_TEST_FENCE_HOLDER"

// runHolder is the other process: it holds the lease, writes a row once, and again when it is told to on its standard
// input: properly, and like code that has forgotten to check its lease. It says how each went.
func runHolder(dsn string) int {
	ctx := context.Background()
	pool, err := pg.Open(ctx, dsn, pg.Options{})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer pool.Close()
	write := func(lease fence.Lease, checked bool) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if checked {
				if err := lease.Check(ctx, tx); err != nil {
					return err
				}
			}
			_, err := tx.Exec(ctx, `update restaurants set legacy_db = 'tables-holder', fencing_token = $1`, lease.Token)
			return err
		})
	}
	// It is told of a loss when it would renew, at the latest after a third of this.
	err = fence.New(pool, "holder", 15*time.Second).Hold(ctx, "sweep", func(ctx context.Context, lease fence.Lease) error {
		fmt.Println("wrote:", write(lease, true))
		bufio.NewReader(os.Stdin).ReadString('\n')
		fmt.Println("lost:", errors.Is(write(lease, true), fence.ErrLost))
		fmt.Println("refused:", pg.Code(write(lease, false)))
		<-ctx.Done()
		return ctx.Err()
	})
	fmt.Println("told:", errors.Is(err, fence.ErrLost))
	return 0
}

// TestStoppedHolderWritesNothing pauses a real process past its lease and lets it go on after another has taken over.
func TestStoppedHolderWritesNothing(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	pool := pgtest.Open(t, dsn)
	_, err := pool.Exec(t.Context(), `insert into restaurants (company_id, restaurant_id, legacy_db) values ('acme', 'north', 'tables-test')`)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holderVariable+"="+dsn)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill() // Fails for a process that has ended, which is as well.
		cmd.Wait()
	})
	lines := bufio.NewScanner(stdout)
	says := func(want string) {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("the holder ended: %v", lines.Err())
		}
		if got := lines.Text(); got != want {
			t.Fatalf("the holder says %q, want %q", got, want)
		}
	}
	says("wrote: <nil>")
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	end(t, pool, "sweep")
	lease := acquire(t, fence.New(pool, "successor", time.Minute), "sweep")
	_, err = pool.Exec(t.Context(), `update restaurants set legacy_db = 'tables-successor', fencing_token = $1`, lease.Token)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(stdin, "go on")
	says("lost: true")
	says("refused: RD001") // The row itself remembers the highest token.
	says("told: true")

	var legacy string
	var token int64
	err = pool.QueryRow(t.Context(), `select legacy_db, fencing_token from restaurants`).Scan(&legacy, &token)
	if err != nil || legacy != "tables-successor" || token != lease.Token {
		t.Errorf("the row holds %s under token %d, %v", legacy, token, err)
	}
	if err := check(t, pool, lease); err != nil {
		t.Errorf("the successor's lease: %v", err)
	}
}
