package couch_test

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// slowRequest is a request whose body is held back. The server has admitted it
// when begin returns: it asked for the body. CouchDB does not ask for the body
// of multipart/related; there the answers to many later requests stand in.
type slowRequest struct {
	conn net.Conn
	r    *bufio.Reader
	rest string
}

func begin(t *testing.T, c target, method, path, contentType, body string) *slowRequest {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	credentials := base64.StdEncoding.EncodeToString([]byte(c.user + ":" + c.password))
	asks, expectation := true, "Expect: 100-continue\r\n"
	if strings.HasPrefix(contentType, "multipart/") {
		asks, expectation = false, ""
	}
	_, err = fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: couch\r\nAuthorization: Basic %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n%s\r\n",
		method, path, credentials, contentType, len(body), expectation)
	if err != nil {
		t.Fatal(err)
	}
	s := &slowRequest{conn: conn, r: bufio.NewReader(conn)}
	if asks {
		s.awaitContinue(t)
	}
	half := len(body) / 2
	if _, err := io.WriteString(conn, body[:half]); err != nil {
		t.Fatal(err)
	}
	s.rest = body[half:]
	for range 100 {
		if asks {
			break
		}
		c.get("/_session")
	}
	return s
}

func (s *slowRequest) awaitContinue(t *testing.T) {
	t.Helper()
	status, err := s.r.ReadString('\n')
	if err != nil || !strings.Contains(status, " 100 ") {
		t.Fatalf("the server answers %q to the headers, %v", status, err)
	}
	for line := status; strings.TrimSpace(line) != ""; {
		if line, err = s.r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
}

// finish sends the rest of the body and returns the answer.
func (s *slowRequest) finish(t *testing.T) answer {
	t.Helper()
	if _, err := io.WriteString(s.conn, s.rest); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(s.r, nil)
	if err != nil {
		return answer{body: err.Error()}
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body)
	return answer{status: resp.StatusCode, header: resp.Header, body: string(text)}
}

var inflight = []struct {
	name, method, path, contentType, body string
	streamed                              bool // judged before the body is read
}{
	{"document", "PUT", "/slow-doc", "application/json", `{"v":"` + strings.Repeat("x", 1000) + `"}`, false},
	{"bulk", "POST", "/_bulk_docs", "application/json", `{"docs":[{"_id":"slow-b1"},{"_id":"slow-b2"}]}`, false},
	{"replicated bulk", "POST", "/_bulk_docs", "application/json", `{"new_edits":false,"docs":[{"_id":"slow-r","_rev":"1-a"}]}`, false},
	{"inline attachment", "PUT", "/slow-i", "application/json", `{"_attachments":{"a":{"content_type":"text/plain","data":"aGVsbG8="}}}`, false},
	{"attachment", "PUT", "/slow-att/f.bin", "application/octet-stream", strings.Repeat("0123456789", 30_000), true},
	{"multipart", "PUT", "/slow-multi", `multipart/related; boundary="b"`, "--b\r\nContent-Type: application/json\r\n\r\n" +
		`{"_attachments":{"f":{"follows":true,"content_type":"image/png","length":300000}}}` + "\r\n--b\r\n\r\n" + strings.Repeat("0123456789", 30_000) + "\r\n--b--", true},
}

// A security object does not stop what has begun: whoever was admitted may
// finish.
func TestSlowBodyOutlivesTheSeal(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		pos := c.pos(t)
		for i, f := range inflight {
			db := c.newDB(t, fmt.Sprintf("x%d", i))
			c.put(db+"/_security", openToPos)
			slow := begin(t, pos, f.method, db+f.path, f.contentType, f.body)
			expect(t, "seal", c.put(db+"/_security", sealed), 200)
			before := c.get(db+"/_changes").str(t, "last_seq")
			a := slow.finish(t)
			expect(t, f.name+" lands behind the seal", a, 201)
			if strings.Contains(a.body, "error") {
				t.Errorf("%s: %s", f.name, a)
			}
			after := c.get(db + "/_changes?limit=0&since=" + before)
			if pending := after.str(t, "pending"); pending == "0" {
				t.Errorf("%s: nothing is pending after it landed", f.name)
			}
		}
	})
}

// A validation function that comes behind the seal stops what is judged when
// the body is complete, and not a streamed attachment.
func TestSlowBodyAgainstValidation(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		pos := c.pos(t)
		for i, f := range inflight {
			db := c.newDB(t, fmt.Sprintf("x%d", i))
			c.put(db+"/_security", openToPos)
			slow := begin(t, pos, f.method, db+f.path, f.contentType, f.body)
			expect(t, "seal", c.put(db+"/_security", sealed), 200)
			expect(t, "design document", c.put(db+"/_design/seal", sealDesign), 201)
			a := slow.finish(t)
			if f.streamed {
				expect(t, f.name+" lands", a, 201)
			} else if !strings.Contains(a.body, "day sealed") {
				t.Errorf("%s: %s, want it refused", f.name, a)
			}
		}
	})
}

// The request that outlives its database lands in the successor, which nobody
// asked whether it admits it.
func TestSlowBodyAcrossDrop(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		pos := c.pos(t)
		db := c.newDB(t, "x")
		c.put(db+"/_security", openToPos)
		slow := begin(t, pos, "PUT", db+"/doc", "application/json", `{"late":true}`)
		expect(t, "drop", c.do("DELETE", db, ""), 200)
		expect(t, "without a successor", slow.finish(t), 404)

		for c.put(db, "").status != 201 {
		}
		c.put(db+"/_security", openToPos)
		slow = begin(t, pos, "PUT", db+"/doc", "application/json", `{"late":true}`)
		expect(t, "drop", c.do("DELETE", db, ""), 200)
		for c.put(db, "").status != 201 {
		}
		expect(t, "in the successor", slow.finish(t), 201)
		expect(t, "it is there", c.get(db+"/doc"), 200, `"late":true`)
	})
}

// A normal feed whose database is dropped breaks off; it does not end.
func TestDropDuringNormalFeed(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		filler := strings.Repeat("x", 20_000)
		for i := range 10 {
			var docs []string
			for j := range 100 {
				docs = append(docs, fmt.Sprintf(`{"_id":"d%d-%d","v":"%s"}`, i, j, filler))
			}
			expect(t, "load", c.post(db+"/_bulk_docs", `{"docs":[`+strings.Join(docs, ",")+`]}`), 201)
		}
		req, err := http.NewRequest("GET", c.base+db+"/_changes?include_docs=true", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.SetBasicAuth(c.user, c.password)
		resp, err := (&http.Transport{}).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if _, err := io.ReadFull(resp.Body, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		expect(t, "drop", c.do("DELETE", db, ""), 200)
		rest, err := io.ReadAll(resp.Body)
		if err == nil && strings.Contains(string(rest), `"last_seq"`) {
			t.Errorf("the feed of a dropped database ended as if complete after %d bytes", len(rest))
		}
	})
}
