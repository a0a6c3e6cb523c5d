package pg_test

import (
	"errors"
	"net"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

// TestCommitWhoseAnswerIsLost cuts the connection at the COMMIT, before or after the server has carried it out. Nobody
// on this side can tell which, and the error has to say so.
func TestCommitWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		delivered bool
		rows      int
	}{
		"carried out":   {delivered: true, rows: 1},
		"never arrived": {delivered: false, rows: 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct := oneConnection(t)
			cut := &cutter{delivered: c.delivered}
			pool := pgtest.Open(t, cut.listen(t, direct.Config().ConnString()))
			err := pg.WithTx(t.Context(), pool, func(tx pgx.Tx) error {
				if err := insert(t.Context(), tx); err != nil {
					return err
				}
				cut.armed.Store(true)
				return nil
			})
			if !errors.Is(err, pg.ErrOutcomeUnknown) || !errors.Is(err, pg.ErrUnavailable) {
				t.Errorf("WithTx: %v, want ErrOutcomeUnknown and ErrUnavailable", err)
			}
			if n := count(t, direct); n != c.rows {
				t.Errorf("%d rows, want %d", n, c.rows)
			}
		})
	}
}

// cutter is a proxy before Postgres. Once armed it closes the connection: at the next message to the server, which is
// swallowed, or at the answer to it.
type cutter struct {
	armed     atomic.Bool
	delivered bool
}

// listen returns the URL that leads through the proxy.
func (c *cutter) listen(t *testing.T, dsn string) string {
	t.Helper()
	target, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	address := target.Host
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", address)
			if err != nil {
				client.Close()
				return
			}
			go c.copy(server, client, !c.delivered)
			go c.copy(client, server, c.delivered)
		}
	}()
	target.Host = listener.Addr().String()
	return target.String()
}

func (c *cutter) copy(to, from net.Conn, cuts bool) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil || cuts && c.armed.Load() {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}
