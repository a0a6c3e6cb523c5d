package edgeapp

import (
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/internal/continuity/alert"
	"github.com/rollingd/rollingd/internal/continuity/breaker"
	"github.com/rollingd/rollingd/internal/continuity/edge"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/continuity/router"
	"github.com/rollingd/rollingd/internal/daemon"
)

// DefaultListenAddr is where an edge listens unless it is told otherwise.
const DefaultListenAddr = "127.0.0.1:8090"

// Options of an edge. Zero fields take their defaults; those without one are
// required.
type Options struct {
	Phase edge.Phase
	// ListenAddr is host:port of the HTTP server; port 0 is a free one.
	ListenAddr string
	// Tokens admit callers: caller=token,…
	Tokens string
	// PrimaryURL and PrimaryToken are those of the primary's internal API.
	PrimaryURL   string
	PrimaryToken string
	// SupabaseURL with its service key, or DatabaseURL, lead to the hosted
	// database. From phase 2 on, one of the two is required.
	SupabaseURL string
	SupabaseKey string
	DatabaseURL string
	// Instance names this edge to the fence. It stays the same when the edge is
	// started again, and no two have the same; the host's name unless it is set.
	Instance string

	MercadoPagoSecret string
	// MercadoPagoAccessToken looks payments up; see edge.MercadoPagoOptions.
	MercadoPagoAccessToken string
	MercadoPagoAPI         string
	C6Token                string

	alert.Receivers
	// QueueThreshold is above how many waiting commands people are told.
	QueueThreshold int
	// WatchInterval is the time between looks at the primary, the fence and the
	// queue.
	WatchInterval time.Duration

	FailureThreshold int
	OpenWindow       time.Duration
	RecoveryProbes   int
	ReadTimeout      time.Duration
	WriteTimeout     time.Duration

	// Version of the program, for people.
	Version string
	// Logger; nil discards.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	daemon.SetDefault(&o.ListenAddr, DefaultListenAddr)
	daemon.SetDefault(&o.QueueThreshold, edge.DefaultQueueThreshold)
	daemon.SetDefault(&o.WatchInterval, edge.DefaultWatchInterval)
	daemon.SetDefault(&o.FailureThreshold, breaker.DefaultFailureThreshold)
	daemon.SetDefault(&o.OpenWindow, breaker.DefaultOpenWindow)
	daemon.SetDefault(&o.RecoveryProbes, breaker.DefaultRecoveryProbes)
	daemon.SetDefault(&o.ReadTimeout, router.DefaultReadTimeout)
	daemon.SetDefault(&o.WriteTimeout, router.DefaultWriteTimeout)
	daemon.SetDefault(&o.Logger, slog.New(slog.DiscardHandler))
	if o.Instance == "" {
		o.Instance, _ = os.Hostname()
	}
	return o
}

// minSecret is the least length of a secret of webhooks, in characters.
const minSecret = 16

// validate returns a daemon.InvalidError with all problems at once.
func (o Options) validate() error {
	var check daemon.Check
	want := check.Want
	want(daemon.ValidListen(o.ListenAddr), "ListenAddr", "want host:port, such as 127.0.0.1:8090 or :8090")
	if _, err := edge.ParseTokens(o.Tokens); err != nil {
		want(false, "Tokens", "want caller=token,…: %v", err)
	}
	if p, err := edge.NewPrimary(o.PrimaryURL, o.PrimaryToken); err != nil {
		option := "PrimaryURL"
		if errors.Is(err, edge.ErrPrimaryToken) {
			option = "PrimaryToken"
		}
		want(false, option, "%v", err)
	} else {
		p.Close()
	}
	o.validateHosted(want)
	want(o.Instance != "" && len(o.Instance) <= 200, "Instance", "want a name of this edge that no other has, of up to 200 characters")
	for option, secret := range map[string]string{"MercadoPagoSecret": o.MercadoPagoSecret, "C6Token": o.C6Token} {
		want(secret == "" || len(secret) >= minSecret, option, "want at least %d characters", minSecret)
	}
	want(o.MercadoPagoAccessToken == "" || o.MercadoPagoSecret != "", "MercadoPagoSecret", "want the secret of the webhooks, too")
	want(edge.ValidMercadoPagoAPI(o.MercadoPagoAPI), "MercadoPagoAPI", "want https://host: the access token is sent there")
	o.Receivers.Check(want)
	want(o.QueueThreshold >= 1, "QueueThreshold", "want a number from 1")
	want(o.FailureThreshold >= 1, "FailureThreshold", "want a number from 1")
	want(o.RecoveryProbes >= 1, "RecoveryProbes", "want a number from 1")
	for option, d := range map[string]time.Duration{
		"WatchInterval": o.WatchInterval, "OpenWindow": o.OpenWindow, "ReadTimeout": o.ReadTimeout, "WriteTimeout": o.WriteTimeout,
	} {
		want(d > 0, option, "want a duration above zero, such as 30s")
	}
	return check.Err()
}

func (o Options) validateHosted(want func(met bool, option, format string, args ...any)) {
	switch {
	case !o.Phase.Hosted():
	case o.SupabaseURL != "" && o.DatabaseURL != "":
		want(false, "DatabaseURL", "want either SUPABASE_URL or a database URL")
	case o.SupabaseURL != "":
		transport, err := hosted.NewPostgREST(o.SupabaseURL, o.SupabaseKey)
		if err != nil {
			want(false, "SupabaseURL", "%v", err)
			return
		}
		transport.Close()
	default:
		_, err := pgxpool.ParseConfig(o.DatabaseURL)
		want(err == nil && o.DatabaseURL != "", "DatabaseURL",
			"want postgres://user:password@host:port/database of the hosted database, or SUPABASE_URL with its service key; phase %d speaks to it", o.Phase)
	}
}
