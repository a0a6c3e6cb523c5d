package backup

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
	"github.com/rollingd/rollingd/internal/run"
	"github.com/rollingd/rollingd/migrations"
)

func TestRestoreTest(t *testing.T) {
	w := newWorld(t, Options{})
	w.must(w.Primary)
	// A run that died has left its scratch database.
	w.exec(`create database ` + w.pool.Config().ConnConfig.Database + scratchSuffix)
	result := w.must(w.RestoreTest)
	if m := w.backups(PrimaryKind)[0]; result.Counters["tables"] != int64(len(m.Rows)) || result.Counters["rows"] < 2 {
		t.Errorf("the report is %+v", result)
	}
	w.wantNoScratch()
}

func TestRestoreTestWithoutBackup(t *testing.T) {
	w := newWorld(t, Options{})
	if _, err := w.do(w.RestoreTest, false); !errors.Is(err, ErrNoBackup) {
		t.Errorf("the error is %v, want ErrNoBackup", err)
	}
}

func TestRestoreTestFindsFaults(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(w *world, m Manifest) error
		want  error
	}{
		{"a bit", func(w *world, m Manifest) error {
			return rewrite(w, m.File, func(dump []byte) []byte { dump[len(dump)/2] ^= 1; return dump })
		}, ErrDamaged},
		{"the end", func(w *world, m Manifest) error {
			return rewrite(w, m.File, func(dump []byte) []byte { return dump[:len(dump)-1] })
		}, ErrDamaged},
		{"the dump", func(w *world, m Manifest) error {
			return os.Remove(filepath.Join(w.Dir, m.File))
		}, ErrDamaged},
		{"a dump that was damaged before its sum was taken", func(w *world, m Manifest) error {
			err := rewrite(w, m.File, func(dump []byte) []byte { return dump[:len(dump)*9/10] })
			if err != nil {
				return err
			}
			if m.SHA256, m.Bytes, err = digest(filepath.Join(w.Dir, m.File)); err != nil {
				return err
			}
			return m.write(w.Dir)
		}, ErrDamaged},
		{"a row", func(w *world, m Manifest) error {
			m.Rows["restaurants"]++
			return m.write(w.Dir)
		}, ErrIncomplete},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Options{})
			w.must(w.Primary)
			if err := tt.spoil(w, w.backups(PrimaryKind)[0]); err != nil {
				t.Fatal(err)
			}
			if _, err := w.do(w.RestoreTest, false); !errors.Is(err, tt.want) {
				t.Errorf("the error is %v, want %v", err, tt.want)
			}
			w.wantNoScratch()
		})
	}
}

func rewrite(w *world, file string, change func([]byte) []byte) error {
	path := filepath.Join(w.Dir, file)
	dump, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, change(dump), 0o600)
}

// TestContinuity restores the queue into an empty database, as the runbook says: tables and rows first, then the
// migrations, which add functions, triggers and privileges.
func TestContinuity(t *testing.T) {
	w := newWorld(t, Options{HostedURL: pgtest.HostedDSN(t)})
	before := hosted.NewPostgres(pgtest.Open(t, w.HostedURL))
	if _, err := hosted.NewFence(before).Open(t.Context(), 1, "test", "edge-1"); err != nil {
		t.Fatal(err)
	}
	command := continuity.Command{
		CommandID: uuid.New(), IdempotencyKey: "key", CommandType: "order.create",
		AggregateType: "order", AggregateID: "o1", Payload: []byte(`{"total": 1}`),
	}
	receipt, err := hosted.NewQueue(before).Enqueue(t.Context(), command, 0)
	if err != nil {
		t.Fatal(err)
	}
	w.must(w.Continuity)
	m := w.backups(ContinuityKind)[0]
	if m.Rows["continuity_commands"] != 1 || m.Rows["continuity_epochs"] != 2 || len(m.Rows) != 7 {
		t.Errorf("the rows are %v", m.Rows)
	}

	dump, empty := filepath.Join(w.Dir, m.File), pgtest.EmptyDSN(t)
	w.restoreInto(dump, empty, w.withoutTriggers(dump))
	pool := pgtest.Open(t, empty)
	if _, err := pg.Migrate(t.Context(), pool, migrations.Hosted()); err != nil {
		t.Fatal(err)
	}
	after := hosted.NewPostgres(pool)
	state, err := hosted.NewFence(after).State(t.Context())
	if err != nil || state.Epoch != 2 || state.Mode != continuity.Queue {
		t.Errorf("the fence is %+v, %v", state, err)
	}
	again, err := hosted.NewQueue(after).Enqueue(t.Context(), command, 0)
	if err != nil || !again.Deduplicated || again.Sequence != receipt.Sequence {
		t.Errorf("the receipt is %+v, %v; want that of %+v again", again, err, receipt)
	}
	command.CommandID, command.IdempotencyKey = uuid.New(), "another"
	if next, err := hosted.NewQueue(after).Enqueue(t.Context(), command, 0); err != nil || next.Sequence <= receipt.Sequence {
		t.Errorf("the receipt is %+v, %v; want a later sequence", next, err)
	}
	if n := scan[int](t, pool, `select count(*) from pg_trigger where tgrelid = 'continuity_epochs'::regclass`); n != 1 {
		t.Errorf("the log has %d triggers, want 1", n)
	}
}

// withoutTriggers lists the contents of a dump but for the triggers, whose functions are the migrations'.
func (w *world) withoutTriggers(dump string) string {
	w.Helper()
	tools, err := w.findPrograms(w.Context(), 0)
	if err != nil {
		w.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(w.Context(), tools.restore, "--list", dump)
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		w.Fatal(err)
	}
	var entries strings.Builder
	for line := range strings.Lines(out.String()) {
		if !strings.Contains(line, " TRIGGER ") {
			entries.WriteString(line)
		}
	}
	return entries.String()
}

func TestContinuityWithoutHosted(t *testing.T) {
	w := newWorld(t, Options{})
	if _, err := w.do(w.Continuity, false); err == nil {
		t.Error("it has backed up nothing, and says nothing")
	}
}

func TestCancelledRestoreLeavesNoScratch(t *testing.T) {
	w := newWorld(t, Options{})
	w.must(w.Primary)
	m := w.backups(PrimaryKind)[0]
	tools, err := w.findPrograms(t.Context(), m.Server)
	if err != nil {
		t.Fatal(err)
	}
	// Its pg_restore waits until it is told to end.
	started := filepath.Join(t.TempDir(), "started")
	if err := exec.CommandContext(t.Context(), "mkfifo", started).Run(); err != nil {
		t.Fatal(err)
	}
	tools.restore = filepath.Join(t.TempDir(), "pg_restore")
	w.writeProgram(tools.restore, "#!/bin/sh\ntrap 'exit 1' INT\necho > "+started+"\nwhile :; do sleep 0.05; done\n")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_, _ = os.ReadFile(started) // It returns when the program has begun.
		cancel()
	}()
	if err := w.restore(ctx, run.Run{Report: &run.Report{}}, tools, m); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v, want Canceled", err)
	}
	w.wantNoScratch()
}
