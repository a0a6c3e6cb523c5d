package cron_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/internal/cron"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
	"github.com/rollingd/rollingd/internal/run"
)

const (
	// leaderVariable holds the database URL of a process that is to lead.
	leaderVariable = "ROLLINGD_TEST_CRON_LEADER"
	// leaderSchedule holds the schedule of its job.
	leaderSchedule = "ROLLINGD_TEST_CRON_SCHEDULE"
	// leaderTTL is long enough that a busy machine does not take the lease away. A leader that was stopped learns within a
	// third of it that its lease is lost.
	leaderTTL = 15 * time.Second
)

// runLeader is the other process: it runs the job that is due, says "running", goes on when it is told to on its
// standard input, and says whether its context was cancelled because the lease was lost.
func runLeader(dsn string) int {
	ctx := context.Background()
	pool, err := pg.Open(ctx, dsn, pg.Options{})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer pool.Close()
	registry, err := cron.New(cron.Options{
		Pool:   pool,
		Leases: fence.New(pool, "leader", leaderTTL),
		Logger: slog.New(slog.DiscardHandler),
	}, cron.Job{
		Name: "nightly", Schedule: os.Getenv(leaderSchedule),
		Run: func(ctx context.Context, r run.Run) error {
			fmt.Println("running")
			bufio.NewReader(os.Stdin).ReadString('\n')
			<-ctx.Done()
			fmt.Println(errors.Is(context.Cause(ctx), fence.ErrLost))
			// It claims success; nobody is to believe it.
			r.Report.Add("documents", 1000)
			return nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	err = registry.RunDue(ctx, "nightly")
	fmt.Println(errors.Is(err, fence.ErrLost))
	return 0
}

// leader is the other process.
type leader struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Scanner
}

func startLeader(t *testing.T, dsn, schedule string) *leader {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), leaderVariable+"="+dsn, leaderSchedule+"="+schedule)
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
	l := &leader{cmd: cmd, stdin: stdin, lines: bufio.NewScanner(stdout)}
	l.says(t, "running")
	return l
}

func (l *leader) says(t *testing.T, want string) {
	t.Helper()
	if !l.lines.Scan() {
		t.Fatalf("the leader ended: %v", l.lines.Err())
	}
	if got := l.lines.Text(); got != want {
		t.Fatalf("the leader says %q, want %q", got, want)
	}
}

func (l *leader) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := l.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// stop suspends the leader, and returns when none of its threads runs any more.
func (l *leader) stop(t *testing.T) {
	t.Helper()
	l.signal(t, syscall.SIGSTOP)
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(l.cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("the leader was not stopped: %v, %v", status, err)
	}
}

// endLease is what the time does to the lease of a leader that renews it no more.
func endLease(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), `update leases set expires_at = now() where name = 'cron/nightly'`); err != nil {
		t.Fatal(err)
	}
}

// ledger is everything that a leader could have written.
func ledger(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	var all string
	err := pool.QueryRow(t.Context(), `
		select json_build_object(
		  'runs', (select json_agg(r order by id) from cron_runs r),
		  'leases', (select json_agg(l order by name) from leases l))`).Scan(&all)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestKilledLeader: whoever looks next, once the lease has ended, closes the run and serves its time again.
func TestKilledLeader(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	pool := pgtest.Open(t, dsn)
	ran := make(chan run.Run, 10)
	job := countingJob(t, pool, "nightly", time.Hour, ran)
	knownForDays(t, pool, "nightly", "UTC")
	dead := startLeader(t, dsn, job.Schedule)
	registry := newRegistry(t, pool, job)
	runDue(t, registry, "nightly")
	if len(ran) != 0 {
		t.Fatal("it ran while another process was running it")
	}
	dead.signal(t, syscall.SIGKILL)
	endLease(t, pool)
	runDue(t, registry, "nightly")
	assertTakenOver(t, registry, len(ran))
}

func assertTakenOver(t *testing.T, registry *cron.Registry, ran int) {
	t.Helper()
	runs := runsOf(t, registry, "nightly")
	if ran != 1 || len(runs) != 2 {
		t.Fatalf("%d runs here, %d on record", ran, len(runs))
	}
	second, first := runs[0], runs[1]
	if first.State != cron.Failed || len(first.Failures) != 1 || first.Failures[0].Step != "lease" || first.FinishedAt == nil {
		t.Errorf("run of the former leader is %+v", first)
	}
	if second.State != cron.Succeeded || second.Trigger != cron.TriggerCatchUp || !second.DueAt.Equal(*first.DueAt) || second.Token <= first.Token {
		t.Errorf("run after it is %+v", second)
	}
}

// TestStoppedLeader pauses a leader past its lease, as a suspended machine is paused, and lets it go on after another
// has taken over: it changes nothing, and its job is told.
func TestStoppedLeader(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	pool := pgtest.Open(t, dsn)
	ran := make(chan run.Run, 10)
	job := countingJob(t, pool, "nightly", time.Hour, ran)
	knownForDays(t, pool, "nightly", "UTC")
	stopped := startLeader(t, dsn, job.Schedule)
	stopped.stop(t)
	endLease(t, pool)
	registry := newRegistry(t, pool, job)
	// If it was stopped in the middle of a transaction, the lease counts as held until Postgres ends that.
	for began := time.Now(); len(ran) == 0 && time.Since(began) < 2*time.Minute; {
		runDue(t, registry, "nightly")
	}
	assertTakenOver(t, registry, len(ran))
	before := ledger(t, pool)

	stopped.signal(t, syscall.SIGCONT)
	fmt.Fprintln(stopped.stdin, "go on")
	stopped.says(t, "true") // Its context was cancelled with fence.ErrLost.
	stopped.says(t, "true") // It could not write its end.
	if err := stopped.cmd.Wait(); err != nil {
		t.Errorf("the former leader: %v", err)
	}
	if after := ledger(t, pool); after != before {
		t.Errorf("the former leader changed\n%s\nto\n%s", before, after)
	}
}

// TestPoisonousJobIsGivenUp: a job that takes its process down is not tried all day.
func TestPoisonousJobIsGivenUp(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	pool := pgtest.Open(t, dsn)
	job := countingJob(t, pool, "nightly", time.Hour, make(chan run.Run, 10))
	knownForDays(t, pool, "nightly", "UTC")
	for range 3 {
		dead := startLeader(t, dsn, job.Schedule)
		dead.signal(t, syscall.SIGKILL)
		endLease(t, pool)
	}
	registry := newRegistry(t, pool, job)
	runDue(t, registry, "nightly")
	runs := runsOf(t, registry, "nightly")
	if len(runs) != 3 || runs[0].State != cron.Failed {
		t.Errorf("runs are %+v", runs)
	}
}

func mustUnmarshal(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatal(err)
	}
}
