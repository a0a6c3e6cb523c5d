package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/run"
)

// backUp makes a backup in these steps:
//
//  1. what a former run has left unfinished is removed
//  2. a snapshot of the database is taken, and its rows are counted
//  3. pg_dump writes the same snapshot to a partial file
//  4. pg_restore lists the dump, which has to have every table
//  5. the file is flushed, and gets its name
//  6. the manifest is written, flushed and gets its name
//  7. backups older than Keep are removed
//
// A crash before 6 leaves files without a manifest, which the next run's 1 removes; one within 7 leaves a backup too
// many, or a dump without its manifest.
func (b *Backups) backUp(ctx context.Context, r run.Run, s source) error {
	start := time.Now()
	if err := os.MkdirAll(b.Dir, 0o700); err != nil {
		return fmt.Errorf("%s: %w", s.kind, err)
	}
	snap, err := take(ctx, s)
	if err != nil {
		return fmt.Errorf("%s: snapshot: %w", s.kind, err)
	}
	defer snap.release(ctx)
	tools, err := b.findPrograms(ctx, snap.manifest.Server)
	if err != nil {
		return fmt.Errorf("%s: %w", s.kind, err)
	}
	if !r.DryRun {
		if err := b.removeUnfinished(s.kind); err != nil {
			return fmt.Errorf("%s: remove what is unfinished: %w", s.kind, err)
		}
		m, err := b.dump(ctx, s, snap, tools)
		if err != nil {
			return fmt.Errorf("%s: %w", s.kind, err)
		}
		r.Report.Add("bytes", m.Bytes)
		b.Logger.InfoContext(ctx, "backup taken", "kind", s.kind, "file", m.File, "bytes", m.Bytes, "elapsed", time.Since(start))
	}
	r.Report.Add("tables", int64(len(snap.manifest.Rows)))
	for _, rows := range snap.manifest.Rows {
		r.Report.Add("rows", rows)
	}
	expired, err := b.expire(s.kind, snap.manifest.TakenAt, r.DryRun)
	r.Report.Add("expired", int64(expired))
	if err != nil {
		return fmt.Errorf("%s: remove old backups: %w", s.kind, err)
	}
	return nil
}

// snapshot is a state of the database, kept by a transaction that stays open.
type snapshot struct {
	conn *pgx.Conn
	id   string
	// manifest has its time, version and rows.
	manifest Manifest
}

// take takes a snapshot and counts its rows.
func take(ctx context.Context, s source) (_ *snapshot, err error) {
	conn, err := connect(ctx, s.url)
	if err != nil {
		return nil, err
	}
	snap := &snapshot{conn: conn, manifest: Manifest{Kind: s.kind}}
	defer func() {
		if err != nil {
			snap.release(ctx)
		}
	}()
	if _, err := conn.Exec(ctx, `begin isolation level repeatable read read only`); err != nil {
		return nil, err
	}
	err = conn.QueryRow(ctx, `
		select
		  pg_export_snapshot(),
		  date_trunc('second', now()),
		  current_setting('server_version_num')::int / 10000`).
		Scan(&snap.id, &snap.manifest.TakenAt, &snap.manifest.Server)
	if err != nil {
		return nil, err
	}
	tables, err := tablesOf(ctx, conn)
	if err != nil {
		return nil, err
	}
	if s.only != nil {
		tables = slices.DeleteFunc(tables, func(table string) bool { return !slices.Contains(s.only, table) })
	}
	if len(tables) == 0 {
		return nil, errors.New("the database has no tables; it was never migrated")
	}
	snap.manifest.Rows, err = count(ctx, conn, tables)
	return snap, err
}

// release ends the snapshot, and the session.
func (s *snapshot) release(ctx context.Context) {
	_ = s.conn.Close(context.WithoutCancel(ctx)) // Nothing was written, and a cancelled run closes its session as well.
}

// tablesOf lists the tables of the schema, a partitioned one as one.
func tablesOf(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	rows, err := conn.Query(ctx, `
		select relname::text
		from pg_class
		where relnamespace = 'public'::regnamespace
		  and relkind in ('r', 'p')
		  and not relispartition
		order by relname`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func count(ctx context.Context, conn *pgx.Conn, tables []string) (map[string]int64, error) {
	all := make(map[string]int64, len(tables))
	for _, table := range tables {
		var n int64
		if err := conn.QueryRow(ctx, `select count(*) from `+pgx.Identifier{"public", table}.Sanitize()).Scan(&n); err != nil {
			return nil, fmt.Errorf("count %s: %w", table, err)
		}
		all[table] = n
	}
	return all, nil
}

// dump writes the snapshot, and its manifest.
func (b *Backups) dump(ctx context.Context, s source, snap *snapshot, tools programs) (Manifest, error) {
	m := snap.manifest
	m.Program = tools.major
	m.File = nameOf(m.Kind, m.TakenAt) + dumpSuffix
	path := filepath.Join(b.Dir, m.File)
	if err := b.write(ctx, s, snap.id, tools, path+partialSuffix); err != nil {
		return m, err
	}
	if err := list(ctx, tools, path+partialSuffix, m); err != nil {
		return m, err
	}
	var err error
	if m.SHA256, m.Bytes, err = digest(path + partialSuffix); err != nil {
		return m, err
	}
	if err := rename(path+partialSuffix, path); err != nil {
		return m, err
	}
	return m, m.write(b.Dir)
}

// write has pg_dump write to a file that is on disk afterwards.
func (b *Backups) write(ctx context.Context, s source, snapshot string, tools programs, path string) error {
	env, err := variables(s.url, "")
	if err != nil {
		return err
	}
	args := []string{"--format=custom", "--no-password", "--snapshot=" + snapshot}
	for _, table := range s.only {
		args = append(args, "--table=public."+table)
	}
	if s.only != nil {
		// The migrations give both, on whatever server it is restored to.
		args = append(args, "--no-owner", "--no-privileges")
	}
	file, err := create(path)
	if err != nil {
		return err
	}
	cmd := command(ctx, env, tools.dump, args...)
	cmd.Stdout = file
	return errors.Join(execute(ctx, cmd), file.Sync(), file.Close())
}

// list reads the contents of a dump, and checks that no table is missing.
func list(ctx context.Context, tools programs, path string, m Manifest) error {
	var contents bytes.Buffer
	cmd := command(ctx, nil, tools.restore, "--list", path)
	cmd.Stdout = &contents
	if err := execute(ctx, cmd); err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	for table := range m.Rows {
		if !strings.Contains(contents.String(), " TABLE public "+table+" ") {
			return fmt.Errorf("%w: it lacks the table %s", ErrDamaged, table)
		}
	}
	return nil
}

// removeUnfinished removes files that are not whole, and dumps that have no manifest.
func (b *Backups) removeUnfinished(kind string) error {
	files, err := filesOf(b.Dir, kind)
	if err != nil {
		return err
	}
	for _, file := range files {
		name, isDump := strings.CutSuffix(file, dumpSuffix)
		alone := isDump && !slices.Contains(files, name+manifestSuffix)
		if !alone && !strings.HasSuffix(file, partialSuffix) {
			continue
		}
		if err := os.Remove(filepath.Join(b.Dir, file)); err != nil {
			return err
		}
	}
	return nil
}

// expire removes the backups that are too old at a time of the database's, and never the newest. A manifest that is
// damaged keeps its dump, and the job fails every day until a person has looked at it.
func (b *Backups) expire(kind string, now time.Time, dryRun bool) (removed int, err error) {
	whole, err := List(b.Dir, kind)
	for i, m := range whole {
		if i == 0 || !m.TakenAt.Before(now.Add(-b.Keep)) {
			continue
		}
		if !dryRun {
			if failed := m.remove(b.Dir); failed != nil {
				return removed, errors.Join(err, failed)
			}
		}
		removed++
	}
	return removed, err
}
