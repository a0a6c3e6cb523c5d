package alert_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rollingd/rollingd/internal/continuity/alert"
)

const botToken = "123456:AA-secret-of-the-bot"

func TestTelegram(t *testing.T) {
	t.Parallel()
	var (
		path string
		sent struct {
			Chat string `json:"chat_id"`
			Text string `json:"text"`
		}
	)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path = r.URL.Path
		if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
			t.Error(err)
		}
		io.WriteString(w, `{"ok":true,"result":{}}`)
	}))
	defer server.Close()
	sender := alert.NewTelegram(alert.TelegramOptions{Token: botToken, Chat: "-100", API: server.URL})
	err := sender.Send(t.Context(), alert.Message{Subject: "edge-1: queue_depth", Text: strings.Repeat("ã", 5000)})
	if err != nil {
		t.Fatal(err)
	}
	if path != "/bot"+botToken+"/sendMessage" || sent.Chat != "-100" || !strings.HasPrefix(sent.Text, "edge-1: queue_depth\n\nãã") ||
		utf8.RuneCountInString(sent.Text) != 4096 {
		t.Errorf("%s %s, %d characters", path, sent.Chat, utf8.RuneCountInString(sent.Text))
	}
}

// TestTelegramRefusals hold no token, whoever speaks.
func TestTelegramRefusals(t *testing.T) {
	t.Parallel()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		api    string
		want   string
	}{
		"a wrong chat": {answer: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			io.WriteString(w, `{"ok":false,"error_code":400,"description":"Bad Request: chat not found"}`)
		}, want: "chat not found"},
		"a proxy that repeats the URL": {answer: func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusBadGateway)
			json.NewEncoder(w).Encode(map[string]string{"description": "no way to " + r.URL.String()})
		}, want: "no way to"},
		"no JSON":    {answer: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") }, want: "status 200"},
		"a redirect": {answer: func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }, want: "status 302"},
		"nobody":     {api: gone.URL, want: "refused"},
		"no address": {api: "http://[::1", want: "cannot be right"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.api == "" {
				server := httptest.NewServer(c.answer)
				defer server.Close()
				c.api = server.URL
			}
			err := alert.NewTelegram(alert.TelegramOptions{Token: botToken, Chat: "1", API: c.api}).Send(t.Context(), alert.Message{})
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestTelegramLater(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTooManyRequests)
		io.WriteString(w, `{"ok":false,"error_code":429,"description":"Too Many Requests","parameters":{"retry_after":37}}`)
	}))
	defer server.Close()
	err := alert.NewTelegram(alert.TelegramOptions{Token: botToken, Chat: "1", API: server.URL}).Send(t.Context(), alert.Message{})
	var later *alert.LaterError
	if !errors.As(err, &later) || later.After != 37*time.Second {
		t.Errorf("%v", err)
	}
}

func TestTelegramInTime(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-release:
		}
	}))
	defer server.Close()
	defer close(release)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := alert.NewTelegram(alert.TelegramOptions{Token: botToken, Chat: "1", API: server.URL}).Send(ctx, alert.Message{})
	if !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
}
