package couch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// serve answers every request with one body, and returns a client for it, which waits for longer than a busy machine takes.
func serve(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	return serveWith(t, time.Minute, handler)
}

func serveWith(t *testing.T, stall time.Duration, handler http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	c, err := New(Options{URL: server.URL, Stall: stall})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func read(t *testing.T, c *Client) (ids []string, feed *Feed) {
	t.Helper()
	feed, err := c.Changes(context.Background(), "db", ChangesOptions{Since: SeqStart})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(feed.Close)
	for feed.Next() {
		ids = append(ids, feed.Change().ID)
	}
	return ids, feed
}

func row(id string, padding int) string {
	return fmt.Sprintf(`{"seq":"1-x","id":%q,"changes":[{"rev":"1-a"}],"doc":{"_id":%q,"p":"%s"}}`, id, id, strings.Repeat("p", padding))
}

func TestFeedToItsEnd(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		// All delimiters, and a row that is longer than the buffer.
		_, _ = io.WriteString(w, "{\"results\":[\n"+row("a", 0)+",\r\n"+row("b", 3*feedBuffer)+",\n"+row("c", 0)+"\n,\r\n"+row("d", 0)+"\n],\n\"last_seq\":\"3-y\",\"pending\":7}\n")
	})
	ids, feed := read(t, c)
	if err := feed.Err(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(ids, ","); got != "a,b,c,d" {
		t.Errorf("read %s", got)
	}
	if last, pending := feed.End(); last != "3-y" || pending != 7 {
		t.Errorf("ends at %s with %d pending", last, pending)
	}
}

func TestEmptyFeed(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "{\"results\":[\n\n],\n\"last_seq\":\"0-y\",\"pending\":0}\n\n")
	})
	ids, feed := read(t, c)
	if feed.Err() != nil || len(ids) != 0 {
		t.Errorf("read %v, %v", ids, feed.Err())
	}
}

func TestBrokenFeedIsAnError(t *testing.T) {
	whole := "{\"results\":[\n" + row("a", 0) + ",\n" + row("b", 0) + "\n],\n\"last_seq\":\"3-y\",\"pending\":0}\n"
	for cut := range len(whole) - 2 {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, whole[:cut]) })
		ids, feed := read(t, c)
		if !errors.Is(feed.Err(), ErrFeedBroken) {
			t.Errorf("cut at %d (%q): %v", cut, whole[max(0, cut-10):cut], feed.Err())
		}
		if doc := feed.Change().Doc; len(ids) > 0 && string(doc) != `{"_id":"a","p":""}` && string(doc) != `{"_id":"b","p":""}` && doc != nil {
			t.Errorf("cut at %d: a document of %q was handed out", cut, doc)
		}
	}
}

func TestBrokenConnectionIsAnError(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "{\"results\":[\n"+row("a", 0)+",\n")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	_, feed := read(t, c)
	if err := feed.Err(); !errors.Is(err, ErrFeedBroken) || !errors.Is(err, ErrUnavailable) {
		t.Errorf("error is %v", err)
	}
}

func TestSilentFeedIsAnError(t *testing.T) {
	c := serveWith(t, time.Second, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "{\"results\":[\n"+row("a", 0)+",\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	if _, feed := read(t, c); !errors.Is(feed.Err(), ErrFeedBroken) {
		t.Errorf("error is %v", feed.Err())
	}
}

func TestErrorsByStatus(t *testing.T) {
	for status, want := range map[int]error{
		400: ErrRejected, 401: ErrForbidden, 403: ErrForbidden, 404: ErrNotFound, 409: ErrConflict,
		412: ErrExists, 413: ErrRejected, 429: ErrUnavailable, 500: ErrUnavailable, 503: ErrUnavailable,
	} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, `{"error":"some_error","reason":"some reason"}`)
		})
		_, info := c.Info(context.Background(), "db")
		_, pending := c.Pending(context.Background(), "db", SeqStart)
		for call, err := range map[string]error{
			"info":    info,
			"pending": pending,
			"delete":  c.Delete(context.Background(), "db"),
			"ping":    c.Ping(context.Background()),
		} {
			if !errors.Is(err, want) {
				t.Errorf("%s, %d: %v, want %v", call, status, err, want)
			}
		}
	}
}

func TestCreateDoesNotTrust412(t *testing.T) {
	var puts atomic.Int64
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.Method {
		case http.MethodPut:
			if puts.Add(1) < 3 {
				w.WriteHeader(http.StatusPreconditionFailed)
				_, _ = io.WriteString(w, `{"error":"file_exists","reason":"x"}`)
				return
			}
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, `{"ok":true}`)
		default:
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"error":"not_found","reason":"x"}`)
		}
	})
	created, err := c.Create(context.Background(), "db")
	if err != nil || !created || puts.Load() != 3 {
		t.Errorf("created %v after %d requests, %v", created, puts.Load(), err)
	}
}

func TestDeleteIsSentOnce(t *testing.T) {
	var deletes atomic.Int64
	c := serve(t, func(_ http.ResponseWriter, _ *http.Request) {
		deletes.Add(1)
		panic(http.ErrAbortHandler)
	})
	if err := c.Delete(context.Background(), "db"); !errors.Is(err, ErrUnavailable) || deletes.Load() != 1 {
		t.Errorf("%d requests, %v", deletes.Load(), err)
	}
}

func TestPutSecurityRefusesPublic(t *testing.T) {
	c := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("a request was made") })
	if err := c.PutSecurity(context.Background(), "db", Security{Admins: Principals{Roles: []string{"_admin"}}}); err == nil {
		t.Error("an empty member list was taken")
	}
}

func TestNewNeverShowsThePassword(t *testing.T) {
	for _, bad := range []string{"http://admin:hunter2@", "admin:hunter2@host", "ftp://admin:hunter2@host", "http://admin:hunter2@host:%zz"} {
		if _, err := New(Options{URL: bad}); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	c, err := New(Options{URL: "http://admin:hunter2@127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Ping(context.Background()); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("error is %v", err)
	}
	if _, err := c.Info(context.Background(), "db"); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("error is %v", err)
	}
}
