package main

import (
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

// TestVerifyHistoryThroughAPooler: the hosted database may be named by way of a
// pooler in transaction mode, which refuses the parameters of a session.
func TestVerifyHistoryThroughAPooler(t *testing.T) {
	t.Parallel()
	code, out, errOut := call(t.Context(), map[string]string{
		databaseVariable: pgtest.DSN(t),
		hostedVariable:   pooled(t, pgtest.HostedDSN(t)),
	}, "verify-history")
	if code != exitOK || !strings.Contains(out, "Every promise was kept.") {
		t.Errorf("exit code %d\n%s%s", code, out, errOut)
	}
}

// pooled leads to a database as PgBouncer does: whoever sets what it does not
// know for his session is refused.
func pooled(t *testing.T, dsn string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal("the URL of the test's database cannot be read")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	server := u.Host
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				_ = pass(client, server) // Whoever is refused says so.
			}()
		}
	}()
	u.Host = listener.Addr().String()
	return u.String()
}

func pass(client net.Conn, server string) error {
	front := pgproto3.NewBackend(client, client)
	first, err := front.ReceiveStartupMessage()
	if err != nil {
		return err
	}
	startup, ok := first.(*pgproto3.StartupMessage)
	if !ok {
		return errors.New("the test's databases are reached without TLS")
	}
	for parameter := range startup.Parameters {
		if strings.HasSuffix(parameter, "_timeout") {
			front.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: " + parameter})
			return front.Flush()
		}
	}
	back, err := net.Dial("tcp", server)
	if err != nil {
		return err
	}
	defer back.Close()
	text, err := startup.Encode(nil)
	if err != nil {
		return err
	}
	if _, err := back.Write(text); err != nil {
		return err
	}
	go func() { _, _ = io.Copy(client, back) }()
	_, err = io.Copy(back, client)
	return err
}
