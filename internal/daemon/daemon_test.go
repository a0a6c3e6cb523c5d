package daemon_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/daemon"
)

// TestStop undoes the steps in the reverse order, and goes on behind one that
// fails.
func TestStop(t *testing.T) {
	d := daemon.New()
	var order []string
	for _, what := range []string{"first", "second", "third"} {
		d.OnStop(what, func(context.Context) error {
			order = append(order, what)
			if what == "second" {
				return errors.New("out of luck")
			}
			return nil
		})
	}
	if err := d.Stop(t.Context()); err == nil || err.Error() != "stop second: out of luck" {
		t.Errorf("the error is %v", err)
	}
	if !slices.Equal(order, []string{"third", "second", "first"}) {
		t.Errorf("the order is %v", order)
	}
	if err := d.Stop(t.Context()); err != nil || len(order) != 3 {
		t.Errorf("a second stop: %v, %v", err, order)
	}
}

// TestServe: a request that is under way when the daemon is stopped has its
// answer, and the context of the start ends nothing.
func TestServe(t *testing.T) {
	d := daemon.New()
	starting, started := context.WithCancel(t.Context())
	reached, answer := make(chan struct{}), make(chan struct{})
	err := d.Serve(starting, "127.0.0.1:0", &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(reached)
		<-answer
		_, _ = io.WriteString(w, "whole")
	})})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	d.Background(starting, "work", func(ctx context.Context) {
		<-ctx.Done()
		close(ended)
	})
	started()
	body := make(chan string)
	go func() {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+d.Addr(), nil)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			body <- err.Error()
			return
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		body <- string(text)
	}()
	<-reached
	select {
	case <-ended:
		t.Error("the end of the start has ended the work")
	default:
	}
	stopped := make(chan error)
	go func() { stopped <- d.Stop(t.Context()) }()
	<-ended // The work comes first.
	close(answer)
	if got := <-body; got != "whole" {
		t.Errorf("the answer is %q", got)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// TestStopGivesUp on what does not end in time.
func TestStopGivesUp(t *testing.T) {
	d := daemon.New()
	hangs := make(chan struct{})
	defer close(hangs)
	d.Background(t.Context(), "work", func(context.Context) { <-hangs })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := d.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), "stop work: ") {
		t.Errorf("the error is %v", err)
	}
}
