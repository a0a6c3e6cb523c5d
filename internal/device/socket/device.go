package socket

import (
	"context"
	"errors"
	"sync"
	"time"

	socketio "github.com/zishang520/socket.io/servers/socket/v3"
)

const (
	// leastLeft keeps a clock that runs back from having a token looked at all
	// the time.
	leastLeft = 100 * time.Millisecond
	// farewell is how long a device may take to close a connection after it was
	// told to.
	farewell = 2 * time.Second
)

// device is one connection of a device.
type device struct {
	socket *socketio.Socket
	// who names the device; its times are those of the first token.
	who Pass
	// ready says that the device knows the state of its room. The rooms' lock
	// guards it.
	ready bool

	// mu guards what follows, and with it whether the device is in its room. It
	// is never held while something is sent.
	mu   sync.Mutex
	pass Pass
	// timer looks at the token when it expires, and disconnects at the end of
	// the grace.
	timer *time.Timer
	// lapsed: the token has expired; the device is in no room.
	lapsed bool
	gone   bool
}

// admit is asked before a device joins.
func (s *Server) admit(socket *socketio.Socket, next func(*socketio.ExtendedError)) {
	token, _ := socket.Handshake().Auth["token"].(string)
	pass, err := s.judge(token)
	if err != nil {
		next(socketio.NewExtendedError("unauthorized", map[string]any{"code": s.refuse(err)}))
		return
	}
	socket.SetData(pass)
	next(nil)
}

func (s *Server) judge(token string) (Pass, error) {
	if token == "" {
		return Pass{}, ErrRefused
	}
	ctx, cancel := context.WithTimeout(context.Background(), admitTimeout)
	defer cancel()
	return s.Tokens.Admit(ctx, token)
}

// refuse returns the code of a refusal, and counts it.
func (s *Server) refuse(err error) string {
	code := "unavailable"
	switch {
	case errors.Is(err, ErrExpired):
		code = "expired"
	case errors.Is(err, ErrRefused):
		code = "invalid"
	}
	s.metrics.refused.WithLabelValues(code).Inc()
	return code
}

// connected takes in a device that was admitted.
func (s *Server) connected(socket *socketio.Socket) {
	pass, _ := socket.Data().(Pass)
	d := &device{socket: socket, who: pass, pass: pass}
	s.metrics.connected.Inc()
	s.rooms.enter(d)
	_ = socket.On(eventAuth, func(args ...any) { s.reauthenticate(d, args) })
	_ = socket.On("disconnect", func(...any) { s.disconnected(d) })
	if !socket.Connected() {
		s.disconnected(d)
	}
	// A revocation that came before the device was in its room is found here.
	s.recheck(d)
}

// disconnected lets go of a device. It is called once or twice.
func (s *Server) disconnected(d *device) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone {
		return
	}
	d.gone = true
	d.stopTimer()
	s.rooms.leave(d)
	s.metrics.connected.Dec()
}

// startTimer replaces what the device waits for.
func (d *device) startTimer(after time.Duration, fn func()) {
	d.stopTimer()
	d.timer = time.AfterFunc(after, fn)
}

func (d *device) stopTimer() {
	if d.timer != nil {
		d.timer.Stop()
	}
}

// recheck looks at a device's token again: it may have expired or been revoked.
func (s *Server) recheck(d *device) {
	d.mu.Lock()
	if d.gone || d.lapsed {
		d.mu.Unlock()
		return
	}
	left, err := s.Tokens.Left(d.pass)
	switch {
	case err == nil:
		d.startTimer(max(left, leastLeft), func() { s.recheck(d) })
	case errors.Is(err, ErrExpired):
		d.lapsed = true
		d.startTimer(s.Grace, func() { s.expel(d) })
	default:
		d.stopTimer()
	}
	if err != nil {
		s.rooms.leave(d)
	}
	d.mu.Unlock()
	if err == nil {
		return
	}
	if errors.Is(err, ErrExpired) {
		s.send(d, eventExpired, map[string]any{"graceSeconds": s.Grace.Seconds()})
		return
	}
	s.refuse(err)
	s.send(d, eventRevoked)
	s.disconnect(d)
}

// expel disconnects a device that has sent no fresh token in time.
func (s *Server) expel(d *device) {
	d.mu.Lock()
	lapsed := d.lapsed && !d.gone
	d.mu.Unlock()
	if lapsed {
		s.disconnect(d)
	}
}

// disconnect sends the device away. The client closes the connection when it
// reads that, after what was sent before; one that does not is cut off.
func (s *Server) disconnect(d *device) {
	conn := d.socket.Conn()
	d.socket.Disconnect(false)
	time.AfterFunc(farewell, func() { conn.Close(true) })
}

// reauthenticate takes a fresh token. One that does not hold, or is another
// device's, changes nothing.
func (s *Server) reauthenticate(d *device, args []any) {
	answer := func(map[string]any) {}
	if n := len(args); n > 0 {
		if ack, ok := args[n-1].(socketio.Ack); ok {
			answer = func(a map[string]any) { ack([]any{a}, nil) }
		}
	}
	var token string
	if len(args) > 0 {
		fields, _ := args[0].(map[string]any)
		token, _ = fields["token"].(string)
	}
	pass, err := s.judge(token)
	if err == nil && !pass.same(d.who) {
		err = ErrRefused
	}
	if err != nil {
		answer(map[string]any{"ok": false, "code": s.refuse(err)})
		return
	}
	d.mu.Lock()
	if d.gone {
		d.mu.Unlock()
		return
	}
	if d.lapsed {
		s.rooms.enter(d)
	}
	d.pass, d.lapsed = pass, false
	d.mu.Unlock()
	answer(map[string]any{"ok": true})
	s.recheck(d)
}
