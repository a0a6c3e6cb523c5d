package socket_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

// BenchmarkIdle measures what an idle device costs: bytes of heap and stacks, and
// goroutines. The device's own end of the connection, some 500 bytes, is in it.
func BenchmarkIdle(b *testing.B) {
	const devices = 1000
	pool := pgtest.New(b)
	tokens := newGate()
	server := start(b, pool, tokens, time.Second)
	company := func(i int) string { return "company-" + string(rune('a'+i%20)) }
	for b.Loop() {
		before, routines := inUse(), runtime.NumGoroutine()
		wires := make([]*wire, devices)
		for i := range wires {
			wires[i] = dial(b, server.url, tokens.issue(company(i), "till", time.Hour))
		}
		for _, w := range wires {
			w.ready()
		}
		b.ReportMetric(float64(inUse()-before)/devices, "B/device")
		b.ReportMetric(float64(runtime.NumGoroutine()-routines)/devices, "goroutines/device")
		for _, w := range wires {
			w.conn.Close()
		}
	}
}

// inUse is the memory that a collection leaves.
func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
