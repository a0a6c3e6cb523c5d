package couch

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Seq is an opaque update sequence. It is only ever handed back verbatim:
// neither its order nor its equality means anything.
type Seq string

// SeqStart is the sequence before the first change.
const SeqStart Seq = "0"

// ErrFeedBroken is returned when a feed ended before it was complete, or is not
// of the form that CouchDB writes.
var ErrFeedBroken = errors.New("changes feed broke off")

// ChangesOptions of a normal feed: the whole of what there is, then the end.
type ChangesOptions struct {
	Since Seq
	// Docs asks for each row's winning revision.
	Docs bool
	// SeqInterval asks for a sequence in every n-th row only, which saves
	// CouchDB a fifth of its time; 0 asks for it in every row.
	SeqInterval int
	// Limit bounds the rows; 0 is no bound.
	Limit int
}

// Change is a row of a feed: a document whose leaves have changed.
type Change struct {
	// Seq is empty in the rows between two intervals.
	Seq     Seq
	ID      string
	Deleted bool
	// Revs are all leaves, deleted ones among them, the winner first.
	Revs []string
	// Doc is the winning revision exactly as CouchDB sent it, or nil. It is
	// valid until the next call of Next.
	Doc []byte
}

// Feed reads a normal _changes feed with style=all_docs.
type Feed struct {
	body    io.ReadCloser
	lines   *bufio.Reader
	cancel  context.CancelCauseFunc
	watch   *stallWatch
	long    []byte
	change  Change
	err     error
	done    bool
	lastSeq Seq
	pending int64
}

const feedBuffer = 256 << 10

// Changes opens the feed of a database. Close it.
func (c *Client) Changes(ctx context.Context, db string, opts ChangesOptions) (*Feed, error) {
	query := url.Values{"style": {"all_docs"}, "since": {string(opts.Since)}}
	if opts.Docs {
		query.Set("include_docs", "true")
	}
	if opts.SeqInterval > 0 {
		query.Set("seq_interval", strconv.Itoa(opts.SeqInterval))
	}
	if opts.Limit > 0 {
		query.Set("limit", strconv.Itoa(opts.Limit))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	watch := newStallWatch(c.stall, cancel)
	res, err := c.send(ctx, http.MethodGet, path(db)+"/_changes?"+query.Encode(), nil)
	if err != nil {
		watch.stop()
		cancel(nil)
		return nil, err
	}
	body := watch.reader(res.Body)
	return &Feed{
		body:   res.Body,
		lines:  bufio.NewReaderSize(body, feedBuffer),
		cancel: cancel,
		watch:  watch,
	}, nil
}

// Next advances to the next change; false at the end, of which Err tells
// whether it is the real one.
func (f *Feed) Next() bool {
	if f.err != nil || f.done {
		return false
	}
	for {
		line, err := f.line()
		if err != nil {
			f.err = fmt.Errorf("%w: %w: %w", ErrFeedBroken, ErrUnavailable, err)
			return false
		}
		switch {
		case len(line) == 0, bytes.Equal(line, feedHead), bytes.Equal(line, feedComma), bytes.Equal(line, feedTail):
			continue
		case bytes.HasPrefix(line, lastSeqKey):
			f.err = f.readEnd(line)
			f.done = f.err == nil
			return false
		}
		if err := f.change.parse(line); err != nil {
			f.err = err
			return false
		}
		return true
	}
}

// Change returns the row that Next has advanced to.
func (f *Feed) Change() *Change { return &f.change }

// Err returns nil only if the feed was read to its real end.
func (f *Feed) Err() error { return f.err }

// End returns the sequence to continue from and how many changes came since,
// once the feed was read to its end.
func (f *Feed) End() (last Seq, pending int64) { return f.lastSeq, f.pending }

// Close ends the feed and frees its connection.
func (f *Feed) Close() {
	f.watch.stop()
	f.cancel(nil)
	_ = f.body.Close() // Nothing is written; what was read has been checked.
}

// CouchDB writes the head, then one row a line, then the tail and the end. JSON
// holds no raw line break, so a line is a row whatever its document holds; rows
// end in ",\r\n" or ",\n", mixed in one answer, and where CouchDB's buffer was
// full the comma stands on a line of its own.
var (
	feedHead   = []byte(`{"results":[`)
	feedComma  = []byte(`,`)
	feedTail   = []byte(`],`)
	lastSeqKey = []byte(`"last_seq":`)
)

// line returns the next line without its delimiter, valid until the next call.
func (f *Feed) line() ([]byte, error) {
	line, err := f.lines.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		f.long = append(f.long[:0], line...)
		for errors.Is(err, bufio.ErrBufferFull) {
			line, err = f.lines.ReadSlice('\n')
			f.long = append(f.long, line...)
		}
		line = f.long
	}
	// Every line ends in a line break, the last one too: without it the line
	// was cut, and might still look whole.
	if errors.Is(err, io.EOF) {
		return nil, io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	line = bytes.TrimRight(line, "\r\n")
	if bytes.HasPrefix(line, []byte(`{"seq":`)) {
		line = bytes.TrimSuffix(line, []byte(","))
	}
	return line, nil
}

func (f *Feed) readEnd(line []byte) error {
	var end struct {
		LastSeq Seq   `json:"last_seq"`
		Pending int64 `json:"pending"`
	}
	if err := json.Unmarshal(append([]byte("{"), line...), &end); err != nil || end.LastSeq == "" {
		return fmt.Errorf("%w: no end", ErrFeedBroken)
	}
	f.lastSeq, f.pending = end.LastSeq, end.Pending
	return nil
}

// Pending returns how many changes there are after since, which is the one
// sound test for "nothing new". Purges and another incarnation of the database
// do not show in it.
func (c *Client) Pending(ctx context.Context, db string, since Seq) (int64, error) {
	var end struct {
		Pending *int64 `json:"pending"`
	}
	target := path(db) + "/_changes?limit=0&since=" + url.QueryEscape(string(since))
	if err := c.doJSON(ctx, http.MethodGet, target, nil, &end); err != nil {
		return 0, err
	}
	if end.Pending == nil {
		return 0, fmt.Errorf("%w: no pending count from %s", ErrUnavailable, db)
	}
	return *end.Pending, nil
}

// errStalled is the cause when a stream was silent for too long.
var errStalled = errors.New("CouchDB sent nothing for too long")

// stallWatch cancels a stream that is silent for longer than a limit.
type stallWatch struct {
	limit time.Duration
	timer *time.Timer
}

func newStallWatch(limit time.Duration, cancel context.CancelCauseFunc) *stallWatch {
	return &stallWatch{limit: limit, timer: time.AfterFunc(limit, func() { cancel(errStalled) })}
}

func (w *stallWatch) stop() { w.timer.Stop() }

// reader returns r with every read watched. The time between two reads, while
// the consumer works, does not count.
func (w *stallWatch) reader(r io.Reader) io.Reader {
	w.stop()
	return watchedReader{r, w}
}

type watchedReader struct {
	io.Reader
	watch *stallWatch
}

func (r watchedReader) Read(p []byte) (int, error) {
	r.watch.timer.Reset(r.watch.limit)
	n, err := r.Reader.Read(p)
	r.watch.timer.Stop()
	return n, err
}
