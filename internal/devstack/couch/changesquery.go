package couch

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/rollingd/rollingd/internal/devstack/couch/jsontext"
	"github.com/rollingd/rollingd/internal/devstack/couch/store"
)

// feed reads the parameters of _changes.
func (q *request) feed() (*feed, error) {
	f := &feed{q: q, kind: q.query.Get("feed")}
	switch f.kind {
	case "":
		f.kind = "normal"
	case "live":
		f.kind = "continuous"
	case "normal", "longpoll", "continuous":
	default:
		return nil, badRequest("Supported `feed` types: normal, continuous, live, longpoll, eventsource")
	}
	f.allLeaves = q.query.Get("style") == "all_docs"
	f.includeDocs = q.flag("include_docs")
	f.descending = q.flag("descending")
	f.view = view{conflicts: q.flag("conflicts"), attachments: q.flag("attachments"), encodingInfo: q.flag("att_encoding_info")}
	var err error
	if f.limit, err = q.intParameter("limit", unlimited); err != nil {
		return nil, err
	}
	if f.limit < 0 {
		f.limit = unlimited
	}
	if f.seqInterval, err = q.intParameter("seq_interval", 1); err != nil || f.seqInterval < 1 {
		return nil, badRequest("invalid_seq_interval")
	}
	if err := f.readWait(); err != nil {
		return nil, err
	}
	body := []byte("{}")
	if q.r.Method == http.MethodPost && q.r.ContentLength != 0 {
		if body, err = q.readJSONObject(); err != nil {
			return nil, err
		}
	}
	f.counted = q.query.Get("filter") == "_doc_ids"
	f.filter, err = q.changesFilter(body)
	return f, err
}

func (f *feed) readWait() error {
	f.wait = longestWait
	name := "timeout"
	if text := f.q.query.Get("heartbeat"); text != "" && text != "false" {
		f.heartbeat = true
		if text == "true" {
			return nil
		}
		name = "heartbeat"
	}
	ms, err := f.q.intParameter(name, int(longestWait/time.Millisecond))
	if err != nil || ms < 0 {
		return badRequest("Invalid " + name + " value. Expecting a positive integer value (in milliseconds).")
	}
	f.wait = max(min(longestWait, time.Duration(ms)*time.Millisecond), time.Millisecond)
	return nil
}

// changesFilter reads which documents the client wants. Filters do not change
// what is pending, which counts all changes.
func (q *request) changesFilter(body []byte) (func(*store.Tx, *store.Record) (bool, error), error) {
	switch name := q.query.Get("filter"); name {
	case "":
		return nil, nil
	case "_doc_ids":
		list := jsontext.Get(body, "doc_ids")
		if list == nil {
			list = []byte(q.query.Get("doc_ids"))
		}
		var ids []string
		if err := json.Unmarshal(list, &ids); err != nil {
			return nil, badRequest("`doc_ids` filter parameter is not a list of doc ids.")
		}
		wanted := make(map[string]bool, len(ids))
		for _, id := range ids {
			wanted[id] = true
		}
		return func(_ *store.Tx, r *store.Record) (bool, error) { return wanted[r.ID], nil }, nil
	case "_selector":
		if jsontext.Get(body, "selector") == nil {
			return nil, badRequest("Selector must be specified in POST payload")
		}
		selector, err := parseSelector(jsontext.Get(body, "selector"))
		if e, ok := asHTTPError(err); err != nil && ok {
			return nil, badRequest(e.reason)
		}
		return func(tx *store.Tx, r *store.Record) (bool, error) {
			return selector.matches(tx, r)
		}, nil
	default:
		return nil, &httpError{http.StatusNotFound, "not_found", "missing"}
	}
}
