package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/continuity/edgeapp"
)

const edgeToken = "token-of-the-site-123"

// goodEdge is the least that an edge needs.
func goodEdge() map[string]string {
	return map[string]string{
		"ROLLINGD_EDGE_TOKENS":      "site=" + edgeToken,
		"ROLLINGD_EDGE_LISTEN_ADDR": "127.0.0.1:0",
		"ROLLINGD_PRIMARY_URL":      "http://127.0.0.1:1",
		"ROLLINGD_PRIMARY_TOKEN":    edgeToken + "-service",
	}
}

func edgeCLI(env map[string]string, errOut io.Writer) *cli {
	return &cli{out: io.Discard, errOut: errOut, getenv: func(name string) string { return env[name] }}
}

// TestEdgeRuns until its context ends, and then stops in order.
func TestEdgeRuns(t *testing.T) {
	t.Parallel()
	log, written := io.Pipe()
	cmd := edgeCLI(goodEdge(), written).edgeCommand()
	cmd.SetArgs([]string{}) // Not those of the test's own process, which nil stands for.
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- cmd.ExecuteContext(ctx)
		written.Close()
	}()
	lines := bufio.NewScanner(log)
	url := ""
	for url == "" && lines.Scan() {
		if found := addrInLog.FindStringSubmatch(lines.Text()); found != nil {
			url = "http://" + found[1]
		}
	}
	if url == "" {
		t.Fatalf("it did not start: %v", <-ended)
	}
	go func() {
		defer cancel()
		resp, err := http.Get(url + "/api/_health")
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || !strings.Contains(string(body), `"circuit_state":"PRIMARY"`) {
			t.Errorf("%s, %v", body, err)
		}
	}()
	var rest bytes.Buffer
	for lines.Scan() {
		rest.WriteString(lines.Text() + "\n")
	}
	if err := <-ended; err != nil || !strings.Contains(rest.String(), "msg=stopped") {
		t.Errorf("%v\n%s", err, rest.String())
	}
}

// TestEdgeSettings that are wrong are named, all at once, and never repeated.
func TestEdgeSettings(t *testing.T) {
	t.Parallel()
	const secret = "a-secret-of-the-settings"
	for name, c := range map[string]struct {
		set  map[string]string
		want []string
	}{
		"nothing at all": {map[string]string{"ROLLINGD_EDGE_TOKENS": "", "ROLLINGD_PRIMARY_URL": "", "ROLLINGD_PRIMARY_TOKEN": ""},
			[]string{"ROLLINGD_EDGE_TOKENS: want", "ROLLINGD_PRIMARY_URL: want"}},
		"a phase":            {map[string]string{"LOCAL_CONTINUITY_PHASE": "7"}, []string{"LOCAL_CONTINUITY_PHASE: want a phase"}},
		"a phase that needs": {map[string]string{"LOCAL_CONTINUITY_PHASE": "4"}, []string{"ROLLINGD_HOSTED_DATABASE_URL: want"}},
		"several": {map[string]string{
			"ROLLINGD_EDGE_READ_TIMEOUT": secret, "ROLLINGD_EDGE_FAILURES": "0", "C6_WEBHOOK_TOKEN": "short",
			"ROLLINGD_SMTP_URL": secret, "TELEGRAM_BOT_TOKEN": secret, "ROLLINGD_LOG_LEVEL": "loud",
		}, []string{
			"ROLLINGD_EDGE_READ_TIMEOUT: want", "ROLLINGD_EDGE_FAILURES: want", "C6_WEBHOOK_TOKEN: want",
			"ROLLINGD_SMTP_URL: want", "TELEGRAM_CHAT_ID: want", "ROLLINGD_LOG_LEVEL: want",
		}},
		"a key": {map[string]string{"LOCAL_CONTINUITY_PHASE": "6", "SUPABASE_URL": "https://project.supabase.co", "SUPABASE_SERVICE_ROLE_KEY": secret},
			[]string{"SUPABASE_URL: PostgREST settings"}},
	} {
		env := goodEdge()
		for variable, value := range c.set {
			env[variable] = value
		}
		_, _, err := edgeCLI(env, io.Discard).configureEdge()
		if err == nil {
			t.Errorf("%s: taken", name)
			continue
		}
		lines := strings.Split(err.Error(), "\n")
		if len(lines) != len(c.want) {
			t.Errorf("%s: %d lines, want %d:\n%s", name, len(lines), len(c.want), err)
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q is not in\n%s", name, want, err)
			}
		}
		text := strings.ReplaceAll(err.Error(), "ROLLINGD_EDGE_READ_TIMEOUT: want a duration above zero with its unit, such as 20h, 5m or 30s, not \""+secret+"\"", "")
		if strings.Contains(text, secret) {
			t.Errorf("%s: it repeats a secret: %s", name, text)
		}
	}
}

// TestEdgeSettingsAreWhole: each option has a variable, each variable an option,
// and the help has all of them.
func TestEdgeSettingsAreWhole(t *testing.T) {
	t.Parallel()
	options := reflect.TypeFor[edgeapp.Options]()
	named := make(map[string]bool)
	for _, s := range edgeSettings {
		named[s.option] = true
		if _, ok := options.FieldByName(s.option); !ok && s.option != "" {
			t.Errorf("%s sets %s, which is no option", s.name, s.option)
		}
		if !strings.Contains(edgeSettingsHelp(), "  "+s.name+" (") {
			t.Errorf("the help lacks %s", s.name)
		}
	}
	for _, field := range reflect.VisibleFields(options) {
		if !field.Anonymous && !named[field.Name] && field.Name != "Version" && field.Name != "Logger" {
			t.Errorf("no variable sets %s", field.Name)
		}
	}
}

func TestUntilHour(t *testing.T) {
	t.Parallel()
	for now, want := range map[string]time.Duration{
		"2026-11-30T10:59:59Z":      time.Second,
		"2026-11-30T11:00:00Z":      24 * time.Hour,
		"2026-11-30T11:00:01Z":      24*time.Hour - time.Second,
		"2026-12-31T23:00:00Z":      12 * time.Hour,
		"2026-11-30T08:00:00-03:00": 24 * time.Hour,
	} {
		at, err := time.Parse(time.RFC3339, now)
		if err != nil {
			t.Fatal(err)
		}
		if got := untilHour(at, 11); got != want {
			t.Errorf("%s: %s, want %s", now, got, want)
		}
	}
}
