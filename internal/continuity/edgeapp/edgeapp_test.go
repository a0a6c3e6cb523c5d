package edgeapp_test

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/continuity/alert"
	"github.com/rollingd/rollingd/internal/continuity/edge"
	"github.com/rollingd/rollingd/internal/continuity/edgeapp"
	"github.com/rollingd/rollingd/internal/daemon"
)

// TestStartsAlone: neither the primary nor the hosted database need be there,
// and an edge that finds them later has lost nothing.
func TestStartsAlone(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	dsn := s.hostedDSN
	s.down.Store(true)
	e := s.edge(edge.Everything, func(o *edgeapp.Options) { o.DatabaseURL = "postgres://nobody@127.0.0.1:1/nowhere" })
	if status, answer := e.command("k-1", "order.create", "o-1", ofNorth); status != 503 || answer["code"] != "queue_failure" {
		t.Errorf("%d %v", status, answer)
	}
	e.until("people are told", func(map[string]any) bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return strings.Contains(strings.Join(e.told, " "), "edge-1: hosted_unreachable")
	})
	s.down.Store(false)
	e.untilState("PRIMARY")
	// Without the hosted database, the primary's word on the fence counts.
	if status, answer := e.command("k-1", "order.create", "o-1", ofNorth); status != 200 {
		t.Errorf("%d %v", status, answer)
	}
	e.until("the epoch is known", func(health map[string]any) bool { return health["epoch"] == float64(1) })
	if strings.Contains(e.log.String(), dsn) {
		t.Error("the log holds the database's URL")
	}
}

// TestStopWaits for the requests that are under way, and takes no others.
func TestStopWaits(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	slow := &gate{arrived: make(chan struct{}), open: make(chan struct{})}
	s.slow.Store(slow)
	e := s.edge(edge.Off, func(o *edgeapp.Options) { o.DatabaseURL = "" })
	answered := make(chan int, 1)
	go func() {
		status, _ := e.command("k-1", "order.create", "o-1", ofNorth)
		answered <- status
	}()
	<-slow.arrived
	stopped := make(chan error, 1)
	go func() { stopped <- e.app.Stop(t.Context()) }()
	// It listens no more.
	for {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", e.app.Addr())
		if err != nil {
			break
		}
		conn.Close()
	}
	select {
	case err := <-stopped:
		t.Fatalf("it stopped under way: %v", err)
	default:
	}
	close(slow.open)
	if status := <-answered; status != 200 {
		t.Errorf("status %d", status)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// TestStopGivesUp on what does not end in time, and says so.
func TestStopGivesUp(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	slow := &gate{arrived: make(chan struct{}), open: make(chan struct{})}
	s.slow.Store(slow)
	e := s.edge(edge.Off, func(o *edgeapp.Options) { o.DatabaseURL, o.WriteTimeout = "", time.Hour })
	go func() {
		conn, err := (&net.Dialer{}).DialContext(s.Context(), "tcp", e.app.Addr())
		if err != nil {
			return
		}
		defer conn.Close()
		body := `{"idempotencyKey":"k","commandType":"order.create","aggregateType":"order","aggregateId":"o","payload":{}}`
		_, _ = conn.Write([]byte("POST /v1/commands HTTP/1.1\r\nHost: edge\r\nAuthorization: Bearer " + callerToken +
			"\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body))
		_, _ = conn.Read(make([]byte, 1))
	}()
	<-slow.arrived
	ctx, cancel := context.WithCancelCause(t.Context())
	impatient := errors.New("no more time")
	cancel(impatient)
	if err := e.app.Stop(ctx); err == nil {
		t.Error("nothing was cut off")
	}
	close(slow.open)
}

func TestOptions(t *testing.T) {
	t.Parallel()
	const secret = "a-secret-of-the-settings"
	good := edgeapp.Options{
		Phase:             edge.Everything,
		Tokens:            "site=" + secret,
		PrimaryURL:        "https://primary.example",
		PrimaryToken:      secret,
		SupabaseURL:       "https://project.supabase.co",
		SupabaseKey:       "sb_secret_" + secret,
		MercadoPagoSecret: secret,
		C6Token:           secret,
		Receivers: alert.Receivers{
			TelegramToken: secret, TelegramChat: "1",
			SMTPURL: "smtp://ana:" + secret + "@mail.example", AlertFrom: "a@shop.example", AlertTo: "b@shop.example",
		},
	}
	if _, err := edgeapp.New(good); err != nil {
		t.Fatal(err)
	}
	if _, err := edgeapp.New(edgeapp.Options{Tokens: good.Tokens, PrimaryURL: good.PrimaryURL, PrimaryToken: good.PrimaryToken}); err != nil {
		t.Errorf("the least there can be: %v", err)
	}
	for name, c := range map[string]struct {
		change  func(*edgeapp.Options)
		options string
	}{
		"nothing":              {func(o *edgeapp.Options) { *o = edgeapp.Options{} }, "Tokens PrimaryURL"},
		"an address":           {func(o *edgeapp.Options) { o.ListenAddr = secret }, "ListenAddr"},
		"a token":              {func(o *edgeapp.Options) { o.Tokens = secret }, "Tokens"},
		"no TLS":               {func(o *edgeapp.Options) { o.PrimaryURL = "http://ana:" + secret + "@primary.example" }, "PrimaryURL"},
		"a service token":      {func(o *edgeapp.Options) { o.PrimaryToken = "short" }, "PrimaryToken"},
		"two databases":        {func(o *edgeapp.Options) { o.DatabaseURL = "postgres://u:" + secret + "@h/d" }, "DatabaseURL"},
		"no database":          {func(o *edgeapp.Options) { o.SupabaseURL = "" }, "DatabaseURL"},
		"a bad database":       {func(o *edgeapp.Options) { o.SupabaseURL, o.DatabaseURL = "", "postgres://u:"+secret+"@h:port/d" }, "DatabaseURL"},
		"a public key":         {func(o *edgeapp.Options) { o.SupabaseKey = "sb_publishable_" + secret }, "SupabaseURL"},
		"a webhook secret":     {func(o *edgeapp.Options) { o.MercadoPagoSecret, o.C6Token = "short", "short" }, "C6Token MercadoPagoSecret"},
		"half of a look-up":    {func(o *edgeapp.Options) { o.MercadoPagoSecret, o.MercadoPagoAccessToken = "", secret }, "MercadoPagoSecret"},
		"a secret in the open": {func(o *edgeapp.Options) { o.MercadoPagoAPI, o.TelegramAPI = "http://api.example", "api.example" }, "MercadoPagoAPI TelegramAPI"},
		"half of Telegram":     {func(o *edgeapp.Options) { o.TelegramChat = "" }, "TelegramChat"},
		"a mail server":        {func(o *edgeapp.Options) { o.SMTPURL = "mail://ana:" + secret + "@h" }, "SMTPURL"},
		"no receivers":         {func(o *edgeapp.Options) { o.AlertTo = "" }, "SMTPURL"},
		"numbers":              {func(o *edgeapp.Options) { o.QueueThreshold, o.FailureThreshold, o.RecoveryProbes = -1, -1, -1 }, "QueueThreshold FailureThreshold RecoveryProbes"},
		"durations":            {func(o *edgeapp.Options) { o.ReadTimeout, o.OpenWindow = -1, -1 }, "OpenWindow ReadTimeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := good
			c.change(&opts)
			_, err := edgeapp.New(opts)
			var invalid *daemon.InvalidError
			if !errors.As(err, &invalid) {
				t.Fatalf("%v", err)
			}
			named := make(map[string]bool)
			for _, p := range invalid.Problems {
				named[p.Option] = true
			}
			for _, option := range strings.Fields(c.options) {
				if !named[option] {
					t.Errorf("%s is not named in %v", option, err)
				}
			}
			if len(named) != len(strings.Fields(c.options)) || strings.Contains(err.Error(), secret) {
				t.Errorf("%v", err)
			}
		})
	}
}
