package pgtest

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
)

// CommitFault is what a Proxy does to a COMMIT.
type CommitFault int

const (
	// CommitPasses lets it through.
	CommitPasses CommitFault = iota
	// CommitFails cuts the connection instead of passing the COMMIT on: the
	// transaction is rolled back.
	CommitFails
	// CommitUnanswered passes the COMMIT on and cuts the connection instead of
	// passing the answer back: the transaction is committed, and nobody is told.
	CommitUnanswered
)

// Proxy stands between a client and Postgres and breaks connections at a COMMIT
// of the test's choice.
type Proxy struct {
	listener net.Listener
	target   string
	commits  atomic.Int64
	decide   atomic.Pointer[func(n int64) CommitFault]
	wait     sync.WaitGroup
}

// NewProxy starts a proxy in front of the database and returns the URL that
// leads through it. It stops when the test ends.
func NewProxy(t testing.TB, databaseURL string) (*Proxy, string) {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	p := &Proxy{listener: listener, target: u.Host}
	p.OnCommit(func(int64) CommitFault { return CommitPasses })
	p.wait.Go(p.serve)
	t.Cleanup(func() {
		_ = listener.Close()
		p.wait.Wait()
	})
	u.Host = listener.Addr().String()
	return p, u.String()
}

// OnCommit sets what happens to the n-th COMMIT from now on, counted from 1.
func (p *Proxy) OnCommit(decide func(n int64) CommitFault) {
	p.commits.Store(0)
	p.decide.Store(&decide)
}

// Commits returns how many COMMITs came since OnCommit.
func (p *Proxy) Commits() int64 { return p.commits.Load() }

func (p *Proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.wait.Go(func() { p.relay(client, server) })
	}
}

// relay copies both ways. A COMMIT is a message of its own: pgx sends it by the
// simple protocol and waits for the answer.
func (p *Proxy) relay(client, server net.Conn) {
	var unanswered atomic.Bool
	both := func() {
		_ = client.Close()
		_ = server.Close()
	}
	p.wait.Go(func() {
		defer both()
		copyChunks(client, server, func(chunk []byte) bool {
			return !unanswered.Load() || !bytes.Contains(chunk, []byte("COMMIT\x00"))
		})
	})
	defer both()
	copyChunks(server, client, func(chunk []byte) bool {
		if !bytes.Contains(chunk, []byte("commit\x00")) {
			return true
		}
		switch (*p.decide.Load())(p.commits.Add(1)) {
		case CommitFails:
			return false
		case CommitUnanswered:
			unanswered.Store(true)
		}
		return true
	})
}

// copyChunks copies from src to dst until either ends or pass refuses a chunk.
func copyChunks(dst io.Writer, src io.Reader, pass func([]byte) bool) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := src.Read(buffer)
		if n > 0 {
			if !pass(buffer[:n]) {
				return
			}
			if _, err := dst.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
