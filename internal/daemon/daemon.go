// Package daemon is what the long-running commands have in common: options that
// are checked all at once, a start in steps, an HTTP server, and a stop that
// undoes the steps in the reverse order.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
)

// Daemon is started by one goroutine, step by step, and stopped by one.
type Daemon struct {
	cleanups []cleanup
	addr     net.Addr
	failed   chan error
}

// cleanup undoes one step of the start.
type cleanup struct {
	what string
	do   func(ctx context.Context) error
}

// New returns a daemon that has started nothing.
func New() *Daemon {
	return &Daemon{failed: make(chan error, 1)}
}

// OnStop has Stop do something, before what it was told earlier.
func (d *Daemon) OnStop(what string, do func(ctx context.Context) error) {
	d.cleanups = append(d.cleanups, cleanup{what: what, do: do})
}

// Background runs something until Stop. It outlives the context of the start,
// whose end is the reason to stop in order.
func (d *Daemon) Background(ctx context.Context, what string, run func(context.Context)) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	d.OnStop(what, func(ctx context.Context) error {
		cancel()
		return Within(ctx, running.Wait)
	})
}

// Serve listens and has the server answer until Stop, which lets requests that
// are under way have their answers.
func (d *Daemon) Serve(ctx context.Context, listenAddr string, server *http.Server) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listenAddr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	d.addr = listener.Addr()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			d.failed <- fmt.Errorf("serve: %w", err)
		}
	}()
	d.OnStop("http server", func(ctx context.Context) error {
		err := server.Shutdown(ctx)
		if err != nil {
			err = errors.Join(err, server.Close())
		}
		<-ended
		return err
	})
	return nil
}

// Addr is where the HTTP server listens, once it is started.
func (d *Daemon) Addr() string { return d.addr.String() }

// Failed delivers the error of a server that ended by itself.
func (d *Daemon) Failed() <-chan error { return d.failed }

// Stop undoes the start in the reverse order. When ctx ends before that, what is
// left is cut off, and Stop says so.
func (d *Daemon) Stop(ctx context.Context) error {
	var problems []error
	for len(d.cleanups) > 0 {
		last := d.cleanups[len(d.cleanups)-1]
		d.cleanups = d.cleanups[:len(d.cleanups)-1]
		if err := last.do(ctx); err != nil {
			problems = append(problems, fmt.Errorf("stop %s: %w", last.what, err))
		}
	}
	return errors.Join(problems...)
}

// Within runs fn, and gives up on it when ctx ends.
func Within(ctx context.Context, fn func()) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
