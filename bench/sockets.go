package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	"golang.org/x/sync/errgroup"

	"github.com/rollingd/rollingd/internal/couch"
)

// dialers is how many devices connect at a time.
const dialers = 16

// sockets measures what idle devices cost the server, and how long a change of a
// flag takes to reach all of them.
func (b *bench) sockets(ctx context.Context) (err error) {
	w, err := b.stores.newWorld(ctx, couch.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close(ctx), b.stores.removeEnv(ctx, w.env)) }()
	s, err := b.startServer(ctx, w)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()

	idle := memoryOf(s.cmd.Process.Pid).now
	devices, err := s.connect(ctx, b.sizes.devices)
	if err != nil {
		return err
	}
	defer func() {
		for _, d := range devices {
			_ = d.conn.Close() // The server is stopped next.
		}
	}()
	each := float64(memoryOf(s.cmd.Process.Pid).now-idle) / float64(len(devices)) / 1024

	var last, answered runs
	for round := range b.sizes.rounds {
		drop := round%2 == 0
		start := time.Now()
		body := fmt.Sprintf(`{"rollingDb":true,"rollingDbDrop":%t}`, drop)
		var group errgroup.Group
		for _, d := range devices {
			group.Go(func() error { return d.until(`42["sdk:updates"`, fmt.Sprintf(`"rollingDbDropEnabled":%t`, drop)) })
		}
		if err := s.call(ctx, http.MethodPut, "flags/"+shop.CompanyID, body, nil); err != nil {
			return err
		}
		answered = append(answered, took{wall: time.Since(start)})
		if err := group.Wait(); err != nil {
			return err
		}
		last = append(last, took{wall: time.Since(start)})
	}
	t := b.results.section(fmt.Sprintf("%d devices on the socket (medians of %d rounds)", len(devices), b.sizes.rounds), "", "", "goal", "")
	t.row("resident memory of the server for each idle device", fmt.Sprintf("%.0f KB", each), "", "")
	want, verdict := atMost(1, " s").cells(last.median().Seconds())
	t.row("from the admin PUT of a flag to the last device", millis(last.median()), want, verdict)
	t.row("of which the PUT itself", millis(answered.median()), "", "")
	return nil
}

// socketDevice speaks Socket.IO over a websocket by hand.
type socketDevice struct{ conn *websocket.Conn }

func (s *server) connect(ctx context.Context, n int) ([]*socketDevice, error) {
	devices := make([]*socketDevice, n)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(dialers)
	for i := range devices {
		group.Go(func() error {
			token, err := s.token(ctx, fmt.Sprintf("till-%d", i))
			if err != nil {
				return err
			}
			devices[i], err = s.dial(ctx, token)
			return err
		})
	}
	return devices, group.Wait()
}

func (s *server) dial(ctx context.Context, token string) (*socketDevice, error) {
	dialer := websocket.Dialer{ReadBufferSize: 1 << 10, WriteBufferSize: 1 << 10}
	address := "ws" + strings.TrimPrefix(s.url, "http") + "/socket.io/?EIO=4&transport=websocket"
	conn, res, err := dialer.DialContext(ctx, address, nil)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	d := &socketDevice{conn: conn}
	auth, err := json.Marshal(map[string]string{"token": token})
	if err != nil {
		return nil, err
	}
	if err := conn.WriteMessage(websocket.TextMessage, append([]byte("40"), auth...)); err != nil {
		return nil, err
	}
	return d, d.until(`42["sdk:init:ready"`, "")
}

// until reads up to an event that holds a text, and answers the pings before it.
func (d *socketDevice) until(event, holds string) error {
	for {
		_, text, err := d.conn.ReadMessage()
		switch {
		case err != nil:
			return err
		case string(text) == "2":
			if err := d.conn.WriteMessage(websocket.TextMessage, []byte("3")); err != nil {
				return err
			}
		case strings.HasPrefix(string(text), event) && strings.Contains(string(text), holds):
			return nil
		}
	}
}
