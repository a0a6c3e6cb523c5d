package device

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

// TestAuthenticate has the view in a state of its own, told by nobody.
func TestAuthenticate(t *testing.T) {
	pool := pgtest.New(t)
	for _, r := range []daydb.Restaurant{north, south} {
		err := pg.WithTx(t.Context(), pool, func(tx pgx.Tx) error {
			return daydb.Register(t.Context(), tx, daydb.Registration{Restaurant: r, Timezone: daydb.DefaultTimezone, LegacyDB: "tables", Active: true})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	tokens, err := NewTokens(t.Context(), TokenOptions{Secret: "0123456789abcdef0123456789abcdef"})
	if err != nil {
		t.Fatal(err)
	}
	view := NewView()
	p := &Proxy{Options: Options{Tokens: tokens, View: view}}
	issue := func(r daydb.Restaurant, ttl time.Duration) string {
		t.Helper()
		token, _, err := tokens.Issue(Identity{Restaurant: r, DeviceID: "till-1"}, view.Now(), ttl)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	var told [][]daydb.Restaurant
	view.Tell(func(named []daydb.Restaurant) { told = append(told, named) })
	if err := view.LoadAll(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	good, other, unknown := issue(north, time.Hour), issue(south, time.Hour), issue(daydb.Restaurant{CompanyID: "new", RestaurantID: "new"}, time.Hour)
	expect := func(token string, want error) {
		t.Helper()
		g, err := p.Authenticate(t.Context(), token)
		if !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
		if err != nil {
			return
		}
		if left, err := p.Left(g); err != nil || g.DeviceID != "till-1" || left <= 0 || left > time.Hour {
			t.Errorf("got %+v for another %s, %v", g, left, err)
		}
	}
	expect(good, nil)
	expect(other, nil)
	expect(unknown, nil)
	admitted, err := p.Authenticate(t.Context(), good)
	if err != nil {
		t.Fatal(err)
	}
	expect("made-up", ErrToken)
	expect(issue(north, -time.Second), ErrTokenExpired)

	err = pg.WithTx(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := Revoke(t.Context(), tx, Identity{Restaurant: north}, "test")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := view.load(t.Context(), pool, []daydb.Restaurant{north}); err != nil {
		t.Fatal(err)
	}
	expect(good, ErrTokenRevoked)
	if _, err := p.Left(admitted); !errors.Is(err, ErrTokenRevoked) {
		t.Errorf("of a token that was revoked after it was admitted: %v", err)
	}
	admitted.Restaurant, admitted.ExpiresAt = south, view.Now()
	if _, err := p.Left(admitted); !errors.Is(err, ErrTokenExpired) {
		t.Errorf("of a token that expired after it was admitted: %v", err)
	}
	expect(other, nil)
	if len(told) != 2 || told[0] != nil || len(told[1]) != 1 || told[1][0] != north {
		t.Errorf("told of %v", told)
	}
	p.View = NewView()
	p.View.clock = view.clock
	expect(other, ErrNotLoaded)
}
