package demo

import (
	"context"
	"crypto/sha256"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// readPostgres reads what the archive has of a database: winning revisions and
// deleted leaves, bodies and attachments. The digests are taken here, from the
// bytes, and not from the columns that hold digests.
func readPostgres(ctx context.Context, pool *pgxpool.Pool, db string) (copies, error) {
	contents, err := readContents(ctx, pool, db)
	if err != nil {
		return nil, err
	}
	rows, err := pool.Query(ctx, `
		select d.doc_id, d.rev, d.deleted, case when d.deleted then d.tombstone else d.body end, d.attachments
		from archived_docs d
		join archive_checkpoints s on s.id = d.source_id
		where s.db_name = $1
		union all
		select l.doc_id, l.rev, true, l.body, l.attachments
		from archived_leaves l
		join archive_checkpoints s on s.id = l.source_id
		where s.db_name = $1`, db)
	if err != nil {
		return nil, err
	}
	all := make(copies)
	var (
		id, body    []byte
		rev         string
		deleted     bool
		attachments []int64
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &rev, &deleted, &body, &attachments}, func() error {
		found := copyOf{deleted: deleted, body: sha256.Sum256(body), attachments: make(map[string][sha256.Size]byte)}
		for _, a := range attachments {
			if c, there := contents[a]; there {
				found.attachments[c.name] = c.sha256
			}
		}
		all.add(string(id), rev, found)
		return nil
	})
	return all, err
}

type content struct {
	name   string
	sha256 [sha256.Size]byte
}

// readContents reads the attachments that the archive has of a database, by
// their number in it.
func readContents(ctx context.Context, pool *pgxpool.Pool, db string) (map[int64]content, error) {
	rows, err := pool.Query(ctx, `
		select a.id, a.name, coalesce(string_agg(c.data, ''::bytea order by c.n), ''::bytea)
		from archived_attachments a
		join archive_checkpoints s on s.id = a.source_id
		left join archived_attachment_chunks c on c.attachment_id = a.id
		where s.db_name = $1
		group by a.id`, db)
	if err != nil {
		return nil, err
	}
	all := make(map[int64]content)
	var (
		id         int64
		name, data []byte
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &name, &data}, func() error {
		all[id] = content{name: string(name), sha256: sha256.Sum256(data)}
		return nil
	})
	return all, err
}
