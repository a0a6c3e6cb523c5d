package pgtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/pg"
)

// template is a migrated database that is copied for every test, which takes a fraction of the time of migrating.
type template struct {
	migrations func() pg.Migrations

	mu sync.Mutex
	// name is set once this process has seen the template in the cluster.
	name string
}

// ensure returns the name of the template, and makes it if the cluster does not have it. The name holds a digest of the
// migration files, so that checkouts which share a cluster share a template only if it is the same.
//
// It is built under another name and renamed when it is complete: a test process killed in between leaves the other
// name, and the advisory lock makes processes that start together build one.
func (tpl *template) ensure(ctx context.Context, admin string) (string, error) {
	tpl.mu.Lock()
	defer tpl.mu.Unlock()
	if tpl.name != "" {
		return tpl.name, nil
	}
	set := tpl.migrations()
	digest, err := digest(set)
	if err != nil {
		return "", err
	}
	name := "rollingd_template_" + digest
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		return "", err
	}
	// Closing the connection releases the lock.
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `select pg_advisory_lock(hashtext($1))`, name); err != nil {
		return "", fmt.Errorf("lock template: %w", err)
	}
	var exists bool
	err = conn.QueryRow(ctx, `select exists (select from pg_database where datname = $1)`, name).Scan(&exists)
	if err != nil {
		return "", fmt.Errorf("look for template: %w", err)
	}
	if !exists {
		if err := build(ctx, conn, admin, name, set); err != nil {
			return "", fmt.Errorf("build template: %w", err)
		}
	}
	tpl.name = name
	return name, nil
}

func build(ctx context.Context, conn *pgx.Conn, admin, name string, set pg.Migrations) error {
	unfinished := name + "_unfinished"
	for _, sql := range []string{
		"drop database if exists " + unfinished + " with (force)",
		copyDatabase(unfinished, "template0"),
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	if err := migrate(ctx, withDatabase(admin, unfinished), set); err != nil {
		return err
	}
	// The migration's sessions may still be ending on the server's side, and nobody else may be connected for a rename.
	for _, sql := range []string{
		"alter database " + unfinished + " allow_connections false",
		"select pg_terminate_backend(pid, 30000) from pg_stat_activity where datname = '" + unfinished + "'",
		"alter database " + unfinished + " rename to " + name,
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

func migrate(ctx context.Context, dsn string, set pg.Migrations) error {
	pool, err := pg.Open(ctx, dsn, pg.Options{ApplicationName: "rollingd test template"})
	if err != nil {
		return err
	}
	defer pool.Close()
	_, err = pg.Migrate(ctx, pool, set)
	return err
}

// digest is a short hash over names and contents of the files.
func digest(set pg.Migrations) (string, error) {
	h := sha256.New()
	err := fs.WalkDir(set.FS, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(set.FS, path)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(h, "%s %d\n%s", path, len(content), content)
		return err
	})
	if err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)[:6]), nil
}
