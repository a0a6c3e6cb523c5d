package breaker_test

import (
	"errors"
	"runtime"
	"testing"

	"github.com/sony/gobreaker/v2"

	"github.com/rollingd/rollingd/internal/continuity/breaker"
)

var errPrimary = errors.New("the primary does not answer")

// call stands for a call of the primary that takes no time.
func call(ok bool) error {
	if ok {
		return nil
	}
	return errPrimary
}

// execute is how a caller uses the breaker, in the form of gobreaker's Execute.
func execute(b *breaker.Breaker, fn func() error) error {
	p, ok := b.Acquire()
	if !ok {
		return errPrimary
	}
	defer p.Ignore()
	err := fn()
	if err != nil {
		p.Failure()
		return err
	}
	p.Success()
	return nil
}

// BenchmarkBreaker compares with sony/gobreaker: calls that go well, and calls
// that an open breaker refuses.
func BenchmarkBreaker(b *testing.B) {
	for _, goroutines := range []int{1, 16} {
		for _, state := range []string{"closed", "open"} {
			name := map[int]string{1: "1", 16: "16"}[goroutines] + "/" + state
			b.Run("rollingd/"+name, func(b *testing.B) {
				ours := breaker.New(breaker.Options{})
				for state == "open" && ours.State() != breaker.Degraded {
					_ = execute(ours, func() error { return call(false) })
				}
				parallel(b, goroutines, func() { _ = execute(ours, func() error { return call(true) }) })
			})
			b.Run("gobreaker/"+name, func(b *testing.B) {
				theirs := gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{})
				fn := func(ok bool) { _, _ = theirs.Execute(func() (struct{}, error) { return struct{}{}, call(ok) }) }
				for state == "open" && theirs.State() != gobreaker.StateOpen {
					fn(false)
				}
				parallel(b, goroutines, func() { fn(true) })
			})
		}
	}
}

func parallel(b *testing.B, goroutines int, fn func()) {
	b.ReportAllocs()
	if goroutines == 1 {
		for b.Loop() {
			fn()
		}
		return
	}
	b.SetParallelism(max(1, goroutines/runtime.GOMAXPROCS(0)))
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			fn()
		}
	})
}
