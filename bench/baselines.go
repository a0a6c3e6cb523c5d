package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// The feeds that curl reads.
const (
	plainFeed = "include_docs=true"
	// archiverFeed is what the archiver asks for: all leaves, and a sequence in
	// every thousandth row only.
	archiverFeed = "include_docs=true&style=all_docs&seq_interval=1000"
)

// curl reads a feed and throws it away.
func (s *stores) curl(ctx context.Context, db, query string) (took, error) {
	// The address holds the password, so it does not go on the command line.
	address := fmt.Sprintf("url = \"%s/%s/_changes?%s\"\n", s.couchURL, url.PathEscape(db), query)
	cmd := exec.CommandContext(ctx, "curl", "-s", "--fail", "-o", os.DevNull, "-K", "-")
	cmd.Stdin = strings.NewReader(address)
	return timed(func() (took, error) {
		start := time.Now()
		if err := cmd.Run(); err != nil {
			return took{}, fmt.Errorf("curl: %w", err)
		}
		return took{wall: time.Since(start), client: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}, nil
	})
}

// copyRows copies what was archived into an empty table with the same columns,
// constraints and key, in one statement, from memory.
func (w *world) copyRows(ctx context.Context) (took, error) {
	conn, err := pgx.Connect(ctx, w.dsn)
	if err != nil {
		return took{}, err
	}
	defer conn.Close(ctx)
	var rows bytes.Buffer
	if _, err := conn.PgConn().CopyTo(ctx, &rows, `copy (select * from archived_docs) to stdout (format binary)`); err != nil {
		return took{}, err
	}
	if _, err := conn.Exec(ctx, `create table copied_docs (like archived_docs including all)`); err != nil {
		return took{}, err
	}
	if err := w.stores.settle(ctx); err != nil {
		return took{}, err
	}
	return timed(func() (took, error) {
		before, start := ownCPU(), time.Now()
		_, err := conn.PgConn().CopyFrom(ctx, &rows, `copy copied_docs from stdin (format binary)`)
		return took{wall: time.Since(start), client: ownCPU() - before}, err
	})
}

// couch2pgScript is relative to the root of the repository, where make runs.
const couch2pgScript = "bench/couch2pg/run.js"

func couch2pgInstalled() bool {
	_, err := os.Stat("bench/couch2pg/node_modules/couch2pg/index.js")
	return err == nil
}

// What couch2pg is told to take at once. Documents: ten times its default, which
// showed no clear difference, since it reads the changes in pages of 25 either
// way; changes: its default.
const (
	couch2pgDocuments = 1000
	couch2pgChanges   = 10000
)

// couch2pg copies a database into an empty Postgres database with couch2pg.
func (s *stores) couch2pg(ctx context.Context, db string, want int) (_ took, err error) {
	name, dsn, err := s.createDatabase(ctx)
	if err != nil {
		return took{}, err
	}
	defer func() { err = errors.Join(err, s.dropDatabase(context.WithoutCancel(ctx), name)) }()
	if err := s.settle(ctx); err != nil {
		return took{}, err
	}
	task, err := json.Marshal(map[string]any{
		"couchdb":         s.couchURL + "/" + url.PathEscape(db),
		"postgres":        dsn,
		"documentsAtOnce": couch2pgDocuments,
		"changesAtOnce":   couch2pgChanges,
	})
	if err != nil {
		return took{}, err
	}
	cmd := exec.CommandContext(ctx, "node", couch2pgScript)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(task), &out, os.Stderr
	return timed(func() (took, error) {
		if err := cmd.Run(); err != nil {
			return took{}, fmt.Errorf("couch2pg: %w", err)
		}
		var result struct {
			Seconds   float64
			Documents int
		}
		if err := json.Unmarshal(out.Bytes(), &result); err != nil {
			return took{}, fmt.Errorf("couch2pg: %w", err)
		}
		if result.Documents != want {
			return took{}, fmt.Errorf("couch2pg copied %d documents of %d", result.Documents, want)
		}
		return took{
			wall:   time.Duration(result.Seconds * float64(time.Second)),
			client: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(),
		}, nil
	})
}
