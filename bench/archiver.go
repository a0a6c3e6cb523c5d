package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"time"

	"github.com/rollingd/rollingd/internal/archive"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg"
)

// archiverArg makes this program archive one day database and end, so that its
// CPU and memory are the archiver's alone.
const archiverArg = "archiver"

// archiverTask is what the archiver process reads from standard input.
type archiverTask struct {
	CouchURL string
	DSN      string
	Env      string
	DayDB    string
	// CPUProfile is the file to write a profile to, or empty.
	CPUProfile string
}

// archiverResult is what it prints.
type archiverResult struct {
	Elapsed time.Duration
	// PeakBytes is the highest resident memory; 0 where the system does not tell.
	PeakBytes int64
}

// archiveAsChild archives as production does: under the lease of the database,
// in transactions that hold rows and checkpoint. The clock starts when a server
// would have been connected for long.
func archiveAsChild(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	var task archiverTask
	if err := json.NewDecoder(in).Decode(&task); err != nil {
		return err
	}
	pool, err := pg.Open(ctx, task.DSN, pg.Options{})
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := couch.New(couch.Options{URL: task.CouchURL})
	if err != nil {
		return err
	}
	defer client.Close()
	day, err := daydb.Load(ctx, pool, task.DayDB)
	if err != nil {
		return err
	}
	leases := fence.New(pool, "bench archiver", time.Minute)
	archiver := archive.New(archive.Options{
		Pool:   pool,
		Couch:  client,
		Leases: leases,
		Log:    slog.New(slog.DiscardHandler),
		Env:    task.Env,
	})
	if task.CPUProfile != "" {
		stop, err := profileCPU(task.CPUProfile)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	start := time.Now()
	err = leases.Hold(ctx, archive.LeaseName(day.Name), func(ctx context.Context, lease fence.Lease) error {
		_, err := archiver.CatchUp(ctx, day, lease)
		return err
	})
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(archiverResult{Elapsed: time.Since(start), PeakBytes: memoryOf(os.Getpid()).peak})
}

func profileCPU(path string) (stop func() error, err error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return file.Close()
	}, nil
}

// archiver is the command that archives a day of this world, with what it prints.
func (w *world) archiver(ctx context.Context, day daydb.DayDB, profile string) (*exec.Cmd, *bytes.Buffer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	task, err := json.Marshal(archiverTask{
		CouchURL:   w.stores.couchURL,
		DSN:        w.dsn,
		Env:        w.env,
		DayDB:      day.Name,
		CPUProfile: profile,
	})
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.CommandContext(ctx, self, archiverArg)
	out := &bytes.Buffer{}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(task), out, os.Stderr
	return cmd, out, nil
}

// checkArchived fails unless the archive holds as many documents as were written.
func (w *world) checkArchived(ctx context.Context, want int) error {
	var have int
	if err := w.pool.QueryRow(ctx, `select count(*) from archived_docs`).Scan(&have); err != nil {
		return err
	}
	if have != want {
		return fmt.Errorf("%d documents archived, %d written", have, want)
	}
	return nil
}

// profile returns the file for a profile of this name, or empty if none is wanted.
func (b *bench) profile(name string) string {
	if b.profiles == "" {
		return ""
	}
	return filepath.Join(b.profiles, name+".pprof")
}
