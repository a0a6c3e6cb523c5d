package couch

import (
	"errors"
	"net/http"
	"slices"
	"strconv"

	"github.com/rollingd/rollingd/internal/devstack/couch/jsontext"
	"github.com/rollingd/rollingd/internal/devstack/couch/store"
)

// pageBytes and pageRows bound what one read transaction gathers before it is
// closed and the page is sent.
const (
	pageBytes = 512 << 10
	pageRows  = 1000
)

// listing is one _all_docs answer.
type listing struct {
	bounds      keyRange
	includeDocs bool
	view        view
}

func (q *request) allDocs() error {
	l, keys, err := q.listing()
	if err != nil {
		return err
	}
	if keys != nil {
		return q.listKeys(l, keys)
	}
	return q.listRange(l)
}

func (q *request) designDocs() error {
	l, _, err := q.listing()
	if err != nil {
		return err
	}
	first, last := store.DesignPrefix, "_design0"
	l.bounds = keyRange{start: &first, end: &last, exclusiveEnd: true, limit: l.bounds.limit}
	return q.listRange(l)
}

// listing reads the parameters, which a POST may give in its body as well.
func (q *request) listing() (l listing, keys [][]byte, err error) {
	var list []byte
	if q.r.Method == http.MethodPost {
		obj, err := q.readJSONObject()
		if err != nil {
			return l, nil, err
		}
		list = jsontext.Get(obj, "keys")
		for m := range jsontext.Members(obj) {
			if name := jsontext.Unquote(m.Key); name != "keys" {
				q.query.Set(name, string(m.Value))
			}
		}
	} else if text := q.query.Get("keys"); text != "" {
		if list, err = jsontext.Canonical(nil, []byte(text)); err != nil {
			return l, nil, err
		}
	}
	if list != nil {
		if !jsontext.IsArray(list) {
			return l, nil, badRequest("`keys` parameter must be an array.")
		}
		keys = [][]byte{} // Not nil: no keys are not the same as all documents.
		for key := range jsontext.Elements(list) {
			keys = append(keys, key)
		}
		if q.flag("descending") {
			slices.Reverse(keys)
		}
	}
	if l.bounds, err = q.keyRange(); err != nil {
		return l, nil, err
	}
	l.includeDocs = q.flag("include_docs")
	l.view = view{conflicts: q.flag("conflicts"), attachments: q.flag("attachments"), encodingInfo: q.flag("att_encoding_info")}
	return l, keys, nil
}

// listRange sends the live documents of a range of ids, page by page.
func (q *request) listRange(l listing) error {
	from := l.bounds.start
	skip, left := l.bounds.skip, l.bounds.limit
	for first := true; ; first = false {
		var page []byte
		var last *string
		err := q.dir.View(q.db, func(tx *store.Tx) error {
			if first {
				page = q.appendListHead(page, tx, l)
			}
			rows, start := 0, ""
			if from != nil {
				start = *from
			}
			if l.bounds.nothing {
				return nil
			}
			return tx.Docs(start, l.bounds.descending, false, func(r *store.Record) (bool, error) {
				switch {
				case !first && r.ID == start: // The last row of the page before.
					return true, nil
				case !l.bounds.contains(r.ID):
					return false, nil
				case skip > 0:
					skip--
					return true, nil
				case left == 0:
					return false, nil
				case rows == pageRows || len(page) > pageBytes:
					return false, nil
				}
				last = &r.ID
				if !first || rows > 0 {
					page = append(page, ",\r\n"...)
				}
				rows++
				left--
				var err error
				page, err = l.appendRow(page, tx, r)
				return true, err
			})
		})
		if err != nil {
			return q.abortUnless(first, err)
		}
		if first {
			q.w.Header().Set("Content-Type", "application/json")
			q.w.WriteHeader(http.StatusOK)
		}
		if last == nil {
			page = append(page, "\r\n]}\n"...)
		}
		if _, err := q.w.Write(page); err != nil || last == nil {
			return errResponded
		}
		from = last
	}
}

// abortUnless returns an error that can still be answered, and breaks the
// connection if the answer has begun: a client must not take a part for the
// whole.
func (q *request) abortUnless(answerable bool, err error) error {
	if answerable {
		return err
	}
	if _, known := asHTTPError(err); !known {
		q.log.Error("answer cut short", "error", err)
	}
	panic(http.ErrAbortHandler)
}

func (q *request) appendListHead(dst []byte, tx *store.Tx, l listing) []byte {
	meta := tx.Meta()
	dst = append(dst, `{"total_rows":`...)
	dst = strconv.AppendInt(dst, int64(meta.Live), 10)
	offset := l.bounds.skip
	if start := l.bounds.start; start != nil && !l.bounds.descending {
		offset += tx.LiveBefore(*start)
	}
	dst = append(dst, `,"offset":`...)
	dst = strconv.AppendInt(dst, int64(min(offset, meta.Live)), 10)
	if q.flag("update_seq") {
		dst = append(dst, `,"update_seq":"`...)
		dst = append(appendSeq(dst, meta.Incarnation, meta.UpdateSeq, seqInInfo), '"')
	}
	return append(dst, ",\"rows\":[\r\n"...)
}

func (l listing) appendRow(dst []byte, tx *store.Tx, r *store.Record) ([]byte, error) {
	winner := r.Tree.Winner()
	dst = append(dst, `{"id":`...)
	dst = jsontext.AppendString(dst, r.ID)
	dst = append(dst, `,"key":`...)
	dst = jsontext.AppendString(dst, r.ID)
	dst = append(dst, `,"value":{"rev":"`...)
	dst = append(appendRev(dst, r.Tree[winner].Rev), '"')
	if r.Tree[winner].Deleted {
		dst = append(dst, `,"deleted":true`...)
	}
	dst = append(dst, '}')
	if !l.includeDocs {
		return append(dst, '}'), nil
	}
	dst = append(dst, `,"doc":`...)
	if r.Tree[winner].Deleted {
		return append(dst, "null}"...), nil
	}
	dst, err := appendDoc(dst, tx, r, winner, l.view)
	return append(dst, '}'), err
}

// listKeys answers for a list of ids in its order, deleted and missing ones
// included.
func (q *request) listKeys(l listing, keys [][]byte) error {
	var out []byte
	err := q.dir.View(q.db, func(tx *store.Tx) error {
		out = append(out, `{"total_rows":`...)
		out = strconv.AppendInt(out, int64(tx.Meta().Live), 10)
		out = append(out, ",\"offset\":null,\"rows\":[\r\n"...)
		for i, key := range keys[min(l.bounds.skip, len(keys)):] {
			if i == l.bounds.limit {
				break
			}
			if i > 0 {
				out = append(out, ",\r\n"...)
			}
			var r *store.Record
			err := error(store.ErrMissing)
			if jsontext.IsString(key) {
				r, err = tx.Record(jsontext.Unquote(key))
			}
			if errors.Is(err, store.ErrMissing) {
				out = append(append(append(out, `{"key":`...), key...), `,"error":"not_found"}`...)
				continue
			}
			if err != nil {
				return err
			}
			if out, err = l.appendRow(out, tx, r); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return q.json(http.StatusOK, append(out, "\r\n]}"...))
}
