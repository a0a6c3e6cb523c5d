package couch

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/rollingd/rollingd/internal/devstack/couch/jsontext"
	"github.com/rollingd/rollingd/internal/devstack/couch/store"
)

// longestWait is CouchDB's changes_timeout: a feed without heartbeat ends
// after it, and a longer timeout or heartbeat is cut down to it.
const longestWait = time.Minute

// unlimited is CouchDB's default limit. seq_interval counts down from it.
const unlimited = 1_000_000_000_000_000

// feed is one _changes answer.
type feed struct {
	q           *request
	kind        string // "normal", "longpoll" or "continuous"
	allLeaves   bool
	includeDocs bool
	descending  bool
	view        view
	limit       int
	seqInterval int
	filter      func(*store.Tx, *store.Record) (bool, error)
	wait        time.Duration
	heartbeat   bool

	incarnation [8]byte
	since       uint64 // how far the feed has come
	echo        string // the client's own since, as long as nothing was read
	pending     int
	total       int  // pending when the feed began
	counted     bool // pending only goes down by rows sent, as for _doc_ids
	sent        int
	begun       bool
	waited      bool
}

func (q *request) changes() error {
	f, err := q.feed()
	if err != nil {
		return err
	}
	err = q.dir.View(q.db, func(tx *store.Tx) error {
		f.incarnation = tx.Meta().Incarnation
		since := q.query.Get("since")
		if !q.query.Has("since") {
			since = "0"
		}
		if f.since, err = parseSeq(since, tx.Meta()); err != nil {
			return err
		}
		if since != "0" && since != "now" {
			f.echo = since
		}
		f.pending = tx.Pending(f.since)
		f.total = f.pending
		return nil
	})
	if err != nil {
		return err
	}
	return f.run()
}

// run sends what there is and, in a feed that waits, what comes.
func (f *feed) run() error {
	waiting := f.q.r.Context()
	heartbeat := time.NewTicker(f.wait)
	defer heartbeat.Stop()
	for {
		changed, err := f.q.dir.Watch(f.q.db)
		if err == nil {
			err = f.catchUp()
		}
		switch {
		case errors.Is(err, errFeedEnds):
			return f.end()
		case errors.Is(err, store.ErrNoDatabase) && f.begun && f.kind != "normal":
			// A feed that waits ends as if it had timed out when the
			// database is deleted under it. Clients cannot tell.
			return f.end()
		case err != nil:
			return f.q.abortUnless(!f.begun, err)
		}
		if f.kind == "normal" || f.kind == "longpoll" && f.sent > 0 {
			return f.end()
		}
		if err := f.writeWaiting(); err != nil {
			return errResponded
		}
		if !f.sleep(waiting, changed, heartbeat) {
			return f.end()
		}
	}
}

// writeWaiting sends what is buffered before the feed waits, or a line feed if
// there was nothing, so that the client sees the answer begin.
func (f *feed) writeWaiting() error {
	if f.sent == 0 && !f.waited {
		f.waited = true
		return f.write([]byte("\n"), true)
	}
	return f.write(nil, true)
}

// sleep waits for a commit and sends heartbeats meanwhile. It reports false
// when the feed is over.
func (f *feed) sleep(ctx context.Context, changed <-chan struct{}, ticker *time.Ticker) bool {
	ticker.Reset(f.wait)
	for {
		select {
		case <-changed:
			return true
		case <-ctx.Done():
			return false
		case <-ticker.C:
			if !f.heartbeat || f.write([]byte("\n"), true) != nil {
				return false
			}
		}
	}
}

var errFeedEnds = errors.New("feed ends")

// catchUp sends pages until the feed has come as far as the database was when
// the page before the last was read. A few rounds bound it: documents that
// move to the end while a slow client reads are still sent once, without
// following a busy writer for ever.
func (f *feed) catchUp() error {
	const rounds = 4
	var goal uint64
	for round := 0; ; {
		var page []byte
		var updateSeq uint64
		rows, last := 0, f.since
		err := f.q.dir.View(f.q.db, func(tx *store.Tx) error {
			if tx.Meta().Incarnation != f.incarnation {
				return store.ErrNoDatabase
			}
			updateSeq = tx.Meta().UpdateSeq
			if f.sent >= f.limit {
				f.pending = tx.Pending(f.since)
				return errFeedEnds
			}
			err := tx.Changes(f.since, f.descending, func(r *store.Record) (bool, error) {
				if rows == pageRows || len(page) > pageBytes || f.sent >= f.limit {
					return false, nil
				}
				rows++
				last = r.Seq
				var err error
				page, err = f.appendChange(page, tx, r)
				return true, err
			})
			if f.descending {
				f.pending = max(0, f.pending-rows)
			} else {
				f.pending = tx.Pending(last)
			}
			return err
		})
		if errors.Is(err, errFeedEnds) {
			return err
		}
		if err != nil {
			return err
		}
		if rows > 0 {
			f.since, f.echo = last, ""
		}
		if err := f.write(page, f.kind != "normal"); err != nil {
			return errFeedEnds
		}
		if f.descending || f.sent >= f.limit {
			return errFeedEnds
		}
		if rows == 0 {
			return nil
		}
		if f.since >= goal {
			if round++; round > rounds {
				return nil
			}
			goal = updateSeq
		}
	}
}

// appendChange appends one row, unless the filter drops it.
func (f *feed) appendChange(dst []byte, tx *store.Tx, r *store.Record) ([]byte, error) {
	if f.filter != nil {
		if keep, err := f.filter(tx, r); !keep || err != nil {
			return dst, err
		}
	}
	if f.kind != "continuous" && f.sent > 0 {
		// CouchDB's delimiter depends on its buffers; clients must take both.
		if f.sent%64 == 0 {
			dst = append(dst, ",\n"...)
		} else {
			dst = append(dst, ",\r\n"...)
		}
	}
	f.sent++
	dst = append(dst, `{"seq":`...)
	if (f.limit-f.sent+1)%f.seqInterval != 0 {
		dst = append(dst, "null"...)
	} else {
		dst = append(dst, '"')
		dst = append(appendSeq(dst, f.incarnation, r.Seq, seqInChanges), '"')
	}
	dst = append(dst, `,"id":`...)
	dst = jsontext.AppendString(dst, r.ID)
	leaves := r.Tree.Leaves()
	winner := leaves[0]
	if !f.allLeaves {
		leaves = leaves[:1]
	}
	dst = append(dst, `,"changes":[`...)
	for i, leaf := range leaves {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"rev":"`...)
		dst = append(appendRev(dst, r.Tree[leaf].Rev), `"}`...)
	}
	dst = append(dst, ']')
	if r.Tree[winner].Deleted {
		dst = append(dst, `,"deleted":true`...)
	}
	if f.includeDocs {
		var err error
		dst = append(dst, `,"doc":`...)
		if dst, err = appendDoc(dst, tx, r, winner, f.view); err != nil {
			return dst, err
		}
	}
	dst = append(dst, '}')
	if f.kind == "continuous" {
		dst = append(dst, '\n')
	}
	return dst, nil
}

// write sends a part of the answer, before the first one its beginning.
func (f *feed) write(part []byte, flush bool) error {
	if !f.begun {
		f.begun = true
		f.q.w.Header().Set("Content-Type", "application/json")
		f.q.w.WriteHeader(http.StatusOK)
		if f.kind != "continuous" {
			part = append([]byte("{\"results\":[\n"), part...)
		}
	}
	if len(part) > 0 {
		if _, err := f.q.w.Write(part); err != nil {
			return err
		}
	}
	if flush {
		return http.NewResponseController(f.q.w).Flush()
	}
	return nil
}

func (f *feed) end() error {
	if f.counted && f.kind == "normal" && !f.descending {
		f.pending = max(0, f.total-f.sent)
	}
	seq := f.echo
	if seq == "" {
		seq = string(appendSeq(nil, f.incarnation, f.since, seqInChanges))
	}
	tail := []byte("\n],\n\"last_seq\":")
	if f.kind == "continuous" {
		tail = []byte(`{"last_seq":`)
	}
	tail = jsontext.AppendString(tail, seq)
	tail = append(tail, `,"pending":`...)
	tail = strconv.AppendInt(tail, int64(f.pending), 10)
	_ = f.write(append(tail, "}\n"...), false) // A client that is gone needs no end.
	return errResponded
}
