package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"syscall"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// link is the network between two parts. It keeps its address for good, while
// what it leads to may move.
type link struct {
	proxy *toxiproxy.Proxy
	// upstream is where it leads to.
	upstream string
}

// What happens to the bytes that a link is given.
const (
	// requests and replies swallow the bytes of one direction: whoever waits for
	// them waits until its own time is up.
	requests = "upstream"
	replies  = "downstream"
)

// newLink opens a link to a host and port of loopback.
func newLink(name, upstream string) (*link, error) {
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	l := &link{proxy: toxiproxy.NewProxy(server, name, "127.0.0.1:0", upstream), upstream: upstream}
	if err := l.proxy.Start(); err != nil {
		return nil, fmt.Errorf("open the link %s: %w", name, err)
	}
	return l, nil
}

// addr is the host and port that it listens on.
func (l *link) addr() string { return l.proxy.Listen }

// close cuts it for good.
func (l *link) close() { l.proxy.Stop() }

// cut ends all connections and refuses new ones.
func (l *link) cut() { l.proxy.Stop() }

// swallow lets connections stand, and loses what goes into a direction.
func (l *link) swallow(directions ...string) error {
	for _, direction := range directions {
		toxic := fmt.Sprintf(`{"name":%q,"type":"timeout","stream":%q,"attributes":{"timeout":0}}`, direction, direction)
		if _, err := l.proxy.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
			return fmt.Errorf("swallow %s of %s: %w", direction, l.proxy.Name, err)
		}
	}
	return nil
}

// heal takes all of it back. A connection that has lost bytes is ended, not
// continued.
func (l *link) heal(ctx context.Context) error {
	l.proxy.Stop()
	l.proxy.Toxics.ResetToxics(ctx)
	// The port was free for a moment, and a client of something else may have it
	// as the near end of a connection.
	return until(ctx, "the port of "+l.proxy.Name+" is free again", func(context.Context) (bool, error) {
		err := l.proxy.Update(&toxiproxy.Proxy{Listen: l.proxy.Listen, Upstream: l.upstream, Enabled: true})
		if isErrno(err, syscall.EADDRINUSE) {
			return false, nil
		}
		return err == nil, err
	})
}

// move has it lead elsewhere, and heals it.
func (l *link) move(ctx context.Context, upstream string) error {
	l.upstream = upstream
	return l.heal(ctx)
}

// freeAddr is a host and port that nobody listens on. A process that is started
// again keeps it.
func freeAddr(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
