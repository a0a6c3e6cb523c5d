package hosted_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
	"github.com/rollingd/rollingd/test/nodetest"
	postgresttest "github.com/rollingd/rollingd/test/postgrest"
)

// TestSupabaseClientAgainstTheDouble checks the stand-in that the PostgREST transport is tested against.
func TestSupabaseClientAgainstTheDouble(t *testing.T) {
	w := direct(t)
	w.openQueue()
	server := httptest.NewServer(postgresttest.New(w.pool))
	defer server.Close()
	nodetest.Run(t, "../../../test/postgrest", []string{
		"POSTGREST_URL=" + server.URL,
		"SECRET_KEY=" + postgresttest.SecretKey,
		"PUBLISHABLE_KEY=" + postgresttest.PublishableKey,
		"SERVICE_JWT=" + postgresttest.ServiceJWT,
		"ANON_JWT=" + postgresttest.AnonJWT,
		"AUTHENTICATED_JWT=" + postgresttest.AuthenticatedJWT,
	}, "rpc.test.js")
}

func TestBothKindsOfKeyAreSent(t *testing.T) {
	w := direct(t)
	var header atomic.Pointer[http.Header]
	double := postgresttest.New(w.pool)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		header.Store(&r.Header)
		double.ServeHTTP(rw, r)
	}))
	defer server.Close()
	for key, bearer := range map[string]string{
		postgresttest.SecretKey:  "",
		postgresttest.ServiceJWT: "Bearer " + postgresttest.ServiceJWT,
	} {
		transport, err := hosted.NewPostgREST(server.URL, key)
		if err != nil {
			t.Fatal(err)
		}
		defer transport.Close()
		if _, err := hosted.NewFence(transport).State(t.Context()); err != nil {
			t.Error(err)
		}
		if got := header.Load().Get("Authorization"); got != bearer || header.Load().Get("Apikey") != key {
			t.Errorf("sent are %v", *header.Load())
		}
	}
}

// TestPostgRESTFaults has the gateway, the wire and PostgREST fail in every way.
func TestPostgRESTFaults(t *testing.T) {
	t.Parallel()
	answer := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	cut := func(before func(w http.ResponseWriter)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			before(w)
			panic(http.ErrAbortHandler)
		}
	}
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		want    error
	}{
		"empty 401":                   {answer(401, ""), hosted.ErrDenied},
		"401 of the gateway":          {answer(401, `{"message": "Invalid API key"}`), hosted.ErrDenied},
		"time limit as 500":           {answer(500, `{"code": "57014", "details": null, "message": "canceled"}`), continuity.ErrUnavailable},
		"deadlock as 500":             {answer(500, `{"code": "40P01"}`), continuity.ErrUnavailable},
		"lock as 500":                 {answer(500, `{"code": "55P03"}`), continuity.ErrUnavailable},
		"no function":                 {answer(404, `{"code": "PGRST202"}`), continuity.ErrDrift},
		"no connection of its own":    {answer(504, `{"code": "PGRST003"}`), continuity.ErrUnavailable},
		"gateway without upstream":    {answer(503, `{"message": "name resolution failed"}`), continuity.ErrOutcomeUnknown},
		"gateway's page":              {answer(502, "<html>Bad Gateway</html>"), continuity.ErrOutcomeUnknown},
		"hung up before an answer":    {cut(func(http.ResponseWriter) {}), continuity.ErrOutcomeUnknown},
		"hung up in the answer":       {cut(func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"epoch":`); w.(http.Flusher).Flush() }), continuity.ErrOutcomeUnknown},
		"a page instead of an answer": {answer(200, "<html>Log in to the network</html>"), continuity.ErrOutcomeUnknown},
		"an answer of another shape":  {answer(200, `["a"]`), continuity.ErrOutcomeUnknown},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, continuity.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls := atomic.Int64{}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				c.handler(w, r)
			}))
			defer server.Close()
			fence := postgrestFence(t, server.URL)
			for range 2 { // The second time the connection may be an old one.
				if _, err := fence.State(t.Context()); !errors.Is(err, c.want) {
					t.Errorf("the error is %v, want %v", err, c.want)
				}
			}
			if n := calls.Load(); n != 2 {
				t.Errorf("two calls arrived as %d", n)
			}
		})
	}
}

func postgrestFence(t *testing.T, url string) *hosted.Fence {
	t.Helper()
	transport, err := hosted.NewPostgREST(url, postgresttest.SecretKey)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(transport.Close)
	return hosted.NewFence(transport)
}

// refusedAddress is where nobody listens.
func refusedAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func TestNothingIsSentToWhoDoesNotListen(t *testing.T) {
	t.Parallel()
	pool := pgtest.Open(t, "postgres://user:secret@"+refusedAddress(t)+"/db")
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for name, fence := range map[string]*hosted.Fence{
		"postgres":  hosted.NewFence(hosted.NewPostgres(pool)),
		"postgrest": postgrestFence(t, "http://"+refusedAddress(t)),
	} {
		_, err := fence.State(t.Context())
		if !errors.Is(err, continuity.ErrUnavailable) || errors.Is(err, continuity.ErrOutcomeUnknown) {
			t.Errorf("%s: %v", name, err)
		}
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error holds the password or the key: %v", name, err)
		}
		_, err = fence.State(gone)
		if !errors.Is(err, continuity.ErrUnavailable) || !errors.Is(err, context.Canceled) {
			t.Errorf("%s: before anything is sent: %v", name, err)
		}
	}
}

// TestCallerThatGivesUpDoesNotKnow holds the aggregate, so that the enqueue waits, and gives up. The command comes to be
// or not; asking with the same key tells.
func TestCallerThatGivesUpDoesNotKnow(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openQueue()
		tx := w.begin()
		w.enqueueIn(tx, order("first", "o1"))
		ctx, cancel := context.WithCancel(t.Context())
		second := order("second", "o1")
		given := later(func() (continuity.Receipt, error) { return w.queue.Enqueue(ctx, second, 0) })
		w.waiting(1)
		cancel()
		_, err := given()
		w.wantErr(err, continuity.ErrOutcomeUnknown)
		w.wantErr(err, context.Canceled)
		w.commit(tx)
		w.enqueue(second)
		if n := scan[int](w, `select count(*) from continuity_commands where idempotency_key = 'second'`); n != 1 {
			t.Errorf("%d rows", n)
		}
	})
}

// TestLostReplies: every step of an outage is committed and nobody is told. Its repetition finds what the first has done.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T, dsn string, pool *pgxpool.Pool, lose *atomic.Bool) hosted.Transport{
		"postgres": func(t *testing.T, dsn string, _ *pgxpool.Pool, lose *atomic.Bool) hosted.Transport {
			return hosted.NewPostgres(pgtest.Open(t, mute(t, dsn, lose)))
		},
		"postgrest": func(t *testing.T, _ string, pool *pgxpool.Pool, lose *atomic.Bool) hosted.Transport {
			double := postgresttest.New(pool)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !lose.Load() {
					double.ServeHTTP(w, r)
					return
				}
				double.ServeHTTP(httptest.NewRecorder(), r)
				panic(http.ErrAbortHandler)
			}))
			t.Cleanup(server.Close)
			transport, err := hosted.NewPostgREST(server.URL, postgresttest.SecretKey)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(transport.Close)
			return transport
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lose := &atomic.Bool{}
			dsn := hostedDSN(t)
			pool := pgtest.Open(t, dsn)
			w := newWorld(t, dsn, pool, open(t, dsn, pool, lose))
			w.openQueue()
			// lost makes a call of which only the server knows.
			lost := func(call func() error) {
				t.Helper()
				lose.Store(true)
				w.wantErr(call(), continuity.ErrOutcomeUnknown)
				lose.Store(false)
			}
			c := order("k1", "o1")
			lost(func() error { _, err := w.queue.Enqueue(t.Context(), c, 0); return err })
			if receipt := w.enqueue(c); !receipt.Deduplicated || receipt.CommandID != c.CommandID {
				t.Errorf("the receipt is %+v", receipt)
			}
			lost(func() error { _, err := w.fence.BeginCatchup(t.Context(), 2, 1); return err })
			must[hosted.FenceState](w)(w.fence.BeginCatchup(t.Context(), 2, 1))
			lost(func() error {
				_, err := w.queue.Claim(t.Context(), hosted.ClaimOptions{Worker: "w", Limit: 1, Lease: time.Second})
				return err
			})
			w.exec(`update continuity_commands set claimed_until = now() where status = 'claimed'`)
			claim := w.claimOne()
			lost(func() error { return w.queue.Ack(t.Context(), claim.CommandID, claim.Token) })
			w.ack(claim)
			lost(func() error { _, err := w.fence.Seal(t.Context(), 2, 1); return err })
			hwm := w.seal()
			cutover := func() (hosted.CutoverProof, error) {
				return w.fence.Cutover(t.Context(), 2, 1, hwm, hosted.Attestation{Applied: 1})
			}
			lost(func() error { _, err := cutover(); return err })
			if proof := must[hosted.CutoverProof](w)(cutover()); proof.Accepted != 1 || proof.Fence.Epoch != 3 {
				t.Errorf("the proof is %+v", proof)
			}
			if got, want := w.events(), []string{"begin", "open", "catchup", "seal", "cutover"}; !slices.Equal(got, want) {
				t.Errorf("the log is %v", got)
			}
		})
	}
}

// mute stands in front of Postgres and, when it is told to, closes the connection instead of passing on the answer to a
// call.
func mute(t *testing.T, dsn string, lose *atomic.Bool) string {
	t.Helper()
	target := strings.SplitN(strings.SplitN(dsn, "@", 2)[1], "/", 2)[0]
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var relays sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		relays.Wait()
	})
	relay := func(client, server net.Conn) {
		defer client.Close()
		defer server.Close()
		var called atomic.Bool
		relays.Go(func() {
			defer server.Close()
			copyUnless(server, client, func(chunk []byte) bool {
				// Only a call: a pool also asks whether its connection lives.
				if lose.Load() && bytes.Contains(chunk, []byte("continuity_")) {
					called.Store(true)
				}
				return false
			})
		})
		// Postgres answers to the whole group of messages at once, when it has committed.
		copyUnless(client, server, func([]byte) bool { return called.Load() })
	}
	relays.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				continue
			}
			relays.Go(func() { relay(client, server) })
		}
	})
	return strings.Replace(dsn, target, listener.Addr().String(), 1)
}

// copyUnless copies until either end is closed or stop says so.
func copyUnless(dst io.Writer, src io.Reader, stop func(chunk []byte) bool) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := src.Read(buffer)
		if err != nil || stop(buffer[:n]) {
			return
		}
		if _, err := dst.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// TestTimeLimitsOfACall: the statement's limit reaches the server, and the client waits for longer.
func TestTimeLimitsOfACall(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.exec(`
			create function continuity_test_limits() returns jsonb language sql volatile security definer
			set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
			  select to_jsonb(current_setting('statement_timeout') || ' ' || current_setting('lock_timeout'))
			$$;
			grant execute on function continuity_test_limits() to service_role;
			create function continuity_test_unlimited() returns jsonb language sql volatile security definer
			set search_path = '' as $$ select to_jsonb(current_setting('statement_timeout')) $$`)
		var limits string
		if err := w.transport.Call(t.Context(), "continuity_test_limits", map[string]any{}, &limits); err != nil {
			t.Fatal(err)
		}
		if limits != "5s 2s" {
			t.Errorf("the limits are %s", limits)
		}
		if postgres, ok := w.transport.(*hosted.Postgres); ok {
			if err := postgres.Call(t.Context(), "continuity_test_unlimited", map[string]any{}, &limits); err != nil || limits != "5s" {
				t.Errorf("set by the transport is %s, %v", limits, err)
			}
		}
	})
}

// TestLockThatIsNotToBeHad: the wait ends by the function's own limit, and nothing has happened.
func TestLockThatIsNotToBeHad(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		tx := w.beginImpatient()
		if _, err := tx.Exec(t.Context(), `select continuity_lock_fence_shared()`); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err := w.fence.Seal(t.Context(), 2, 1)
		w.wantErr(err, continuity.ErrUnavailable)
		refusal := (*hosted.Refusal)(nil)
		if !errors.As(err, &refusal) || refusal.Code != "55P03" || time.Since(start) < time.Second {
			t.Errorf("the error is %v after %v", err, time.Since(start))
		}
		w.commit(tx)
		w.wantFence(2, continuity.Catchup)
	})
}

// TestDriftIsNoFaultOfTheCommand: a function that is not there, or has other arguments.
func TestDriftIsNoFaultOfTheCommand(t *testing.T) {
	eachTransport(t, func(w *world) {
		for function, args := range map[string]map[string]any{
			"continuity_none":        {},
			"continuity_fence_state": {"p_more": 1},
			"continuity_skip":        {"p_actor": "ana", "p_reason": "x"},
		} {
			w.wantErr(w.transport.Call(t.Context(), function, args, nil), continuity.ErrDrift)
		}
		// Names are names, whatever they hold.
		err := w.transport.Call(t.Context(), `f"; drop table continuity_commands; --`, map[string]any{`p"a`: json.RawMessage(`1`)}, nil)
		if err == nil {
			t.Error("called")
		}
		w.wantFence(1, continuity.Direct)
	})
}

// TestKilledSession: the server ends the session in the middle of a call.
func TestKilledSession(t *testing.T) {
	w := direct(t)
	w.openQueue()
	tx := w.begin()
	w.enqueueIn(tx, order("first", "o1"))
	killed := later(func() (continuity.Receipt, error) {
		return w.queue.Enqueue(t.Context(), order("second", "o1"), 0)
	})
	w.waiting(1)
	w.exec(`
		select pg_terminate_backend(pid)
		from pg_stat_activity
		where datname = current_database()
		  and wait_event = 'advisory'`)
	_, err := killed()
	w.wantErr(err, continuity.ErrOutcomeUnknown)
}
