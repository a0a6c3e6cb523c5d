package alert_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"mime"
	"mime/quotedprintable"
	netmail "net/mail"
	"strings"
	"testing"

	"github.com/rollingd/rollingd/internal/continuity/alert"
)

const password = "hunter2-hunter2"

func newSMTP(t *testing.T, s *mailServer, scheme string) *alert.SMTP {
	t.Helper()
	sender, err := alert.NewSMTP(alert.SMTPOptions{
		URL:  scheme + "://ana:" + password + "@" + s.addr,
		From: "rollingd <alerts@shop.example>",
		To:   "ana@shop.example, Bruno <bruno@shop.example>",
		TLS:  &tls.Config{RootCAs: s.roots},
	})
	if err != nil {
		t.Fatal(err)
	}
	return sender
}

func TestSMTP(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		scheme string
		server func(*mailServer)
		secure bool
	}{
		"STARTTLS":            {"smtp", func(*mailServer) {}, true},
		"implicit TLS":        {"smtps", func(s *mailServer) { s.implicit = true }, true},
		"no TLS, on loopback": {"smtp", func(s *mailServer) { s.noTLS = true }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newMailServer(t, c.server)
			err := newSMTP(t, server, c.scheme).Send(t.Context(), alert.Message{
				Subject: "queue_depth: 120 pedidos à espera\r\nBcc: eve@example.com",
				Text:    "A fila está cheia.\n.\nQUIT\n" + strings.Repeat("x", 200),
			})
			if err != nil {
				t.Fatal(err)
			}
			mails := server.got()
			if len(mails) != 1 {
				t.Fatalf("%d mails", len(mails))
			}
			m := mails[0]
			if m.secure != c.secure || m.login != "|ana|"+password || len(m.to) != 2 || !strings.Contains(m.from, "<alerts@shop.example>") {
				t.Errorf("%+v", m)
			}
			parsed, err := netmail.ReadMessage(strings.NewReader(m.data))
			if err != nil {
				t.Fatal(err)
			}
			subject, err := new(mime.WordDecoder).DecodeHeader(parsed.Header.Get("Subject"))
			if err != nil || subject != "queue_depth: 120 pedidos à espera Bcc: eve@example.com" || parsed.Header.Get("Bcc") != "" {
				t.Errorf("subject %q, %v", subject, err)
			}
			if _, err := parsed.Header.Date(); err != nil {
				t.Errorf("date: %v", err)
			}
			body, err := io.ReadAll(quotedprintable.NewReader(parsed.Body))
			if err != nil || !strings.HasPrefix(string(body), "A fila está cheia.\n.\nQUIT\nxxx") {
				t.Errorf("body %q, %v", body, err)
			}
		})
	}
}

// TestSMTPRefusals come back as errors that hold no password, in time.
func TestSMTPRefusals(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		server func(*mailServer)
		want   string
	}{
		"a wrong password":   {func(s *mailServer) { s.refuse = map[string]string{"AUTH": "535 5.7.8 no"} }, "535"},
		"an unknown address": {func(s *mailServer) { s.refuse = map[string]string{"RCPT": "550 no such user"} }, "550"},
		"a full disk":        {func(s *mailServer) { s.refuse = map[string]string{"DATA": "452 full"} }, "452"},
		"a broken STARTTLS":  {func(s *mailServer) { s.refuse = map[string]string{"STARTTLS": "454 not now"} }, "454"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newMailServer(t, c.server)
			err := newSMTP(t, server, "smtp").Send(t.Context(), alert.Message{Subject: "s", Text: "t"})
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), password) || len(server.got()) != 0 {
				t.Errorf("%v, %d mails", err, len(server.got()))
			}
		})
	}
	t.Run("a server that says nothing", func(t *testing.T) {
		t.Parallel()
		server := newMailServer(t, func(s *mailServer) { s.refuse = map[string]string{"MAIL": ""} })
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- newSMTP(t, server, "smtp").Send(ctx, alert.Message{Subject: "s", Text: "t"}) }()
		given := errors.New("given up")
		cancel(given)
		if err := <-ended; !errors.Is(err, given) {
			t.Errorf("%v", err)
		}
	})
	t.Run("a certificate of another", func(t *testing.T) {
		t.Parallel()
		server, other := newMailServer(t), newMailServer(t)
		server.roots = other.roots
		err := newSMTP(t, server, "smtp").Send(t.Context(), alert.Message{Subject: "s", Text: "t"})
		if unknown := (*tls.CertificateVerificationError)(nil); !errors.As(err, &unknown) {
			t.Errorf("%v", err)
		}
	})
}

func TestSMTPSettings(t *testing.T) {
	t.Parallel()
	good := alert.SMTPOptions{URL: "smtp://ana:" + password + "@mail.example", From: "a@shop.example", To: "b@shop.example"}
	if _, err := alert.NewSMTP(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*alert.SMTPOptions){
		"no scheme":    func(o *alert.SMTPOptions) { o.URL = "mail.example:25" },
		"no host":      func(o *alert.SMTPOptions) { o.URL = "smtp://" },
		"no URL":       func(o *alert.SMTPOptions) { o.URL = "smtp://ana:" + password + "@mail example" },
		"no sender":    func(o *alert.SMTPOptions) { o.From = "nobody" },
		"no receivers": func(o *alert.SMTPOptions) { o.To = "" },
	} {
		opts := good
		change(&opts)
		if _, err := alert.NewSMTP(opts); err == nil || strings.Contains(err.Error(), password) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
