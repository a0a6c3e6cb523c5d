package alert

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"mime"
	"mime/quotedprintable"
	"net"
	"net/mail"
	"net/smtp"
	"net/url"
	"strings"
	"time"
)

// SMTPOptions of a mail server.
type SMTPOptions struct {
	// URL is smtp://user:password@host:587, which begins TLS before anything is
	// told, or smtps://user:password@host:465. Without TLS only a server on
	// loopback is spoken to.
	URL string
	// From is an address, and To are several, separated by commas.
	From string
	To   string
	// TLS is for servers whose certificates the system does not know.
	TLS *tls.Config
}

// SMTP sends e-mail.
type SMTP struct {
	host, port string
	implicit   bool
	auth       smtp.Auth
	from       *mail.Address
	to         []*mail.Address
	tls        *tls.Config
}

// NewSMTP returns a sender. Its errors never repeat the URL, which may hold a
// password.
func NewSMTP(opts SMTPOptions) (*SMTP, error) {
	u, err := url.Parse(opts.URL)
	if err != nil || u.Hostname() == "" || u.Scheme != "smtp" && u.Scheme != "smtps" {
		return nil, errors.New("want smtp://user:password@host:587 or smtps://user:password@host:465")
	}
	s := &SMTP{host: u.Hostname(), port: u.Port(), implicit: u.Scheme == "smtps", tls: opts.TLS.Clone()}
	if s.port == "" {
		s.port = map[bool]string{true: "465", false: "587"}[s.implicit]
	}
	if s.tls == nil {
		s.tls = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	s.tls.ServerName = s.host
	if user := u.User.Username(); user != "" {
		password, _ := u.User.Password()
		s.auth = smtp.PlainAuth("", user, password, s.host)
	}
	if s.from, err = mail.ParseAddress(opts.From); err != nil {
		return nil, errors.New("the sender is no address")
	}
	if s.to, err = mail.ParseAddressList(opts.To); err != nil {
		return nil, errors.New("the receivers are no addresses, separated by commas")
	}
	return s, nil
}

// Name is smtp.
func (*SMTP) Name() string { return "smtp" }

// Send sends one message to all receivers.
func (s *SMTP) Send(ctx context.Context, m Message) error {
	if err := s.send(ctx, m); err != nil {
		if ctx.Err() != nil {
			err = errors.Join(context.Cause(ctx), err)
		}
		return fmt.Errorf("smtp: %w", err)
	}
	return nil
}

func (s *SMTP) send(ctx context.Context, m Message) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(s.host, s.port))
	if err != nil {
		return err
	}
	// The package knows no contexts: a connection that is closed ends what waits.
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	spoken := conn
	if s.implicit {
		spoken = tls.Client(conn, s.tls)
	}
	client, err := smtp.NewClient(spoken, s.host)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	defer client.Close()
	if err := s.secure(client); err != nil {
		return err
	}
	if err := client.Mail(s.from.Address); err != nil {
		return err
	}
	for _, to := range s.to {
		if err := client.Rcpt(to.Address); err != nil {
			return err
		}
	}
	data, err := client.Data()
	if err != nil {
		return err
	}
	if _, err := data.Write(s.compose(m)); err != nil {
		return err
	}
	if err := data.Close(); err != nil {
		return err
	}
	// It has been taken. How the server says good-bye changes nothing.
	_ = client.Quit()
	return nil
}

// secure begins TLS and logs in.
func (s *SMTP) secure(client *smtp.Client) error {
	if offered, _ := client.Extension("STARTTLS"); offered && !s.implicit {
		if err := client.StartTLS(s.tls); err != nil {
			return err
		}
	} else if !s.implicit && !isLoopback(s.host) {
		return errors.New("the server offers no TLS")
	}
	if s.auth == nil {
		return nil
	}
	return client.Auth(s.auth)
}

func isLoopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

// compose writes the message as it travels. Neither subject nor text can add a
// header or end the message.
func (s *SMTP) compose(m Message) []byte {
	var to []string
	for _, address := range s.to {
		to = append(to, address.String())
	}
	start := time.Now()
	_, domain, _ := strings.Cut(s.from.Address, "@")
	var b bytes.Buffer
	for _, h := range [][2]string{
		{"From", s.from.String()},
		{"To", strings.Join(to, ", ")},
		{"Subject", mime.QEncoding.Encode("utf-8", strings.Join(strings.Fields(m.Subject), " "))},
		{"Date", start.Format(time.RFC1123Z)},
		{"Message-ID", "<" + rand.Text() + "@" + domain + ">"},
		{"Auto-Submitted", "auto-generated"},
		{"MIME-Version", "1.0"},
		{"Content-Type", "text/plain; charset=utf-8"},
		{"Content-Transfer-Encoding", "quoted-printable"},
	} {
		fmt.Fprintf(&b, "%s: %s\r\n", h[0], h[1])
	}
	b.WriteString("\r\n")
	text := quotedprintable.NewWriter(&b)
	// Neither fails on a buffer.
	_, _ = text.Write([]byte(m.Text + "\n"))
	_ = text.Close()
	return b.Bytes()
}
