package socket_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/device/socket"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

// judge has tokens judged by functions.
type judge struct {
	admit func() (socket.Pass, error)
	left  func() (time.Duration, error)
}

func (j judge) Admit(context.Context, string) (socket.Pass, error) { return j.admit() }
func (j judge) Left(socket.Pass) (time.Duration, error)            { return j.left() }

// read has a source read by a function.
type read func(restaurants []daydb.Restaurant) (map[daydb.Restaurant]socket.State, error)

func (r read) Load(_ context.Context, restaurants []daydb.Restaurant) (map[daydb.Restaurant]socket.State, error) {
	return r(restaurants)
}

func TestCloseLeavesNothing(t *testing.T) {
	pool := pgtest.New(t)
	leakFree(t)
	tokens := newGate()
	server := start(t, pool, tokens, time.Second)
	token := tokens.issue("acme", "till-1", time.Hour)
	w := dial(t, server.url, token)
	w.ready()

	polled := make(chan error, 1)
	go func() { polled <- poll(t, server.url, token) }()
	if err := <-polled; err != nil {
		t.Fatal(err)
	}
	silent := dial(t, server.url, "made-up")
	silent.until("44")

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := server.Close(ctx); err != nil {
		t.Fatal(err)
	}
	for _, open := range []*wire{w, silent} {
		if text := open.read(); text != io.EOF.Error() {
			t.Errorf("read %q of a closed server", text)
		}
	}
	response, err := http.Get(server.url + "/socket.io/?EIO=4&transport=polling")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a closed server answers %d", response.StatusCode)
	}
	http.DefaultClient.CloseIdleConnections()
}

// poll connects by polling and leaves the session as it is, with a poll that was
// not answered.
func poll(t *testing.T, base, token string) error {
	get := func(query string) (string, error) {
		response, err := http.Get(base + "/socket.io/?EIO=4&transport=polling" + query)
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return string(text), err
	}
	open, err := get("")
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(open, `"sid":"`)
	sid, _, _ := strings.Cut(rest, `"`)
	response, err := http.Post(base+"/socket.io/?EIO=4&transport=polling&sid="+sid, "text/plain;charset=UTF-8",
		strings.NewReader(`40{"token":"`+token+`"}`))
	if err != nil {
		return err
	}
	response.Body.Close()
	for range 3 {
		text, err := get("&sid=" + sid)
		if err != nil {
			return err
		}
		if strings.Contains(text, "sdk:init:ready") {
			// The answer to this one is the end of the session.
			asked := make(chan struct{})
			ended := make(chan struct{})
			t.Cleanup(func() { <-ended })
			go func() {
				defer close(ended)
				close(asked)
				_, _ = get("&sid=" + sid)
			}()
			<-asked
			return nil
		}
	}
	return errors.New("no sdk:init:ready by polling")
}

// TestBurst has many devices and many changes: neither makes a read each.
func TestBurst(t *testing.T) {
	var reads atomic.Int64
	tokens := newGate()
	source := read(func([]daydb.Restaurant) (map[daydb.Restaurant]socket.State, error) {
		reads.Add(1)
		return nil, nil
	})
	server, url := serve(t, tokens, source, time.Second)
	began := time.Now()
	wires := make([]*wire, 100)
	for i := range wires {
		wires[i] = dial(t, url, tokens.issue("acme", "till", time.Hour))
	}
	for _, w := range wires {
		w.ready()
	}
	for range 1000 {
		server.Changed("acme", restaurantID)
		server.Changed("acme", "")
		server.Changed("", "")
		server.Changed("other", restaurantID)
	}
	got := reads.Load() // Before the time is taken: what is read later is not of it.
	most := int64(time.Since(began)/(50*time.Millisecond)) + 2
	if got > most {
		t.Errorf("%d reads, want at most %d", got, most)
	}
}

func TestFailedReadIsRepeated(t *testing.T) {
	var reads atomic.Int64
	tokens := newGate()
	source := read(func([]daydb.Restaurant) (map[daydb.Restaurant]socket.State, error) {
		if reads.Add(1) == 1 {
			return nil, errors.New("postgres is away")
		}
		return nil, nil
	})
	_, url := serve(t, tokens, source, time.Second)
	dial(t, url, tokens.issue("acme", "till", time.Hour)).ready()
}

// TestTokenExpiresByItself: nobody has the device looked at again but its own timer.
func TestTokenExpiresByItself(t *testing.T) {
	var judged atomic.Int64
	tokens := judge{
		admit: func() (socket.Pass, error) {
			return socket.Pass{Restaurant: daydb.Restaurant{CompanyID: "acme", RestaurantID: restaurantID}, DeviceID: "till"}, nil
		},
		left: func() (time.Duration, error) {
			if judged.Add(1) == 1 {
				return time.Second, nil
			}
			return 0, socket.ErrExpired
		},
	}
	_, url := serve(t, tokens, read(func([]daydb.Restaurant) (map[daydb.Restaurant]socket.State, error) { return nil, nil }), time.Second)
	w := dial(t, url, "token")
	if text := w.until(`42["sdk:auth:expired"`); text != `42["sdk:auth:expired",{"graceSeconds":1}]` {
		t.Errorf("told %s", text)
	}
	w.until("41") // It is sent away at the end of the grace.
}

// TestRevokedWhileConnecting has the revocation come between the look at the
// token and the device's place among those that are looked at again.
func TestRevokedWhileConnecting(t *testing.T) {
	var server *socket.Server
	var revoked atomic.Bool
	tokens := judge{
		admit: func() (socket.Pass, error) {
			revoked.Store(true)
			server.Revoked("acme", "")
			return socket.Pass{Restaurant: daydb.Restaurant{CompanyID: "acme", RestaurantID: restaurantID}, DeviceID: "till"}, nil
		},
		left: func() (time.Duration, error) {
			if revoked.Load() {
				return 0, socket.ErrRefused
			}
			return time.Hour, nil
		},
	}
	server, url := serve(t, tokens, read(func([]daydb.Restaurant) (map[daydb.Restaurant]socket.State, error) { return nil, nil }), time.Second)
	dial(t, url, "token").until(`42["sdk:auth:revoked"`)
}

func TestTokenThatCannotBeJudged(t *testing.T) {
	tokens := judge{admit: func() (socket.Pass, error) { return socket.Pass{}, errors.New("no keys") }}
	_, url := serve(t, tokens, read(func([]daydb.Restaurant) (map[daydb.Restaurant]socket.State, error) { return nil, nil }), time.Second)
	if text := dial(t, url, "token").until("44"); !strings.Contains(text, `"code":"unavailable"`) {
		t.Errorf("refused with %s", text)
	}
}

// TestLoad reads one restaurant and all, and is told the same of each.
func TestLoad(t *testing.T) {
	pool := pgtest.New(t)
	h := hand{pool: pool}
	for _, company := range []string{"acme", "bravo"} {
		for _, err := range []error{
			h.register(t.Context(), company),
			h.setFlags(t.Context(), company, company == "acme"),
			h.begin(t.Context(), company, "20261129"),
			h.begin(t.Context(), company, "20261130"),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	all := []daydb.Restaurant{{CompanyID: "acme", RestaurantID: restaurantID}, {CompanyID: "bravo", RestaurantID: restaurantID}}
	source := socket.NewLedger(pool)
	states, err := source.Load(t.Context(), all)
	if err != nil || len(states) != 2 {
		t.Fatalf("%d states, %v", len(states), err)
	}
	for _, r := range all {
		one, err := source.Load(t.Context(), []daydb.Restaurant{r})
		if err != nil || len(one) != 1 || !reflect.DeepEqual(one[r], states[r]) {
			t.Errorf("%s alone: %+v, among others: %+v, %v", r, one, states[r], err)
		}
		m := states[r].Manifest
		if m == nil || *m.CurrentDayDB != "daily_20261130" || len(m.Overlays) != 1 || m.Overlays[0].DBName != "daily_20261129" {
			t.Errorf("%s: manifest %+v", r, m)
		}
		if states[r].Flags.RollingDbEnabled != (r.CompanyID == "acme") {
			t.Errorf("%s: flags %+v", r, states[r].Flags)
		}
	}
}
