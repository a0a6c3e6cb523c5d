package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/rollingd/rollingd/internal/app"
	"github.com/rollingd/rollingd/internal/continuity/edge"
	"github.com/rollingd/rollingd/internal/continuity/primary"
	"github.com/rollingd/rollingd/internal/daemon"
	"github.com/rollingd/rollingd/internal/device"
)

// config is what the environment says.
type config struct {
	app.Options
	logLevel    slog.Level
	logFormat   string
	stopTimeout time.Duration
}

const defaultStopTimeout = 25 * time.Second

// setting is a variable of the environment.
type setting struct {
	name string
	// option is the field of app.Options that it sets.
	option string
	// standard is the default, for people; empty for a variable that is required.
	standard string
	about    string
	set      func(c *config, value string) error
}

// settings are the variables that serve reads, in the order of its help.
var settings = []setting{
	{"ROLLINGD_ENV", "Env", "", "environment, the prefix of all database names: prod, staging",
		text(func(c *config) *string { return &c.Env })},
	{databaseVariable, "DatabaseURL", "", "Postgres: postgres://user:password@host:port/database",
		text(func(c *config) *string { return &c.DatabaseURL })},
	{"ROLLINGD_COUCHDB_URL", "CouchURL", "", "CouchDB, as an administrator: http://user:password@host:port",
		text(func(c *config) *string { return &c.CouchURL })},
	{"ROLLINGD_ADMIN_TOKENS", "AdminTokens", "", "actor=role:token,… with the roles viewer, operator, destroyer; tokens of 16 characters or more",
		text(func(c *config) *string { return &c.AdminTokens })},
	{"ROLLINGD_LISTEN_ADDR", "ListenAddr", app.DefaultListenAddr, "host:port of the HTTP server",
		text(func(c *config) *string { return &c.ListenAddr })},
	{"DAY_DB_TTL_DAYS", "TTLDays", strconv.Itoa(app.DefaultTTLDays), "a day must be older than this to be dropped",
		number(func(c *config) *int { return &c.TTLDays })},
	{"ROLLINGD_SEAL_SETTLE", "SealSettle", "20h", "least time between the seal of a day and its drop",
		duration(func(c *config) *time.Duration { return &c.SealSettle })},
	{"ROLLINGD_DEVICE_WRITE_LIMIT", "DeviceWriteLimit", "5m", "cap on the total time of a device's write; ROLLINGD_SEAL_SETTLE is never less",
		duration(func(c *config) *time.Duration { return &c.DeviceWriteLimit })},
	{"ROLLINGD_DEVICE_SILENCE", "DeviceSilence", "168h", "a day waits no longer for a device that says it holds documents of it",
		duration(func(c *config) *time.Duration { return &c.DeviceSilence })},
	{"ROLLINGD_DEVICE_JWT_SECRET", "DeviceJWTSecret", "none", "signs device tokens, 32 bytes or more; without it or keys no device is served",
		text(func(c *config) *string { return &c.DeviceJWTSecret })},
	{"ROLLINGD_DEVICE_JWKS_URL", "DeviceJWKSURL", "none", "publishes the keys of device tokens that are issued elsewhere",
		text(func(c *config) *string { return &c.DeviceJWKSURL })},
	{proxySecretVariable, "CouchProxySecret", "none", "CouchDB's [chttpd_auth] secret; the device plane needs it",
		text(func(c *config) *string { return &c.CouchProxySecret })},
	{"ROLLINGD_DEVICE_ORIGINS", "DeviceOrigins", "none", "origins of pages that are tills: https://host,… or * for all",
		text(func(c *config) *string { return &c.DeviceOrigins })},
	{"ROLLINGD_DEVICE_RATE", "DeviceRate", strconv.Itoa(device.DefaultRate), "requests that a device may make in a second",
		number(func(c *config) *int { return &c.DeviceRate })},
	{"LOCAL_CONTINUITY_PHASE", "ContinuityPhase", "0", "how much of the continuity plane is switched on, from 0 to 6; see rollingd edge --help",
		func(c *config, value string) (err error) {
			c.ContinuityPhase, err = edge.ParsePhase(value)
			return err
		}},
	{"ROLLINGD_CONTINUITY_POLICY", "ContinuityPolicy", string(primary.Available), "what becomes of direct writes when the hosted database is cut off: available, strict",
		text(func(c *config) *string { return &c.ContinuityPolicy })},
	{"ROLLINGD_SERVICE_TOKENS", "ServiceTokens", "none", "admit edges to the internal API, separated by commas; tokens of 16 characters or more",
		text(func(c *config) *string { return &c.ServiceTokens })},
	{"SUPABASE_URL", "SupabaseURL", "none", "the hosted database over PostgREST: https://project.supabase.co",
		text(func(c *config) *string { return &c.SupabaseURL })},
	{"SUPABASE_SERVICE_ROLE_KEY", "SupabaseKey", "none", "its service key",
		text(func(c *config) *string { return &c.SupabaseKey })},
	{hostedVariable, "HostedDatabaseURL", "none", "the hosted database over Postgres, in place of SUPABASE_URL",
		text(func(c *config) *string { return &c.HostedDatabaseURL })},
	{"ROLLINGD_BACKUP_DIR", "BackupDir", "none", "folder of daily dumps, of which 14 days are kept; needs pg_dump",
		text(func(c *config) *string { return &c.BackupDir })},
	{"ROLLINGD_HOSTED_OWNER_URL", "HostedOwnerURL", "none", "the hosted Postgres as its owner, to dump it as well",
		text(func(c *config) *string { return &c.HostedOwnerURL })},
	{"TELEGRAM_BOT_TOKEN", "TelegramToken", "none", "people are told of what needs them by a chat of Telegram",
		text(func(c *config) *string { return &c.TelegramToken })},
	{"TELEGRAM_CHAT_ID", "TelegramChat", "none", "that chat",
		text(func(c *config) *string { return &c.TelegramChat })},
	{"ROLLINGD_SMTP_URL", "SMTPURL", "none", "and by e-mail: smtp://user:password@host:587, or smtps://…:465",
		text(func(c *config) *string { return &c.SMTPURL })},
	{"ROLLINGD_ALERT_FROM", "AlertFrom", "none", "address of the sender",
		text(func(c *config) *string { return &c.AlertFrom })},
	{"ROLLINGD_ALERT_TO", "AlertTo", "none", "addresses of the receivers, separated by commas",
		text(func(c *config) *string { return &c.AlertTo })},
	{"ROLLINGD_LEASE_TTL", "LeaseTTL", "30s", "how long the work of a process that died waits for another",
		duration(func(c *config) *time.Duration { return &c.LeaseTTL })},
	{"ROLLINGD_WORKERS", "Workers", strconv.Itoa(app.DefaultWorkers), "databases or restaurants that are worked on at a time",
		number(func(c *config) *int { return &c.Workers })},
	{"ROLLINGD_CATCH_UP", "NoCatchUp", "on", "whether runs that were missed are caught up: on, off",
		choice(map[string]func(*config){
			"on":  func(c *config) { c.NoCatchUp = false },
			"off": func(c *config) { c.NoCatchUp = true },
		})},
	{"ROLLINGD_STOP_TIMEOUT", "", "25s", "how long a stop waits for runs and requests to end",
		duration(func(c *config) *time.Duration { return &c.stopTimeout })},
	{"ROLLINGD_LOG_LEVEL", "", "info", "debug, info, warn, error",
		choice(map[string]func(*config){
			"debug": func(c *config) { c.logLevel = slog.LevelDebug },
			"info":  func(c *config) { c.logLevel = slog.LevelInfo },
			"warn":  func(c *config) { c.logLevel = slog.LevelWarn },
			"error": func(c *config) { c.logLevel = slog.LevelError },
		})},
	{"ROLLINGD_LOG_FORMAT", "", "text", "text, json",
		choice(map[string]func(*config){
			"text": func(c *config) { c.logFormat = "text" },
			"json": func(c *config) { c.logFormat = "json" },
		})},
}

const (
	databaseVariable = "ROLLINGD_DATABASE_URL"
	hostedVariable   = "ROLLINGD_HOSTED_DATABASE_URL"
)

func text(field func(*config) *string) func(*config, string) error {
	return func(c *config, value string) error {
		*field(c) = value
		return nil
	}
}

// number refuses zero, which as an option would mean the default.
func number(field func(*config) *int) func(*config, string) error {
	return func(c *config, value string) error {
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 {
			return fmt.Errorf("want a whole number from 1, not %q", value)
		}
		*field(c) = n
		return nil
	}
}

func duration(field func(*config) *time.Duration) func(*config, string) error {
	return func(c *config, value string) error {
		d, err := time.ParseDuration(value)
		if err != nil || d <= 0 {
			return fmt.Errorf("want a duration above zero with its unit, such as 20h, 5m or 30s, not %q", value)
		}
		*field(c) = d
		return nil
	}
}

func choice(choices map[string]func(*config)) func(*config, string) error {
	return func(c *config, value string) error {
		apply, ok := choices[value]
		if !ok {
			return fmt.Errorf("want one of %s, not %q", strings.Join(sortedKeys(choices), ", "), value)
		}
		apply(c)
		return nil
	}
}

// configure reads the environment and returns a server with these options. All
// settings that are wrong are named in one error, a line each.
func (c *cli) configure() (config, *app.App, error) {
	cfg := config{logFormat: "text", stopTimeout: defaultStopTimeout}
	var problems []string
	reported := make(map[string]bool)
	for _, s := range settings {
		value := c.getenv(s.name)
		if value == "" {
			continue
		}
		if err := s.set(&cfg, value); err != nil {
			problems = append(problems, s.name+": "+err.Error())
			reported[s.option] = true
		}
	}
	cfg.Version = versionText()
	cfg.Logger = cfg.logger(c)
	a, err := app.New(cfg.Options)
	var invalid *daemon.InvalidError
	if err != nil && !errors.As(err, &invalid) {
		return config{}, nil, err
	}
	if invalid != nil {
		problems = append(problems, problemsOf(invalid, reported, variableOf)...)
	}
	if len(problems) > 0 {
		return config{}, nil, wrongSettings(problems)
	}
	return cfg, a, nil
}

// problemsOf names the variables of options that have no usable value, but for
// those that were reported.
func problemsOf(invalid *daemon.InvalidError, reported map[string]bool, variableOf func(option string) string) []string {
	var problems []string
	for _, p := range invalid.Problems {
		if !reported[p.Option] {
			problems = append(problems, variableOf(p.Option)+": "+p.Want)
		}
	}
	return problems
}

// wrongSettings is an error with a line for each problem.
func wrongSettings(problems []string) error {
	errs := make([]error, len(problems))
	for i, p := range problems {
		errs[i] = errors.New(p)
	}
	return &usageError{errors.Join(errs...)}
}

func variableOf(option string) string {
	for _, s := range settings {
		if s.option == option {
			return s.name
		}
	}
	return option
}

func (cfg config) logger(c *cli) *slog.Logger {
	opts := &slog.HandlerOptions{Level: cfg.logLevel}
	if cfg.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(c.errOut, opts))
	}
	return slog.New(slog.NewTextHandler(c.errOut, opts))
}

// settingsHelp lists the variables for the help of serve.
func settingsHelp() string {
	var b strings.Builder
	for _, s := range settings {
		standard := "required"
		if s.standard != "" {
			standard = "default " + s.standard
		}
		fmt.Fprintf(&b, "  %s (%s)\n      %s\n", s.name, standard, s.about)
	}
	return strings.TrimRight(b.String(), "\n")
}
