package alert

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// TelegramAPI is where bots speak.
const TelegramAPI = "https://api.telegram.org"

// maxTelegram is the longest text of a message, in characters.
const maxTelegram = 4096

// TelegramOptions of a bot.
type TelegramOptions struct {
	// Token of the bot, which stands in the URL of every request: no error holds
	// that URL.
	Token string
	// Chat is the id of a chat, or the @name of a channel.
	Chat string
	// API is TelegramAPI unless it is set.
	API string
}

// Telegram sends to a chat.
type Telegram struct {
	opts   TelegramOptions
	client *http.Client
}

// NewTelegram returns a sender.
func NewTelegram(opts TelegramOptions) *Telegram {
	if opts.API == "" {
		opts.API = TelegramAPI
	}
	opts.API = strings.TrimRight(opts.API, "/")
	return &Telegram{opts: opts, client: &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Name is telegram.
func (*Telegram) Name() string { return "telegram" }

// Send sends one message.
func (t *Telegram) Send(ctx context.Context, m Message) error {
	body, err := json.Marshal(map[string]any{
		"chat_id":              t.opts.Chat,
		"text":                 cut(m.Subject+"\n\n"+m.Text, maxTelegram),
		"link_preview_options": map[string]bool{"is_disabled": true},
	})
	if err != nil {
		return t.failed(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.opts.API+"/bot"+t.opts.Token+"/sendMessage", bytes.NewReader(body))
	if err != nil {
		return errors.New("telegram: the token or the address cannot be right")
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := t.client.Do(req)
	if err != nil {
		if named := (*url.Error)(nil); errors.As(err, &named) {
			err = named.Err
		}
		return t.failed(err)
	}
	defer resp.Body.Close()
	var answer struct {
		OK          bool   `json:"ok"`
		Description string `json:"description"`
		Parameters  struct {
			RetryAfter int `json:"retry_after"`
		} `json:"parameters"`
	}
	const most = 64 << 10
	err = json.NewDecoder(io.LimitReader(resp.Body, most)).Decode(&answer)
	switch {
	case err == nil && answer.OK:
		return nil
	case answer.Parameters.RetryAfter > 0:
		return &LaterError{
			After: time.Duration(answer.Parameters.RetryAfter) * time.Second,
			Err:   t.failed(fmt.Errorf("status %d", resp.StatusCode)),
		}
	}
	return t.failed(fmt.Errorf("status %d %s", resp.StatusCode, answer.Description))
}

// failed says why, without the token, whoever may have put it into the text.
func (t *Telegram) failed(err error) error {
	text := err.Error()
	if strings.Contains(text, t.opts.Token) {
		return errors.New("telegram: " + strings.ReplaceAll(text, t.opts.Token, "…"))
	}
	return fmt.Errorf("telegram: %w", err)
}

// cut shortens a text to so many characters.
func cut(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	return string(runes[:most-1]) + "…"
}
