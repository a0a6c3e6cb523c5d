package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rollingd/rollingd/internal/continuity/edge"
	"github.com/rollingd/rollingd/internal/continuity/edgeapp"
)

// edgeConfig is what the environment says to an edge.
type edgeConfig struct {
	edgeapp.Options
	// shared are the settings that every server has.
	shared config
}

// edgeSetting is a variable of an edge's environment.
type edgeSetting struct {
	name string
	// option is the field of edgeapp.Options that it sets.
	option string
	// standard is the default, for people; empty for a variable that is required.
	standard string
	about    string
	set      func(c *edgeConfig, value string) error
}

// edgeSettings are the variables that edge reads, in the order of its help.
var edgeSettings = append([]edgeSetting{
	{"LOCAL_CONTINUITY_PHASE", "Phase", "0", "how much is switched on, from 0 to 6",
		func(c *edgeConfig, value string) (err error) {
			c.Phase, err = edge.ParsePhase(value)
			return err
		}},
	{"ROLLINGD_EDGE_TOKENS", "Tokens", "", "caller=token,… that admit to the API; tokens of 16 characters or more",
		edgeText(func(c *edgeConfig) *string { return &c.Tokens })},
	{"ROLLINGD_EDGE_LISTEN_ADDR", "ListenAddr", edgeapp.DefaultListenAddr, "host:port of the HTTP server",
		edgeText(func(c *edgeConfig) *string { return &c.ListenAddr })},
	{"ROLLINGD_EDGE_INSTANCE", "Instance", "the host's name", "names this edge; the same at every start, and no other's",
		edgeText(func(c *edgeConfig) *string { return &c.Instance })},
	{"ROLLINGD_PRIMARY_URL", "PrimaryURL", "", "the primary's internal API: https://host",
		edgeText(func(c *edgeConfig) *string { return &c.PrimaryURL })},
	{"ROLLINGD_PRIMARY_TOKEN", "PrimaryToken", "", "service token of the primary's internal API",
		edgeText(func(c *edgeConfig) *string { return &c.PrimaryToken })},
	{"SUPABASE_URL", "SupabaseURL", "none", "the hosted database over PostgREST: https://project.supabase.co",
		edgeText(func(c *edgeConfig) *string { return &c.SupabaseURL })},
	{"SUPABASE_SERVICE_ROLE_KEY", "SupabaseKey", "none", "its service key",
		edgeText(func(c *edgeConfig) *string { return &c.SupabaseKey })},
	{"ROLLINGD_HOSTED_DATABASE_URL", "DatabaseURL", "none", "the hosted database over Postgres, in place of SUPABASE_URL",
		edgeText(func(c *edgeConfig) *string { return &c.DatabaseURL })},
	{"MERCADOPAGO_WEBHOOK_SECRET", "MercadoPagoSecret", "none", "signs the webhooks of Mercado Pago; without it they are refused",
		edgeText(func(c *edgeConfig) *string { return &c.MercadoPagoSecret })},
	{"MERCADOPAGO_ACCESS_TOKEN", "MercadoPagoAccessToken", "none", "looks up what a webhook is about; without it only those that carry the status are taken",
		edgeText(func(c *edgeConfig) *string { return &c.MercadoPagoAccessToken })},
	{"MERCADOPAGO_API_URL", "MercadoPagoAPI", edge.MercadoPagoAPI, "where it is looked up",
		edgeText(func(c *edgeConfig) *string { return &c.MercadoPagoAPI })},
	{"C6_WEBHOOK_TOKEN", "C6Token", "none", "the token that C6 Bank sends along with its webhooks; without it they are refused",
		edgeText(func(c *edgeConfig) *string { return &c.C6Token })},
	{"ROLLINGD_EDGE_FAILURES", "FailureThreshold", "3", "failures of the primary in a row that open the circuit",
		edgeNumber(func(c *edgeConfig) *int { return &c.FailureThreshold })},
	{"ROLLINGD_EDGE_OPEN_WINDOW", "OpenWindow", "30s", "how long the primary is then left alone",
		edgeDuration(func(c *edgeConfig) *time.Duration { return &c.OpenWindow })},
	{"ROLLINGD_EDGE_PROBES", "RecoveryProbes", "2", "probes in a row that must pass before the circuit closes",
		edgeNumber(func(c *edgeConfig) *int { return &c.RecoveryProbes })},
	{"ROLLINGD_EDGE_READ_TIMEOUT", "ReadTimeout", "1.5s", "how long a read waits for the primary",
		edgeDuration(func(c *edgeConfig) *time.Duration { return &c.ReadTimeout })},
	{"ROLLINGD_EDGE_WRITE_TIMEOUT", "WriteTimeout", "3s", "how long a command waits for the primary",
		edgeDuration(func(c *edgeConfig) *time.Duration { return &c.WriteTimeout })},
	{"ROLLINGD_EDGE_WATCH_INTERVAL", "WatchInterval", "5s", "time between looks at the primary, the fence and the queue",
		edgeDuration(func(c *edgeConfig) *time.Duration { return &c.WatchInterval })},
	{"ROLLINGD_ALERT_QUEUE", "QueueThreshold", strconv.Itoa(edge.DefaultQueueThreshold), "people are told when more commands wait in the queue",
		edgeNumber(func(c *edgeConfig) *int { return &c.QueueThreshold })},
	{"TELEGRAM_BOT_TOKEN", "TelegramToken", "none", "alerts go to a chat of Telegram",
		edgeText(func(c *edgeConfig) *string { return &c.TelegramToken })},
	{"TELEGRAM_CHAT_ID", "TelegramChat", "none", "that chat",
		edgeText(func(c *edgeConfig) *string { return &c.TelegramChat })},
	{"TELEGRAM_API_URL", "TelegramAPI", "https://api.telegram.org", "where bots speak",
		edgeText(func(c *edgeConfig) *string { return &c.TelegramAPI })},
	{"ROLLINGD_SMTP_URL", "SMTPURL", "none", "alerts go by e-mail: smtp://user:password@host:587, or smtps://…:465",
		edgeText(func(c *edgeConfig) *string { return &c.SMTPURL })},
	{"ROLLINGD_ALERT_FROM", "AlertFrom", "none", "address of the sender",
		edgeText(func(c *edgeConfig) *string { return &c.AlertFrom })},
	{"ROLLINGD_ALERT_TO", "AlertTo", "none", "addresses of the receivers, separated by commas",
		edgeText(func(c *edgeConfig) *string { return &c.AlertTo })},
}, sharedSettings("ROLLINGD_STOP_TIMEOUT", "ROLLINGD_LOG_LEVEL", "ROLLINGD_LOG_FORMAT")...)

// sharedSettings are those of serve that have no option of its own.
func sharedSettings(names ...string) []edgeSetting {
	var shared []edgeSetting
	for _, name := range names {
		for _, s := range settings {
			if s.name == name {
				shared = append(shared, edgeSetting{s.name, s.option, s.standard, s.about,
					func(c *edgeConfig, value string) error { return s.set(&c.shared, value) }})
			}
		}
	}
	return shared
}

func edgeText(field func(*edgeConfig) *string) func(*edgeConfig, string) error {
	return func(c *edgeConfig, value string) error {
		*field(c) = value
		return nil
	}
}

func edgeNumber(field func(*edgeConfig) *int) func(*edgeConfig, string) error {
	return func(c *edgeConfig, value string) error {
		return number(func(*config) *int { return field(c) })(nil, value)
	}
}

func edgeDuration(field func(*edgeConfig) *time.Duration) func(*edgeConfig, string) error {
	return func(c *edgeConfig, value string) error {
		return duration(func(*config) *time.Duration { return field(c) })(nil, value)
	}
}

func edgeVariableOf(option string) string {
	for _, s := range edgeSettings {
		if s.option == option {
			return s.name
		}
	}
	return option
}

// edgeSettingsHelp lists the variables for the help of edge.
func edgeSettingsHelp() string {
	var b strings.Builder
	for _, s := range edgeSettings {
		standard := "required"
		if s.standard != "" {
			standard = "default " + s.standard
		}
		fmt.Fprintf(&b, "  %s (%s)\n      %s\n", s.name, standard, s.about)
	}
	return strings.TrimRight(b.String(), "\n")
}
