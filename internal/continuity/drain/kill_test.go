package drain

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/continuity/primary"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg"
)

// child is a drainer in a process of its own, which signals itself at a call.
type child struct {
	DSN, HostedDSN string
	// Function is what is called when the signal comes, Behind whether it comes when
	// the call was answered.
	Function string
	Behind   bool
	// Signal is SIGKILL or SIGSTOP.
	Signal syscall.Signal
}

const childVariable = "ROLLINGD_DRAIN_TEST_CHILD"

// childOr drains in a child process, and runs the tests otherwise.
func childOr(m *testing.M, tests func(*testing.M)) {
	setting := os.Getenv(childVariable)
	if setting == "" {
		tests(m)
		return
	}
	var c child
	if err := json.Unmarshal([]byte(setting), &c); err != nil {
		panic(err)
	}
	if err := c.drain(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (c child) drain() error {
	ctx := context.Background()
	pool, err := pg.Open(ctx, c.DSN, pg.Options{})
	if err != nil {
		return err
	}
	other, err := pg.Open(ctx, c.HostedDSN, pg.Options{})
	if err != nil {
		return err
	}
	hit := func(function string, behind bool) {
		if function == c.Function && behind == c.Behind {
			c.Function = "" // Once.
			continued := make(chan os.Signal, 1)
			signal.Notify(continued, syscall.SIGCONT)
			_ = syscall.Kill(os.Getpid(), c.Signal)
			// The kernel may let this thread run on for a while. It goes on when the
			// process is told to, which one that is killed never is.
			<-continued
		}
	}
	tr := &transport{whole: hosted.NewPostgres(other)}
	tr.before = func(_ int64, function string) error { hit(function, false); return nil }
	tr.after = func(_ int64, function string) error { hit(function, true); return nil }
	p, err := primary.New(primary.Options{Pool: pool, Lease: time.Hour, Instance: "child"})
	if err != nil {
		return err
	}
	d, err := New(Options{
		Queue: hosted.NewQueue(tr), Fence: hosted.NewFence(tr), Primary: p,
		Leases:  fence.New(pool, "child", time.Minute),
		Metrics: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler), Workers: 1, Batch: 5,
	})
	if err != nil {
		return err
	}
	_, err = d.RunOnce(ctx)
	return err
}

func (w *world) child(c child) *exec.Cmd {
	w.Helper()
	c.DSN, c.HostedDSN = w.dsn, w.hostedDSN
	setting, err := json.Marshal(c)
	if err != nil {
		w.Fatal(err)
	}
	cmd := exec.CommandContext(w.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+string(setting))
	return cmd
}

// steps are the calls between which something happens that a process can die in
// the middle of.
var steps = []child{
	{Function: "continuity_begin_catchup"},
	{Function: "continuity_claim_commands", Behind: true},
	{Function: "continuity_ack_commands"},
	{Function: "continuity_ack_commands", Behind: true},
	{Function: "continuity_fail_command"},
	{Function: "continuity_seal", Behind: true},
	{Function: "continuity_cutover"},
	{Function: "continuity_cutover", Behind: true},
}

func (c child) String() string { return fmt.Sprintf("%s behind=%t", c.Function, c.Behind) }

// TestKilled kills a real process, which gives nothing back.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, c := range steps {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.outage()
			c.Signal = syscall.SIGKILL
			cmd := w.child(c)
			out, _ := cmd.CombinedOutput()
			if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() {
				t.Fatalf("the child lived: %s", out)
			}
			w.checkHistory(false)
			w.finish(3)
			w.checkOutage()
		})
	}
}

// TestStopped stops a real process until another has brought the outage to its
// end. When it goes on, it fails and changes nothing.
func TestStopped(t *testing.T) {
	t.Parallel()
	for _, c := range steps {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.outage()
			c.Signal = syscall.SIGSTOP
			cmd := w.child(c)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var status syscall.WaitStatus
			if _, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
				t.Fatalf("the child was not stopped: %v, %v", status, err)
			}
			w.finish(3)
			if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			// The last call was answered with what came of it.
			if err := cmd.Wait(); err == nil && c.Function != "continuity_cutover" {
				t.Error("the child did not notice")
			}
			w.checkOutage()
			w.checkHistory(true)
		})
	}
}
