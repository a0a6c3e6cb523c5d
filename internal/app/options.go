package app

import (
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/api"
	"github.com/rollingd/rollingd/internal/continuity/alert"
	"github.com/rollingd/rollingd/internal/continuity/edge"
	"github.com/rollingd/rollingd/internal/continuity/primary"
	"github.com/rollingd/rollingd/internal/daemon"
	"github.com/rollingd/rollingd/internal/device"
)

// Defaults of options that are zero.
const (
	DefaultListenAddr       = "127.0.0.1:8080"
	DefaultTTLDays          = 30
	DefaultSealSettle       = 20 * time.Hour
	DefaultDeviceWriteLimit = 5 * time.Minute
	DefaultDeviceSilence    = 7 * 24 * time.Hour
	DefaultLeaseTTL         = 30 * time.Second
	DefaultWorkers          = 8
)

const (
	// leastLeaseTTL leaves room for renewals on a busy machine.
	leastLeaseTTL = 3 * time.Second
	mostTTLDays   = 36500
	mostWorkers   = 256

	mostDeviceRate = 10_000

	leastServiceToken = 16
)

// Options of the server. Zero fields take their defaults; those without one are
// required.
type Options struct {
	// Env is the environment, the prefix of all database names: prod, staging.
	Env string
	// DatabaseURL of the primary's Postgres.
	DatabaseURL string
	// CouchURL of CouchDB, with an administrator's name and password.
	CouchURL string
	// ListenAddr is host:port of the HTTP server; port 0 is a free one.
	ListenAddr string
	// AdminTokens admit to the administration API: actor=role:token,…
	AdminTokens string
	// TTLDays is the age in days that a day must exceed to be dropped.
	TTLDays int
	// SealSettle is the least time between the seal of a day and its drop. It
	// covers every write that was under way at the seal, hence it is never
	// shorter than DeviceWriteLimit.
	SealSettle time.Duration
	// DeviceWriteLimit is the cap on the total time of a device's write request.
	DeviceWriteLimit time.Duration
	// DeviceSilence is how long a device may not be heard before a day that it
	// says it holds documents of does not wait for it any more.
	DeviceSilence time.Duration
	// DeviceJWTSecret signs device tokens (HS256), and DeviceJWKSURL publishes the
	// keys of those that are issued elsewhere. Without either the device plane is off.
	DeviceJWTSecret string
	DeviceJWKSURL   string
	// CouchProxySecret is CouchDB's [chttpd_auth] secret, with which the device
	// plane tells it who a device is.
	CouchProxySecret string
	// DeviceOrigins are the origins of pages, separated by commas, that may read
	// what devices are answered; * is all of them.
	DeviceOrigins string
	// DeviceRate is how many requests a device may make in a second.
	DeviceRate int
	// ContinuityPhase is how much of the continuity plane is switched on.
	ContinuityPhase edge.Phase
	// ContinuityPolicy says what becomes of direct writes while the hosted fence
	// cannot be read: available or strict.
	ContinuityPolicy string
	// SupabaseURL and SupabaseKey lead to the hosted database over PostgREST, or
	// HostedDatabaseURL over Postgres.
	SupabaseURL       string
	SupabaseKey       string
	HostedDatabaseURL string
	// Receivers are told of databases that a night's run had to leave out, and
	// from the last phase on of cutovers.
	alert.Receivers
	// BackupDir is the folder of the dumps; without one none are taken.
	BackupDir string
	// HostedOwnerURL is the hosted Postgres as its owner, to dump it; without it
	// only the primary's is dumped.
	HostedOwnerURL string
	// ServiceTokens, separated by commas, admit edges to the internal API.
	ServiceTokens string
	// LeaseTTL is how long the work of a process that died waits for another.
	LeaseTTL time.Duration
	// Workers is how many databases or restaurants are worked on at a time.
	Workers int
	// NoCatchUp leaves out runs that were missed by more than a few minutes.
	NoCatchUp bool
	// Version of the program, for people.
	Version string
	// Logger; nil discards.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	daemon.SetDefault(&o.ListenAddr, DefaultListenAddr)
	daemon.SetDefault(&o.TTLDays, DefaultTTLDays)
	daemon.SetDefault(&o.SealSettle, DefaultSealSettle)
	daemon.SetDefault(&o.DeviceWriteLimit, DefaultDeviceWriteLimit)
	daemon.SetDefault(&o.DeviceSilence, DefaultDeviceSilence)
	daemon.SetDefault(&o.DeviceRate, device.DefaultRate)
	daemon.SetDefault(&o.ContinuityPolicy, string(primary.Available))
	daemon.SetDefault(&o.LeaseTTL, DefaultLeaseTTL)
	daemon.SetDefault(&o.Workers, DefaultWorkers)
	daemon.SetDefault(&o.Logger, slog.New(slog.DiscardHandler))
	return o
}

// validate returns a daemon.InvalidError with all problems at once.
func (o Options) validate() error {
	var check daemon.Check
	want := check.Want
	want(contracts.ValidEnv(o.Env), "Env", "want the prefix of the database names, such as prod: a letter, then up to 31 of a-z, 0-9 and -")
	_, err := pgxpool.ParseConfig(o.DatabaseURL)
	want(err == nil && o.DatabaseURL != "", "DatabaseURL", "want postgres://user:password@host:port/database")
	want(validCouch(o.CouchURL), "CouchURL", "want http://user:password@host:port of an administrator")
	want(daemon.ValidListen(o.ListenAddr), "ListenAddr", "want host:port, such as 127.0.0.1:8080 or :8080")
	if _, err := api.ParseTokens(o.AdminTokens); err != nil {
		want(false, "AdminTokens", "want actor=role:token,…: %v", err)
	}
	want(o.TTLDays >= 1 && o.TTLDays <= mostTTLDays, "TTLDays", "want a number of days from 1 to %d", mostTTLDays)
	want(o.DeviceWriteLimit > 0, "DeviceWriteLimit", "want a duration above zero, such as 5m")
	want(o.DeviceSilence > 0, "DeviceSilence", "want a duration above zero, such as 168h")
	want(o.SealSettle > 0 && o.SealSettle >= o.DeviceWriteLimit, "SealSettle",
		"want a duration such as 20h, and not less than the limit on a device's write, %s", o.DeviceWriteLimit)
	want(o.DeviceJWTSecret == "" || len(o.DeviceJWTSecret) >= device.MinSecretLength, "DeviceJWTSecret",
		"want at least %d random bytes", device.MinSecretLength)
	want(o.DeviceJWKSURL == "" || validHTTP(o.DeviceJWKSURL), "DeviceJWKSURL", "want https://host/path of a JSON Web Key Set")
	want(!o.devicePlane() || o.CouchProxySecret != "", "CouchProxySecret",
		"want CouchDB's [chttpd_auth] secret, which the device plane needs; CouchDB needs {chttpd_auth, proxy_authentication_handler} among its [chttpd] authentication_handlers, too")
	for _, origin := range o.deviceOrigins() {
		want(origin == device.AnyOrigin || validOrigin(origin), "DeviceOrigins", "want https://host,… as browsers send them, or *")
	}
	want(o.DeviceRate >= 1 && o.DeviceRate <= mostDeviceRate, "DeviceRate", "want a number of requests per second from 1 to %d", mostDeviceRate)
	_, err = o.backupJobs()
	want(err == nil, "BackupDir", "%v", err)
	o.Check(want)
	o.validateContinuity(want)
	want(o.LeaseTTL >= leastLeaseTTL, "LeaseTTL", "want a duration of at least %s", leastLeaseTTL)
	want(o.Workers >= 1 && o.Workers <= mostWorkers, "Workers", "want a number from 1 to %d", mostWorkers)
	return check.Err()
}

func (o Options) validateContinuity(want func(met bool, option, format string, args ...any)) {
	policy := primary.Policy(o.ContinuityPolicy)
	want(policy == primary.Available || policy == primary.Strict, "ContinuityPolicy", "want %s or %s", primary.Available, primary.Strict)
	if o.ContinuityPhase == edge.Off {
		return
	}
	tokens := o.serviceTokens()
	want(len(tokens) > 0 && !slices.ContainsFunc(tokens, func(t string) bool { return len(t) < leastServiceToken }), "ServiceTokens",
		"want one or more random tokens of %d characters or more, separated by commas", leastServiceToken)
	if !o.ContinuityPhase.Hosted() {
		return
	}
	want(o.SupabaseURL != "" || o.HostedDatabaseURL != "", "SupabaseURL", "want https://project.supabase.co, or ROLLINGD_HOSTED_DATABASE_URL in its place")
	want(o.SupabaseURL == "" || validHTTP(o.SupabaseURL), "SupabaseURL", "want https://project.supabase.co")
	want(o.SupabaseURL == "" || o.SupabaseKey != "", "SupabaseKey", "want the service key of the hosted database")
	_, err := pgxpool.ParseConfig(o.HostedDatabaseURL)
	want(err == nil, "HostedDatabaseURL", "want postgres://user:password@host:port/database")
}

func (o Options) serviceTokens() []string {
	return strings.FieldsFunc(o.ServiceTokens, func(r rune) bool { return r == ',' || r == ' ' })
}

// devicePlane reports whether devices are served.
func (o Options) devicePlane() bool { return o.DeviceJWTSecret != "" || o.DeviceJWKSURL != "" }

func (o Options) deviceOrigins() []string {
	return strings.FieldsFunc(o.DeviceOrigins, func(r rune) bool { return r == ',' || r == ' ' })
}

// validOrigin wants a scheme and a host, of whatever scheme an app has.
func validOrigin(raw string) bool {
	u, err := url.Parse(raw)
	return err == nil && u.Scheme != "" && u.Host != "" && u.Scheme+"://"+u.Host == raw
}

func validHTTP(raw string) bool {
	u, err := url.Parse(raw)
	return err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
}

// validCouch wants a name and a password too: CouchDB lets nobody else in, and
// everything would fail at five in the morning.
func validCouch(raw string) bool {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User.Username() == "" {
		return false
	}
	_, withPassword := u.User.Password()
	return withPassword
}

// holder names this process to operators, in the leases that it holds.
func holder() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}
