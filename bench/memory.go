package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
)

const (
	// memorySample is how often the archiver's memory is looked at.
	memorySample = 20 * time.Millisecond
	// tenths is in how many parts the run is shown.
	tenths = 10
	mb     = 1e6
)

// memory measures the resident memory of a process that does nothing but archive
// one large day database.
func (b *bench) memory(ctx context.Context) (err error) {
	n := b.sizes.memoryDocs
	day, err := daydb.ParseDay("20261101")
	if err != nil {
		return err
	}
	w, err := b.stores.newWorld(ctx, couch.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close(ctx), b.stores.removeEnv(ctx, w.env)) }()
	m := &archiveBench{bench: b, day: day, env: w.env}
	row, err := m.enter(ctx, w)
	if err != nil {
		return err
	}
	b.say("writing %d documents", n)
	if err := b.stores.load(ctx, row.Name, n); err != nil {
		return err
	}
	b.say("archiving them")
	cmd, out, err := w.archiver(ctx, row, b.profile("memory"))
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	samples := make(chan []sample)
	ended := make(chan struct{})
	go func() { samples <- sampleMemory(cmd.Process.Pid, ended) }()
	err = cmd.Wait()
	close(ended)
	seen := <-samples
	if err != nil {
		return fmt.Errorf("archiver: %w", err)
	}
	var result archiverResult
	if err := json.Unmarshal(out.Bytes(), &result); err != nil {
		return err
	}
	if err := w.checkArchived(ctx, n); err != nil {
		return err
	}
	b.reportMemory(n, result, seen)
	return nil
}

// sample is the resident memory at a time since the start.
type sample struct {
	at    time.Duration
	bytes int64
}

func sampleMemory(pid int, ended <-chan struct{}) []sample {
	start := time.Now()
	ticker := time.NewTicker(memorySample)
	defer ticker.Stop()
	var all []sample
	for {
		select {
		case <-ended:
			return all
		case <-ticker.C:
			if m := memoryOf(pid); m.now > 0 {
				all = append(all, sample{time.Since(start), m.now})
			}
		}
	}
}

func (b *bench) reportMemory(n int, result archiverResult, seen []sample) {
	s := b.results.section(fmt.Sprintf("Resident memory while %d documents are archived (%s, %.0f/s)",
		n, seconds(result.Elapsed), float64(n)/result.Elapsed.Seconds()), "", "memory", "goal", "")
	if result.PeakBytes == 0 || len(seen) == 0 {
		s.remark("This system does not tell.")
		return
	}
	want, verdict := atMost(100, " MB").cells(float64(result.PeakBytes) / mb)
	s.row("peak", fmt.Sprintf("%.1f MB", float64(result.PeakBytes)/mb), want, verdict)
	whole := seen[len(seen)-1].at
	highest := make([]int64, tenths)
	for _, x := range seen {
		i := min(tenths-1, int(x.at*tenths/max(whole, 1)))
		highest[i] = max(highest[i], x.bytes)
	}
	for i, bytes := range highest {
		s.row(fmt.Sprintf("highest from %d%% to %d%% of the time", i*100/tenths, (i+1)*100/tenths), fmt.Sprintf("%.1f MB", float64(bytes)/mb), "", "")
	}
}
