package demo

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// requestTimeout bounds one request to CouchDB or to the admin API. A night
// takes as long as a run does.
const (
	requestTimeout = 30 * time.Second
	nightTimeout   = 5 * time.Minute
)

// couchDB is a session with CouchDB, as its administrator or as a device.
type couchDB struct {
	base   string
	header http.Header
	client *http.Client
}

// newCouchDB returns the session of the administrator whose credentials are in
// the URL.
func newCouchDB(address string) (*couchDB, error) {
	u, err := url.Parse(address)
	if err != nil || u.User == nil {
		return nil, errors.New("the URL of CouchDB must have an administrator's credentials in it")
	}
	password, _ := u.User.Password()
	basic := &http.Request{Header: make(http.Header)}
	basic.SetBasicAuth(u.User.Username(), password)
	u.User = nil
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 16
	return &couchDB{
		base:   u.String(),
		header: basic.Header,
		client: &http.Client{Transport: transport},
	}, nil
}

// as returns the session of a device, by proxy authentication.
func (c *couchDB) as(user, role, secret string) *couchDB {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(user))
	header := make(http.Header)
	header.Set("X-Auth-CouchDB-UserName", user)
	header.Set("X-Auth-CouchDB-Roles", role)
	header.Set("X-Auth-CouchDB-Token", hex.EncodeToString(mac.Sum(nil)))
	return &couchDB{base: c.base, header: header, client: c.client}
}

// statusError is an answer that is no success.
type statusError struct {
	method, path string
	status       int
	body         string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("%s %s: %d %s", e.method, e.path, e.status, e.body)
}

// statusOf returns the HTTP status of an error, 0 if it has none.
func statusOf(err error) int {
	var refused *statusError
	if errors.As(err, &refused) {
		return refused.status
	}
	return 0
}

func dbPath(db string) string      { return "/" + url.PathEscape(db) }
func docPath(db, id string) string { return dbPath(db) + "/" + url.PathEscape(id) }

// request sends a body of any type and returns the answer's, or a statusError.
func (c *couchDB) request(ctx context.Context, method, path, contentType string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = c.header.Clone()
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", contentType)
	}
	return answer(c.client, req, path)
}

// json sends v, unless it is nil, and decodes the answer into out, likewise.
func (c *couchDB) json(ctx context.Context, method, path string, v, out any) error {
	var body []byte
	if v != nil {
		var err error
		if body, err = json.Marshal(v); err != nil {
			return err
		}
	}
	raw, err := c.request(ctx, method, path, "application/json", body)
	if err != nil || out == nil {
		return err
	}
	return json.Unmarshal(raw, out)
}

func answer(client *http.Client, req *http.Request, path string) ([]byte, error) {
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", req.Method, path, err)
	}
	if res.StatusCode >= http.StatusMultipleChoices {
		return nil, &statusError{method: req.Method, path: path, status: res.StatusCode, body: string(bytes.TrimSpace(raw))}
	}
	return raw, nil
}

// written is what CouchDB says of one document of a bulk write.
type written struct {
	ID     string `json:"id"`
	Rev    string `json:"rev"`
	Error  string `json:"error"`
	Reason string `json:"reason"`
}

// bulk writes documents. Without newEdits they keep the revisions that they
// bring, as in a replication, and the answer lists refusals only.
func (c *couchDB) bulk(ctx context.Context, db string, docs []*document, newEdits bool) ([]written, error) {
	var results []written
	err := c.json(ctx, http.MethodPost, dbPath(db)+"/_bulk_docs", map[string]any{"docs": docs, "new_edits": newEdits}, &results)
	if err != nil {
		return nil, err
	}
	for _, r := range results {
		if r.Error != "" {
			return nil, fmt.Errorf("%s refuses %s: %s: %s", db, r.ID, r.Error, r.Reason)
		}
	}
	if newEdits && len(results) != len(docs) {
		return nil, fmt.Errorf("%s answers %d of %d documents", db, len(results), len(docs))
	}
	return results, nil
}

// ref names a revision, or with an empty Rev all leaves of a document.
type ref struct {
	ID  string `json:"id"`
	Rev string `json:"rev,omitempty"`
}

// revision is a revision with the bytes that CouchDB sends of it.
type revision struct {
	id, rev string
	deleted bool
	body    json.RawMessage
}

// revisions returns what CouchDB has of the refs; what it does not have is left out.
func (c *couchDB) revisions(ctx context.Context, db string, refs []ref) ([]revision, error) {
	var all []revision
	const batch = 500
	for start := 0; start < len(refs); start += batch {
		var got struct {
			Results []struct {
				ID   string `json:"id"`
				Docs []struct {
					OK json.RawMessage `json:"ok"`
				} `json:"docs"`
			} `json:"results"`
		}
		part := refs[start:min(start+batch, len(refs))]
		err := c.json(ctx, http.MethodPost, dbPath(db)+"/_bulk_get", map[string]any{"docs": part}, &got)
		if err != nil {
			return nil, err
		}
		for _, result := range got.Results {
			for _, doc := range result.Docs {
				if doc.OK == nil {
					continue
				}
				var head struct {
					Rev     string `json:"_rev"`
					Deleted bool   `json:"_deleted"`
				}
				if err := json.Unmarshal(doc.OK, &head); err != nil {
					return nil, err
				}
				all = append(all, revision{id: result.ID, rev: head.Rev, deleted: head.Deleted, body: doc.OK})
			}
		}
	}
	return all, nil
}

// attachment returns the content of an attachment.
func (c *couchDB) attachment(ctx context.Context, db, id, rev, name string) ([]byte, error) {
	return c.request(ctx, http.MethodGet, docPath(db, id)+"/"+url.PathEscape(name)+"?rev="+url.QueryEscape(rev), "", nil)
}

// exists reports whether there is such a database.
func (c *couchDB) exists(ctx context.Context, db string) (bool, error) {
	err := c.json(ctx, http.MethodGet, dbPath(db), nil, nil)
	if statusOf(err) == http.StatusNotFound {
		return false, nil
	}
	return err == nil, err
}

// names lists the databases whose names begin with a prefix.
func (c *couchDB) names(ctx context.Context, prefix string) ([]string, error) {
	start, err := json.Marshal(prefix)
	if err != nil {
		return nil, err
	}
	end, err := json.Marshal(prefix + "\ufff0")
	if err != nil {
		return nil, err
	}
	query := url.Values{"startkey": {string(start)}, "endkey": {string(end)}}
	var names []string
	err = c.json(ctx, http.MethodGet, "/_all_dbs?"+query.Encode(), nil, &names)
	return names, err
}
