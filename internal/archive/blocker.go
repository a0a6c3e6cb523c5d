package archive

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/pg"
)

// Blocker is a reason why a day is not archived whole.
type Blocker struct {
	// Code is non_terminal, core_type, no_type or conflict.
	Code  string `json:"code"`
	Count int64  `json:"count"`
	// IDs are the first few, made printable.
	IDs []string `json:"docIds"`
}

// Blockers returns what keeps a day from being archived whole, as of the
// checkpoint of its source, by code.
func (a *Archiver) Blockers(ctx context.Context, sourceID int64) ([]Blocker, error) {
	rows, err := a.pool.Query(ctx, `
		select code, total, substring(doc_id from 1 for @width::int)
		from (
		  select
		    code,
		    doc_id,
		    count(*) over (partition by code) as total,
		    row_number() over (partition by code order by id_hash) as n
		  from archive_blockers
		  where source_id = @source
		) b
		where n <= @few
		order by code, n`,
		pgx.NamedArgs{"source": sourceID, "few": fewIDs, "width": idBytesRead})
	if err != nil {
		return nil, fmt.Errorf("blockers: %w", pg.Translate(err))
	}
	var (
		blockers []Blocker
		code     string
		total    int64
		id       []byte
	)
	_, err = pgx.ForEachRow(rows, []any{&code, &total, &id}, func() error {
		if len(blockers) == 0 || blockers[len(blockers)-1].Code != code {
			blockers = append(blockers, Blocker{Code: code, Count: total})
		}
		last := &blockers[len(blockers)-1]
		last.IDs = append(last.IDs, printable(string(id)))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("blockers: %w", pg.Translate(err))
	}
	return blockers, nil
}

// putBlockers makes the blockers of these documents what the entries say.
func (w *writer) putBlockers(ctx context.Context, tx pgx.Tx, entries []entry) error {
	var hashes, ids [][]byte
	var revs, codes, types, statuses []string
	all := make([][]byte, 0, len(entries))
	for i := range entries {
		e := &entries[i]
		all = append(all, e.hash[:])
		for _, b := range e.blockers {
			hashes, ids = append(hashes, e.hash[:]), append(ids, []byte(e.id))
			revs, codes = append(revs, printable(e.rev)), append(codes, b.code)
			types, statuses = append(types, printable(b.docType)), append(statuses, printable(b.status))
		}
	}
	args := pgx.NamedArgs{
		"source":   w.source.id,
		"all":      all,
		"hashes":   hashes,
		"ids":      ids,
		"revs":     revs,
		"codes":    codes,
		"types":    types,
		"statuses": statuses,
	}
	if w.source.hasBlockers && len(all) > 0 {
		_, err := tx.Exec(ctx, `
			delete from archive_blockers b
			where b.source_id = @source
			  and b.id_hash = any(@all)
			  and not exists (
			    select from unnest(@hashes::bytea[], @codes::text[]) n (id_hash, code)
			    where n.id_hash = b.id_hash and n.code = b.code)`, args)
		if err != nil {
			return fmt.Errorf("heal blockers: %w", err)
		}
	}
	if len(hashes) == 0 {
		return nil
	}
	w.source.hasBlockers = true
	_, err := tx.Exec(ctx, `
		insert into archive_blockers (source_id, id_hash, doc_id, rev, code, doc_type, status)
		select @source, n.id_hash, n.doc_id, n.rev, n.code, nullif(n.doc_type, ''), nullif(n.status, '')
		from unnest(@hashes::bytea[], @ids::bytea[], @revs::text[], @codes::text[], @types::text[], @statuses::text[])
		  n (id_hash, doc_id, rev, code, doc_type, status)
		on conflict on constraint archive_blockers_pkey do update set
		  rev = excluded.rev,
		  doc_type = excluded.doc_type,
		  status = excluded.status`, args)
	if err != nil {
		return fmt.Errorf("blockers: %w", err)
	}
	return nil
}
