package edge_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/edge"
	"github.com/rollingd/rollingd/internal/continuity/router"
)

// TestWhatThePrimarySays is the table of answers: which of them are the
// primary's, and what they mean.
func TestWhatThePrimarySays(t *testing.T) {
	t.Parallel()
	says := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			io.WriteString(w, body)
		}
	}
	stale := func(err error) (e *continuity.StaleEpochError) {
		errors.As(err, &e)
		return e
	}
	refused := func(err error) (e *router.RefusedError) {
		errors.As(err, &e)
		return e
	}
	is := func(want error) func(error) bool { return func(err error) bool { return errors.Is(err, want) } }
	// nobody is an error that is none of the primary's words.
	nobody := func(err error) bool {
		for _, known := range []error{
			continuity.ErrNotOpen, continuity.ErrInvalid, continuity.ErrKeyReused, continuity.ErrPayloadTooLarge,
			router.ErrNotFound, router.ErrDenied,
		} {
			if errors.Is(err, known) {
				return false
			}
		}
		return err != nil && stale(err) == nil && refused(err) == nil
	}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   func(error) bool
	}{
		"an older epoch": {says(409, `{"code":"stale_epoch","epoch":7}`), func(err error) bool { e := stale(err); return e != nil && e.Current == 7 }},
		"no epoch in it": {says(409, `{"code":"stale_epoch"}`), func(err error) bool { return refused(err) != nil }},
		"closed":         {says(503, `{"code":"gate_closed","epoch":7,"mode":"QUEUE"}`), is(continuity.ErrNotOpen)},
		"it is stale":    {says(503, `{"code":"primary_stale","epoch":3}`), is(continuity.ErrNotOpen)},
		"busy":           {says(503, `{"code":"busy"}`), is(continuity.ErrNotOpen)},
		"key reused":     {says(422, `{"code":"key_reused"}`), is(continuity.ErrKeyReused)},
		"invalid":        {says(422, `{"code":"invalid_command"}`), is(continuity.ErrInvalid)},
		"too large":      {says(413, `{"code":"payload_too_large"}`), is(continuity.ErrPayloadTooLarge)},
		"nothing there":  {says(404, `{"code":"unknown_key"}`), is(router.ErrNotFound)},
		"a wrong token":  {says(401, `{"code":"unauthorized"}`), is(router.ErrDenied)},
		"a conflict": {says(409, `{"code":"version_conflict","detail":"it has 3"}`), func(err error) bool {
			return refused(err) != nil && *refused(err) == router.RefusedError{Status: 409, Code: "version_conflict", Detail: "it has 3"}
		}},
		"too many":    {says(429, `{"code":"slow_down"}`), func(err error) bool { return refused(err) != nil && refused(err).Status == 429 }},
		"its failure": {says(500, `{"code":"primary_failure"}`), nobody},
		"its doubt":   {says(503, `{"code":"outcome_unknown"}`), nobody},

		"a tunnel without an end": {says(530, `<html>error code: 1033</html>`), nobody},
		"a bad gateway":           {says(502, ``), nobody},
		"a 404 of a proxy":        {says(404, `404 page not found`), nobody},
		"a 403 of a firewall":     {says(403, `{"error":"blocked"}`), nobody},
		"a login page":            {says(200, `<html>log in</html>`), nobody},
		"another's JSON":          {says(200, `{}`), nobody},
		"half an answer":          {says(200, `{"commandId":`), nobody},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/login" {
				http.Redirect(w, r, "/login", http.StatusFound)
				return
			}
			io.WriteString(w, `{"ok":true,"data":{},"commandId":"`+uuid.NewString()+`"}`)
		}, nobody},
		"no answer": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, nobody},
		"an endless one": {func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, `{"data":"`)
			io.CopyN(w, zeros{}, 5<<20)
		}, nobody},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(c.answer)
			defer server.Close()
			client, err := edge.NewPrimary(server.URL, serviceToken)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			cmd := continuity.Command{CommandID: uuid.New(), Payload: json.RawMessage(`{}`)}
			_, executed := client.Execute(t.Context(), 1, cmd)
			_, read := client.Read(t.Context(), "secret-key")
			_, health := client.Health(t.Context())
			for call, err := range map[string]error{"execute": executed, "read": read, "health": health} {
				if !c.want(err) || strings.Contains(err.Error(), serviceToken) || strings.Contains(err.Error(), "secret-key") {
					t.Errorf("%s: %v", call, err)
				}
			}
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}

func TestPrimaryTimeout(t *testing.T) {
	t.Parallel()
	p := newPrimary(t)
	p.becomes(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	client, err := edge.NewPrimary(p.URL, serviceToken)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := client.Read(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	p := newPrimary(t)
	client, err := edge.NewPrimary(p.URL, serviceToken)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if fence, err := client.Health(t.Context()); err != nil || fence.Epoch != 1 || fence.Mode != continuity.Direct {
		t.Errorf("%+v, %v", fence, err)
	}
	p.becomes(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"ok":false}`) })
	if _, err := client.Health(t.Context()); err == nil {
		t.Error("a primary that is not well passes")
	}
}

func TestPrimarySettings(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]error{
		"https://primary.example":            nil,
		"https://primary.example/base/":      nil,
		"http://127.0.0.1:8080":              nil,
		"http://localhost:8080":              nil,
		"http://[::1]:8080":                  nil,
		"":                                   edge.ErrPrimaryURL,
		"primary.example":                    edge.ErrPrimaryURL,
		"http://primary.example":             edge.ErrPrimaryURL,
		"ftp://primary.example":              edge.ErrPrimaryURL,
		"https://ana:secret@primary.example": edge.ErrPrimaryURL,
		"https://primary.example?x=1":        edge.ErrPrimaryURL,
		"https://primary example":            edge.ErrPrimaryURL,
	} {
		if _, err := edge.NewPrimary(url, serviceToken); !errors.Is(err, want) || err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", url, err)
		}
	}
	if _, err := edge.NewPrimary("https://primary.example", "short"); !errors.Is(err, edge.ErrPrimaryToken) {
		t.Errorf("%v", err)
	}
}

// TestConnectionThatWasClosed while it lay idle is no failure of the primary: the
// command is sent again on another, also if it may have arrived.
func TestConnectionThatWasClosed(t *testing.T) {
	t.Parallel()
	var commands atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			io.WriteString(w, `{"ok":true,"epoch":1,"mode":"DIRECT"}`)
			return
		}
		if len(r.Header["Idempotency-Key"]) > 0 {
			t.Error("the key is where proxies log it")
		}
		if commands.Add(1) == 1 {
			panic(http.ErrAbortHandler)
		}
		fmt.Fprintf(w, `{"commandId":%q,"deduplicated":true}`, r.Header.Get("X-Command-Id"))
	}))
	defer server.Close()
	client, err := edge.NewPrimary(server.URL, serviceToken)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Health(t.Context()); err != nil {
		t.Fatal(err)
	}
	cmd := continuity.Command{CommandID: uuid.New(), IdempotencyKey: "k-1", CommandType: "order.create", AggregateType: "order", AggregateID: "o-1", Payload: json.RawMessage(`{}`)}
	if applied, err := client.Execute(t.Context(), 1, cmd); err != nil || !applied.Deduplicated || commands.Load() != 2 {
		t.Errorf("%+v, %v after %d", applied, err, commands.Load())
	}
	// One that was opened for it, and breaks, is.
	client.Close()
	commands.Store(0)
	if _, err := client.Execute(t.Context(), 1, cmd); err == nil || commands.Load() != 1 {
		t.Errorf("%v after %d", err, commands.Load())
	}
}
