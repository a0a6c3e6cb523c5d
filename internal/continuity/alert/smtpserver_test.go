package alert_test

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"math/big"
	"net"
	"net/textproto"
	"strings"
	"sync"
	"testing"
	"time"
)

// mailServer is an SMTP server that keeps what it is sent.
type mailServer struct {
	addr     string
	cert     tls.Certificate
	roots    *x509.CertPool
	noTLS    bool
	implicit bool
	// refuse answers the command that begins with the key.
	refuse map[string]string

	mu    sync.Mutex
	mails []mail
}

type mail struct {
	from, data, login string
	to                []string
	secure            bool
}

// newMailServer serves on loopback until the test ends.
func newMailServer(t *testing.T, change ...func(*mailServer)) *mailServer {
	t.Helper()
	s := &mailServer{roots: x509.NewCertPool()}
	for _, c := range change {
		c(s)
	}
	s.cert = certificate(t, s.roots)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = listener.Addr().String()
	if s.implicit {
		listener = tls.NewListener(listener, s.config())
	}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			group.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		group.Wait()
	})
	return s
}

func (s *mailServer) config() *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{s.cert}}
}

// certificate is one for 127.0.0.1, which roots vouch for.
func certificate(t *testing.T, roots *x509.CertPool) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "mail"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (s *mailServer) serve(conn net.Conn) {
	defer conn.Close()
	m := mail{secure: s.implicit}
	text := textproto.NewReader(bufio.NewReader(conn))
	say := func(line string) { conn.Write([]byte(line + "\r\n")) }
	say("220 mail")
	for {
		line, err := text.ReadLine()
		if err != nil {
			return
		}
		verb, _, _ := strings.Cut(line, " ")
		if answer, ok := s.refuse[strings.ToUpper(verb)]; ok {
			if answer == "" {
				continue // Not a word.
			}
			say(answer)
			continue
		}
		switch strings.ToUpper(verb) {
		case "EHLO":
			say("250-mail")
			if !s.noTLS && !m.secure {
				say("250-STARTTLS")
			}
			say("250-AUTH PLAIN")
			say("250 8BITMIME")
		case "STARTTLS":
			say("220 go ahead")
			secured := tls.Server(conn, s.config())
			conn, m.secure = secured, true
			text = textproto.NewReader(bufio.NewReader(conn))
		case "AUTH":
			raw, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(line, "AUTH PLAIN "))
			m.login = strings.ReplaceAll(string(raw), "\x00", "|")
			say("235 welcome")
		case "MAIL":
			m.from = line
			say("250 ok")
		case "RCPT":
			m.to = append(m.to, line)
			say("250 ok")
		case "DATA":
			say("354 go on")
			lines, err := text.ReadDotLines()
			if err != nil {
				return
			}
			m.data = strings.Join(lines, "\n")
			s.mu.Lock()
			s.mails = append(s.mails, m)
			s.mu.Unlock()
			say("250 taken")
		case "QUIT":
			say("221 bye")
			return
		default:
			say("250 ok")
		}
	}
}

func (s *mailServer) got() []mail {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mails
}
