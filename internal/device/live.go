package device

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// clientStall bounds the silence of a device that does not read its answer.
const clientStall = time.Minute

// live are the requests that are under way.
type live struct {
	mu       sync.Mutex
	requests map[*liveRequest]struct{}
}

type liveRequest struct {
	pass   passage
	cancel context.CancelCauseFunc
}

func newLive() *live { return &live{requests: make(map[*liveRequest]struct{})} }

func (l *live) enter(pass passage, cancel context.CancelCauseFunc) (leave func()) {
	r := &liveRequest{pass: pass, cancel: cancel}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests[r] = struct{}{}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.requests, r)
	}
}

func (l *live) all() []*liveRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]*liveRequest, 0, len(l.requests))
	for r := range l.requests {
		all = append(all, r)
	}
	return all
}

// Watch ends, until ctx does, what the view does not admit any more: CouchDB
// itself goes on sending a feed to a device that it would refuse now. A write of
// a device whose day is sealed meanwhile is left to its end, which CouchDB decides
// and the settle time covers; that of a device whose token was revoked is not.
func (p *Proxy) Watch(ctx context.Context) {
	for {
		changed := p.View.Changed()
		for _, r := range p.live.all() {
			p.expel(r.pass, r.cancel)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// Shut ends the feeds, which would otherwise go on for as long as their tokens,
// and refuses what comes from now on. Other requests come to their end.
func (p *Proxy) Shut() {
	p.shut.Store(true)
	for _, r := range p.live.all() {
		p.expel(r.pass, r.cancel)
	}
}

// expel ends a request that would not be let through now.
func (p *Proxy) expel(pass passage, cancel context.CancelCauseFunc) {
	where, refused := p.View.admit(pass.grant, pass.route.suffix, p.Env)
	switch {
	case pass.route.feed && p.shut.Load():
		cancel(errNotAdmitted)
	case refused == nil && (pass.route.delivers || !where.deliverOnly) && where.name == pass.target.name:
	case !pass.route.writes, refused != nil && refused.status == http.StatusUnauthorized:
		cancel(errNotAdmitted)
	}
}

// recorder remembers the status, and renews the time that the device has to read
// what is written.
type recorder struct {
	http.ResponseWriter
	status int
	// written is told of each piece of the answer.
	written func()
}

// Unwrap lets a ResponseController find what it controls.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// WriteHeader sends the status.
func (r *recorder) WriteHeader(status int) {
	if status >= http.StatusOK {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	if r.written != nil {
		r.written()
	}
	return r.ResponseWriter.Write(b)
}
