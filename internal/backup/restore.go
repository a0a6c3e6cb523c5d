package backup

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/run"
)

// scratchSuffix follows the name of the primary's database in that of the one into which its backup is restored.
const scratchSuffix = "_restore_test"

// maxName is how long Postgres lets a name be, in bytes.
const maxName = 63

// RestoreTest restores the newest backup of the primary into a scratch database on the primary's server, named as the
// primary's with "_restore_test" behind, and compares the rows of every table with the manifest. The scratch database is
// dropped before and after. ErrNoBackup, ErrDamaged and ErrIncomplete say what is wrong with the backup. A dry run only
// reads the dump.
func (b *Backups) RestoreTest(ctx context.Context, r run.Run) error {
	start := time.Now()
	backups, err := List(b.Dir, PrimaryKind)
	if err != nil {
		return fmt.Errorf("test a restore: %w", err)
	}
	if len(backups) == 0 {
		return fmt.Errorf("test a restore: %w in %s", ErrNoBackup, b.Dir)
	}
	m := backups[0]
	if err := m.check(b.Dir); err != nil {
		return fmt.Errorf("test a restore: %w", err)
	}
	tools, err := b.findPrograms(ctx, max(m.Server, m.Program))
	if err != nil {
		return fmt.Errorf("test a restore: %w", err)
	}
	if err := list(ctx, tools, filepath.Join(b.Dir, m.File), m); err != nil {
		return fmt.Errorf("test a restore: %s: %w", m.File, err)
	}
	if r.DryRun {
		return nil
	}
	if err := b.restore(ctx, r, tools, m); err != nil {
		return fmt.Errorf("test a restore: %s: %w", m.File, err)
	}
	b.Logger.InfoContext(ctx, "backup restored", "file", m.File, "elapsed", time.Since(start))
	return nil
}

func (b *Backups) restore(ctx context.Context, r run.Run, tools programs, m Manifest) (err error) {
	admin, err := connect(ctx, b.PrimaryURL)
	if err != nil {
		return err
	}
	defer func() { _ = admin.Close(context.WithoutCancel(ctx)) }() // What it did is committed.
	scratch := admin.Config().Database + scratchSuffix
	if len(scratch) > maxName {
		return fmt.Errorf("%s is no name for a database: it has more than %d bytes", scratch, maxName)
	}
	drop := func(ctx context.Context) error {
		_, err := admin.Exec(ctx, `drop database if exists `+pgx.Identifier{scratch}.Sanitize()+` with (force)`)
		return err
	}
	// A run that has died may have left it.
	if err := drop(ctx); err != nil {
		return fmt.Errorf("drop the scratch database: %w", err)
	}
	if err := createScratch(ctx, admin, scratch); err != nil {
		return fmt.Errorf("create the scratch database: %w", err)
	}
	// It takes as much room as the primary: a run that is cancelled removes it all the same.
	defer func() { err = errors.Join(err, drop(context.WithoutCancel(ctx))) }()
	env, err := variables(b.PrimaryURL, scratch)
	if err != nil {
		return err
	}
	err = execute(ctx, command(ctx, env, tools.restore,
		"--dbname="+scratch, "--no-password", "--no-owner", "--no-privileges", "--exit-on-error",
		filepath.Join(b.Dir, m.File)))
	switch {
	case ctx.Err() != nil:
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return b.compare(ctx, r, m, scratch)
}

// createScratch makes an empty database that takes the same texts as the primary's, and sorts them alike.
func createScratch(ctx context.Context, admin *pgx.Conn, scratch string) error {
	var create string
	err := admin.QueryRow(ctx, `
		select format('create database %I template template0 encoding %L lc_collate %L lc_ctype %L',
		  $1::text, pg_encoding_to_char(encoding), datcollate, datctype)
		from pg_database
		where datname = current_database()`, scratch).Scan(&create)
	if err != nil {
		return err
	}
	_, err = admin.Exec(ctx, create)
	return err
}

// compare counts the rows of the scratch database.
func (b *Backups) compare(ctx context.Context, r run.Run, m Manifest, scratch string) error {
	address, err := onDatabase(b.PrimaryURL, scratch)
	if err != nil {
		return err
	}
	conn, err := connect(ctx, address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // It has only read.
	restored, err := tablesOf(ctx, conn)
	if err != nil {
		return err
	}
	found, err := count(ctx, conn, restored)
	if err != nil {
		return err
	}
	var problems []error
	for table, rows := range m.Rows {
		if !slices.Contains(restored, table) {
			problems = append(problems, fmt.Errorf("%s is missing", table))
			continue
		}
		r.Report.Add("rows", found[table])
		if found[table] != rows {
			problems = append(problems, fmt.Errorf("%s has %d rows, not %d", pgx.Identifier{table}.Sanitize(), found[table], rows))
		}
	}
	r.Report.Add("tables", int64(len(restored)))
	if len(problems) > 0 {
		return fmt.Errorf("%w: %w", ErrIncomplete, errors.Join(problems...))
	}
	return nil
}
