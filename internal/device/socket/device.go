package socket

import (
	"context"
	"errors"
	"sync"
	"time"

	socketio "github.com/zishang520/socket.io/servers/socket/v3"
)

const (
	// judgeAgain is the pause before another look at a token that could not be
	// judged; until then it counts as it did.
	judgeAgain = 5 * time.Second
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
	who    Pass
	// ready says that the device knows the state of its room. The rooms' lock
	// guards it.
	ready bool

	// mu guards what follows. It is never held while something is sent.
	mu    sync.Mutex
	token string
	// timer looks at the token when it expires, and disconnects at the end of
	// the grace.
	timer *time.Timer
	// lapsed: the token has expired; the device is in no room.
	lapsed bool
	gone   bool
}

// admission is what the handshake leaves for the connection.
type admission struct {
	pass        Pass
	token       string
	revocations int64
}

// admit is asked before a device joins.
func (s *Server) admit(socket *socketio.Socket, next func(*socketio.ExtendedError)) {
	a := admission{revocations: s.revocations.Load()}
	var err error
	a.token, _ = socket.Handshake().Auth["token"].(string)
	a.pass, err = s.judge(a.token)
	if err != nil {
		next(socketio.NewExtendedError("unauthorized", map[string]any{"code": s.refuse(err)}))
		return
	}
	socket.SetData(a)
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
	a, _ := socket.Data().(admission)
	socket.SetData(nil)
	d := &device{socket: socket, who: a.pass, token: a.token}
	s.metrics.connected.Inc()
	s.expireAfter(d, a.pass.Left)
	s.rooms.enter(d)
	_ = socket.On(eventAuth, func(args ...any) { s.reauthenticate(d, args) })
	_ = socket.On("disconnect", func(...any) { s.disconnected(d) })
	if !socket.Connected() {
		s.disconnected(d)
	}
	if s.revocations.Load() != a.revocations {
		s.recheck(d)
	}
}

// disconnected lets go of a device. It is called once or twice.
func (s *Server) disconnected(d *device) {
	d.mu.Lock()
	again := d.gone
	d.gone = true
	d.timer.Stop()
	d.mu.Unlock()
	if !again {
		s.rooms.leave(d)
		s.metrics.connected.Dec()
	}
}

// expireAfter has the token looked at when it expires.
func (s *Server) expireAfter(d *device, left time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.expireAfterLocked(d, left)
}

func (s *Server) expireAfterLocked(d *device, left time.Duration) {
	if d.timer != nil {
		d.timer.Stop()
	}
	d.timer = time.AfterFunc(max(left, leastLeft), func() { s.recheck(d) })
}

// recheck looks at a device's token again: it may have expired or been revoked.
func (s *Server) recheck(d *device) {
	d.mu.Lock()
	token, over := d.token, d.gone || d.lapsed
	d.mu.Unlock()
	if over || s.closed.Load() {
		return
	}
	pass, err := s.judge(token)
	d.mu.Lock()
	if d.gone || d.lapsed || d.token != token {
		d.mu.Unlock()
		return
	}
	var then func()
	switch {
	case err == nil:
		s.expireAfterLocked(d, pass.Left)
	case errors.Is(err, ErrExpired):
		d.lapsed = true
		d.timer.Stop()
		d.timer = time.AfterFunc(s.Grace, func() { s.expel(d) })
		then = func() {
			s.rooms.leave(d)
			s.send(d, eventExpired, map[string]any{"graceSeconds": s.Grace.Seconds()})
		}
	case errors.Is(err, ErrRefused):
		then = func() {
			s.refuse(err)
			s.rooms.leave(d)
			s.send(d, eventRevoked)
			s.disconnect(d)
		}
	default:
		s.expireAfterLocked(d, judgeAgain)
	}
	d.mu.Unlock()
	if then != nil {
		then()
	}
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
	revocations := s.revocations.Load()
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
	returned := d.lapsed
	d.token, d.lapsed = token, false
	s.expireAfterLocked(d, pass.Left)
	d.mu.Unlock()
	answer(map[string]any{"ok": true})
	if returned {
		s.rooms.enter(d)
		if !d.socket.Connected() {
			s.rooms.leave(d)
		}
	}
	if s.revocations.Load() != revocations {
		s.recheck(d)
	}
}
