package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// graphileScript is relative to the root of the repository, where make runs.
const graphileScript = "bench/graphile/run.js"

func graphileInstalled() bool {
	_, err := os.Stat("bench/graphile/node_modules/graphile-worker/package.json")
	return err == nil
}

// graphileQueue is graphile-worker in a database of its own.
type graphileQueue struct {
	stores *stores
	// Batch is how many jobs it is given at once.
	Batch int
}

func (q graphileQueue) run(ctx context.Context, l load) (w worked, err error) {
	name, dsn, err := q.stores.createDatabase(ctx)
	if err != nil {
		return w, err
	}
	defer func() { err = errors.Join(err, q.stores.dropDatabase(context.WithoutCancel(ctx), name)) }()
	batch := q.Batch
	if l.every > 0 {
		batch = 1
	}
	task, err := json.Marshal(map[string]any{
		"postgres":    dsn,
		"jobs":        l.jobs,
		"everyMs":     float64(l.every) / float64(time.Millisecond),
		"batch":       batch,
		"senders":     senders,
		"connections": queueConns,
		"payload":     queuePayload,
	})
	if err != nil {
		return w, err
	}
	if err := q.stores.settle(ctx); err != nil {
		return w, err
	}
	cmd := exec.CommandContext(ctx, "node", graphileScript)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(task), &out, os.Stderr
	w.took, err = timed(func() (took, error) {
		if err := cmd.Run(); err != nil {
			return took{}, fmt.Errorf("graphile-worker: %w", err)
		}
		var result struct {
			Seconds   float64
			LatencyMS []float64
		}
		if err := json.Unmarshal(out.Bytes(), &result); err != nil {
			return took{}, fmt.Errorf("graphile-worker: %w", err)
		}
		if len(result.LatencyMS) != l.jobs {
			return took{}, fmt.Errorf("graphile-worker did %d jobs of %d", len(result.LatencyMS), l.jobs)
		}
		for _, ms := range result.LatencyMS {
			w.latency = append(w.latency, time.Duration(ms*float64(time.Millisecond)))
		}
		return took{
			wall:   time.Duration(result.Seconds * float64(time.Second)),
			client: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(),
		}, nil
	})
	return w, err
}
