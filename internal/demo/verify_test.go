package demo

import (
	"context"
	"crypto/sha256"
	"math/rand/v2"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/internal/devstack/couchtest"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

// evening is a day database after a shift, known to the truth.
type evening struct {
	truth *truth
	couch *couchDB
	pool  *pgxpool.Pool
	db    string
}

func newEvening(t *testing.T) *evening {
	t.Helper()
	couch, err := newCouchDB(couchtest.New(t))
	if err != nil {
		t.Fatal(err)
	}
	env := couchtest.Env(t)
	e := &evening{truth: newTruth(), couch: couch, pool: pgtest.New(t), db: bistro.dayDB(env, "20261130")}
	if err := couch.json(t.Context(), http.MethodPut, dbPath(e.db), nil, nil); err != nil {
		t.Fatal(err)
	}
	err = couch.json(t.Context(), http.MethodPut, dbPath(e.db)+"/_security", map[string]any{
		"members": map[string]any{"names": []string{}, "roles": []string{bistro.role()}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	device := &till{
		restaurant: bistro,
		name:       "caja1",
		env:        env,
		couch:      couch.as("caja1", bistro.role(), couchtest.ProxySecret),
		truth:      e.truth,
		rand:       rand.New(rand.NewPCG(1, 2)),
	}
	s := &shop{restaurant: bistro, tills: []*till{device}, late: device}
	if _, err := (&shift{till: device, day: "20261130", db: e.db}).work(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	id, err := s.conflict(t.Context(), "20261130", e.db)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.resolve(t.Context(), e.db, id); err != nil {
		t.Fatal(err)
	}
	if err := e.truth.readBack(t.Context(), couch); err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *evening) verify(t *testing.T) Verification {
	t.Helper()
	v, err := verify(t.Context(), e.truth, e.couch, e.pool)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (e *evening) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	tag, err := e.pool.Exec(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	if tag.RowsAffected() == 0 {
		t.Fatalf("nothing to do for %s", sql)
	}
}

// archive copies the whole database as an archiver would, but for the open order,
// which a real one refuses.
func (e *evening) archive(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	if _, err := e.pool.Exec(ctx, `
		alter table archived_docs drop constraint archived_docs_status_terminal;
		alter table archived_docs_other drop constraint archived_docs_other_outside`); err != nil {
		t.Fatal(err)
	}
	e.exec(t, `insert into archive_checkpoints (db_name, incarnation, purge_seq, fencing_token) values ($1, 'x', 0, 1)`, e.db)
	const source = `(select id from archive_checkpoints where db_name = $1)`
	for id, leaves := range e.truth.docs[e.db] {
		for rev, l := range leaves {
			got, err := e.couch.revisions(ctx, e.db, []ref{{ID: id, Rev: rev}})
			if err != nil || len(got) != 1 {
				t.Fatalf("%s %s: %v, %v", id, rev, got, err)
			}
			body, hash := string(got[0].body), sha256.Sum256([]byte(id))
			var attachments []int64
			for name := range l.attachments {
				attachments = append(attachments, e.archiveAttachment(t, id, rev, name))
			}
			switch {
			case l.deleted && len(leaves) > 1:
				e.exec(t, `insert into archived_leaves (source_id, id_hash, rev, doc_id, body, body_sha256, attachments)
					values (`+source+`, $2, $3, $4, $5, '', $6)`, e.db, hash[:], rev, []byte(id), body, attachments)
			case l.deleted:
				e.exec(t, `insert into archived_docs (business_day, source_id, id_hash, doc_id, rev, deleted, tombstone)
					values ('20261130', `+source+`, $2, $3, $4, true, $5)`, e.db, hash[:], []byte(id), rev, body)
			default:
				e.exec(t, `insert into archived_docs (business_day, source_id, id_hash, doc_id, rev, deleted, body, body_rev, body_sha256, attachments)
					values ('20261130', `+source+`, $2, $3, $4, false, $5, $4, '', $6)`, e.db, hash[:], []byte(id), rev, body, attachments)
			}
		}
	}
}

func (e *evening) archiveAttachment(t *testing.T, id, rev, name string) (number int64) {
	t.Helper()
	content, err := e.couch.attachment(t.Context(), e.db, id, rev, name)
	if err != nil {
		t.Fatal(err)
	}
	hash := sha256.Sum256([]byte(id))
	err = e.pool.QueryRow(t.Context(), `
		insert into archived_attachments (source_id, id_hash, name, content_type, digest, length, sha256)
		select id, $2, $3, 'x', $4, 0, '' from archive_checkpoints where db_name = $1
		returning id`, e.db, hash[:], []byte(name), name).Scan(&number)
	if err != nil {
		t.Fatal(err)
	}
	half := len(content) / 2
	e.exec(t, `insert into archived_attachment_chunks values ($1, 0, $2), ($1, 1, $3)`, number, content[:half], content[half:])
	return number
}

func (e *evening) drop(t *testing.T) {
	t.Helper()
	if err := e.couch.json(t.Context(), http.MethodDelete, dbPath(e.db), nil, nil); err != nil {
		t.Fatal(err)
	}
}

func TestVerifyFindsEverythingInCouchDB(t *testing.T) {
	t.Parallel()
	e := newEvening(t)
	v := e.verify(t)
	if v.Acknowledged < 20 || v.InCouchDB != v.Acknowledged || v.OnlyInPostgres+v.InBoth != 0 || v.Attachments < 2 {
		t.Errorf("after a shift: %+v", v)
	}
	if len(v.Lost)+len(v.Altered) > 0 {
		t.Errorf("lost %v, altered %v", v.Lost, v.Altered)
	}
}

// TestVerifyNoticesALossInCouchDB does to one document what each case says, and
// expects that one and no other among the lost.
func TestVerifyNoticesALossInCouchDB(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, e *evening, id, rev string) error{
		"overwritten": func(t *testing.T, e *evening, id, rev string) error {
			_, err := e.couch.bulk(t.Context(), e.db, []*document{{ID: id, Rev: rev, Type: "order"}}, true)
			return err
		},
		"deleted": func(t *testing.T, e *evening, id, rev string) error {
			_, err := e.couch.bulk(t.Context(), e.db, []*document{{ID: id, Rev: rev, Deleted: true}}, true)
			return err
		},
		"purged": func(t *testing.T, e *evening, id, rev string) error {
			return e.couch.json(t.Context(), http.MethodPost, dbPath(e.db)+"/_purge", map[string][]string{id: {rev}}, nil)
		},
		"attachment of another content": func(t *testing.T, e *evening, id, rev string) error {
			// CouchDB has no way to exchange one under the same revision, so the till remembers another.
			e.truth.docs[e.db][id][rev].attachments["receipt.txt"] = sha256.Sum256([]byte("another"))
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEvening(t)
			id, rev := e.withReceipt(t)
			if err := lose(t, e, id, rev); err != nil {
				t.Fatal(err)
			}
			e.expectLost(t, id, rev)
		})
	}
}

// withReceipt returns an order that has two attachments.
func (e *evening) withReceipt(t *testing.T) (id, rev string) {
	t.Helper()
	for id, leaves := range e.truth.docs[e.db] {
		for rev, l := range leaves {
			if len(l.attachments) == 2 {
				return id, rev
			}
		}
	}
	t.Fatal("no order has two attachments")
	return "", ""
}

func (e *evening) expectLost(t *testing.T, id, rev string) {
	t.Helper()
	v := e.verify(t)
	if len(v.Lost) != 1 || v.Lost[0].ID != id || v.Lost[0].Rev != rev {
		t.Errorf("lost %v, want %s at %s", v.Lost, id, rev)
	}
	if v.InCouchDB+v.OnlyInPostgres != v.Acknowledged-1 {
		t.Errorf("%d + %d of %d", v.InCouchDB, v.OnlyInPostgres, v.Acknowledged)
	}
}

func TestVerifyFindsEverythingInPostgres(t *testing.T) {
	t.Parallel()
	e := newEvening(t)
	e.archive(t)
	if v := e.verify(t); v.InBoth != v.Acknowledged || len(v.Lost)+len(v.Altered) > 0 {
		t.Errorf("archived and not dropped: %+v", v)
	}
	e.drop(t)
	if v := e.verify(t); v.OnlyInPostgres != v.Acknowledged || v.InCouchDB != 0 || len(v.Lost) > 0 {
		t.Errorf("archived and dropped: %+v", v)
	}
	e.exec(t, `update archive_checkpoints set db_name = db_name || 'x'`)
	if v := e.verify(t); int64(len(v.Lost)) != v.Acknowledged {
		t.Errorf("%d of %d lost, although the archive is another database's", len(v.Lost), v.Acknowledged)
	}
}

func TestVerifyNoticesALossInPostgres(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"row gone":          `delete from archived_docs where doc_id = $1`,
		"one byte":          `update archived_docs set body = replace(body, '"caja1"', '"caja2"') where doc_id = $1`,
		"another revision":  `update archived_docs set rev = '9-' || rev where doc_id = $1`,
		"called deleted":    `update archived_docs set deleted = true, tombstone = body where doc_id = $1`,
		"attachment named":  `update archived_docs set attachments = null where doc_id = $1`,
		"attachment piece":  `delete from archived_attachment_chunks c using archived_attachments a where a.id = c.attachment_id and n = 1 and a.id_hash = sha256($1)`,
		"attachment pieces": `update archived_attachment_chunks c set n = 2 from archived_attachments a where a.id = c.attachment_id and n = 0 and a.id_hash = sha256($1)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEvening(t)
			e.archive(t)
			id, rev := e.withReceipt(t)
			e.exec(t, sql, []byte(id))
			v := e.verify(t)
			if altered := len(v.Altered) == 1; altered == (name == "row gone" || name == "another revision") || len(v.Lost) > 0 {
				t.Errorf("while CouchDB has it: altered %v, lost %v", v.Altered, v.Lost)
			}
			e.drop(t)
			e.expectLost(t, id, rev)
		})
	}
}

// TestReadBackNoticesWhatIsNotThere: an acknowledgement for something that
// CouchDB does not have is noticed on the same day.
func TestReadBackNoticesWhatIsNotThere(t *testing.T) {
	t.Parallel()
	e := newEvening(t)
	e.truth.acknowledged(e.db, "order:ghost", "", "1-abc", false, nil, false)
	if err := e.truth.readBack(context.WithoutCancel(t.Context()), e.couch); err == nil {
		t.Error("a document that was never written was read back")
	}
}
