package guard

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/devstack/couchtest"
)

// slowRequest is a request that a till has begun and not finished: CouchDB has
// authorised it, and waits for the rest of its body.
type slowRequest struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

// begin sends the head of a PUT as a device, and half of its body once the
// server asks for it.
func (w *world) begin(t *testing.T, target, contentType, body string) (*slowRequest, string) {
	t.Helper()
	base, headers := couchtest.Device(t, w.couchURL, w.r.Role())
	u, err := url.Parse(base + "/" + target)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	headers.Set("Content-Type", contentType)
	headers.Set("Expect", "100-continue")
	var head strings.Builder
	fmt.Fprintf(&head, "PUT %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n", u.RequestURI(), u.Host, len(body))
	if err := headers.Write(&head); err != nil {
		t.Fatal(err)
	}
	s := &slowRequest{t: t, conn: conn, in: bufio.NewReader(conn)}
	s.send(head.String() + "\r\n")
	for asked := false; ; {
		line, err := s.in.ReadString('\n')
		if err != nil || !asked && !strings.Contains(line, "100") {
			t.Fatalf("the server does not ask for the body: %q, %v", line, err)
		}
		if asked = true; line == "\r\n" {
			break
		}
	}
	half := len(body) / 2
	s.send(body[:half])
	return s, body[half:]
}

func (s *slowRequest) send(text string) {
	s.t.Helper()
	if _, err := s.conn.Write([]byte(text)); err != nil {
		s.t.Fatal(err)
	}
}

// finish sends the rest, and returns the status and what was acknowledged.
func (s *slowRequest) finish(rest string) (status int, rev string) {
	s.t.Helper()
	s.send(rest)
	res, err := http.ReadResponse(s.in, nil)
	if err != nil {
		s.t.Logf("no answer: %v", err)
		return 0, "" // The connection was reset: nothing was acknowledged.
	}
	defer res.Body.Close()
	var answer struct{ Rev string }
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		s.t.Fatal(err)
	}
	return res.StatusCode, answer.Rev
}

// TestRequestBegunBeforeTheSeal lets a till begin a write before the seal and
// finish it after. What is acknowledged must not be lost.
func TestRequestBegunBeforeTheSeal(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 300_000)
	for name, tc := range map[string]struct {
		target, contentType, body string
		// acknowledged: the seal does not stop it, which is known of streamed
		// attachments alone.
		acknowledged bool
	}{
		"document":   {"/late", "application/json", `{"type":"order","status":"closed","note":"` + large + `"}`, false},
		"attachment": {"/order-0/receipt.bin", "application/octet-stream", large, true},
	} {
		for _, when := range []string{"seal", "settled"} {
			t.Run(name+" that ends after the "+when, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				d := w.draining(40)
				w.sales(d.Name, 2)
				g := w.guard(parts{})
				w.nights(g, d.Name, daydb.Archived)

				target := d.Name + tc.target
				if name == "attachment" {
					target += "?rev=" + w.acked["order-0"]
				}
				slow, rest := w.begin(t, target, tc.contentType, tc.body)
				w.nights(g, d.Name, daydb.Droppable)
				if when == "settled" {
					// As late as can be: after the proof, before the final check.
					g = w.guard(parts{transport: &faultyTransport{decide: func(_ int64, req *http.Request) fault {
						if slow != nil && strings.HasSuffix(req.URL.Path, sealDesign) && w.day(d.Name).Proof != nil {
							w.acknowledge(t, slow, rest, tc.acknowledged)
							slow = nil
						}
						return passes
					}}})
				} else {
					w.acknowledge(t, slow, rest, tc.acknowledged)
					slow = nil
				}
				for range 4 {
					_, _ = w.night(g)
					w.check()
				}
				if slow != nil {
					t.Fatal("the request was never finished")
				}
				w.nights(w.guard(parts{}), d.Name, daydb.Dropped)
			})
		}
	}
}

// acknowledge finishes a slow request and remembers what the till was told.
func (w *world) acknowledge(t *testing.T, slow *slowRequest, rest string, want bool) {
	status, rev := slow.finish(rest)
	if got := status == http.StatusCreated; got != want {
		t.Errorf("the answer is %d", status)
	}
	if status == http.StatusCreated {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.acked["order-0"] = rev
	}
}
