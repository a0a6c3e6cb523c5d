package demo

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rollingd/rollingd/internal/app"
	"github.com/rollingd/rollingd/internal/devstack/couchtest"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

const token = "destroyer-token-0123456789"

// startServer starts a server whose days are dropped when they are older than ttl.
func startServer(t *testing.T, ttl int) Options {
	t.Helper()
	opts := app.Options{
		Env:              couchtest.Env(t),
		DatabaseURL:      pgtest.EmptyDSN(t),
		CouchURL:         couchtest.New(t),
		ListenAddr:       "127.0.0.1:0",
		AdminTokens:      "demo=destroyer:" + token,
		TTLDays:          ttl,
		SealSettle:       time.Millisecond,
		DeviceWriteLimit: time.Millisecond,
	}
	server, err := app.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := server.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return Options{
		API:         "http://" + server.Addr(),
		Token:       token,
		CouchDB:     opts.CouchURL,
		ProxySecret: couchtest.ProxySecret,
		Database:    opts.DatabaseURL,
		Env:         opts.Env,
		TTLDays:     ttl,
		Seed:        1,
	}
}

// TestPlay plays as few days as the whole script needs, on a server that drops after three.
func TestPlay(t *testing.T) {
	t.Parallel()
	opts := startServer(t, 3)
	opts.Days = opts.TTLDays + BeyondTTL
	var progress bytes.Buffer
	opts.Progress = &progress
	s, err := Play(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range s.Faults {
		t.Error(fault)
	}
	v := s.Verification
	if v.Acknowledged != v.InCouchDB+v.OnlyInPostgres || v.OnlyInPostgres == 0 || v.InBoth == 0 || v.Attachments == 0 {
		t.Errorf("verification: %+v", v)
	}
	// The bistro drops three days, the cantina, where two days stay open, one.
	for state, want := range map[string]int{"DROPPED": 4, "DROPPABLE": 1, "DRAINING": 2, "ACTIVE": 2, "PREWARMED": 2} {
		if s.States[state] != want {
			t.Errorf("%d days are %s, want %d", s.States[state], state, want)
		}
	}
	if s.Restored.Documents == 0 || s.Restored.DBName == "" {
		t.Errorf("restored: %+v", s.Restored)
	}
	if !strings.Contains(progress.String(), "day  8 of 8") {
		t.Errorf("progress: %s", progress.String())
	}

	var table bytes.Buffer
	if err := s.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(table.String(), "\n")[:len(s.Databases)+1] {
		if utf8.RuneCountInString(line) > width {
			t.Errorf("wider than %d: %s", width, line)
		}
	}
	for _, why := range []string{"1 non terminal: order:", "1 conflict: order:", "held by demo: tax inspection", "documents proven, sha256 "} {
		if !strings.Contains(table.String(), why) {
			t.Errorf("the table does not say %q:\n%s", why, table.String())
		}
	}
	t.Log("\n" + progress.String() + table.String())
}
