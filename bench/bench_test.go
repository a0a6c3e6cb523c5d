package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// TestMain lets this binary be the processes that the measurements start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == archiverArg || os.Args[1] == storeArg) {
		if err := execute(context.Background(), os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestMeasurements runs every measurement on a handful of documents: what they
// find means nothing, but they find it, and check that nothing is missing.
func TestMeasurements(t *testing.T) {
	o, err := parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	o.embedded = true
	o.sizes = sizes{rounds: 2, archiveDocs: 300, memoryDocs: 2 * docsAtOnce, restaurants: 3, quietDays: 6, quietRestaurant: 2,
		pushes: 2, puts: 3, feedDocs: 50, devices: 5,
		queueJobs: 20, queuePaced: 3, backlog: 5, flood: 100 * time.Millisecond, breakerTime: "100x"}
	var out strings.Builder
	if err := o.measure(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Archiving 300 documents",
		"COPY of the same rows",
		"while 4000 documents are archived",
		"Rotating 3 restaurants",
		"A quiet night over 6 archived days",
		"Tills through the server and directly",
		"5 devices on the socket",
		"20 commands through the queue",
		"River, InsertMany",
		"From enqueue to ack",
		"The cutover under 1,000 commands a minute",
		"A call through the breaker",
		"the embedded store",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the results lack %q:\n%s", want, out.String())
		}
	}
}

func TestMedian(t *testing.T) {
	of := func(seconds ...int) runs {
		var r runs
		for _, s := range seconds {
			r = append(r, took{wall: time.Duration(s) * time.Second})
		}
		return r
	}
	for _, tt := range []struct {
		rounds runs
		want   time.Duration
	}{
		{of(3), 3 * time.Second},
		{of(9, 1, 2), 2 * time.Second},
		{of(4, 1, 2, 9), 3 * time.Second},
	} {
		if got := tt.rounds.median(); got != tt.want {
			t.Errorf("median of %v is %s, want %s", tt.rounds, got, tt.want)
		}
	}
}

func TestGoal(t *testing.T) {
	for _, tt := range []struct {
		goal          goal
		figure        float64
		want, verdict string
	}{
		{goal{}, 5, "", ""},
		{atMost(1.2, "x"), 1.2, "at most 1.2x", "met"},
		{atMost(1.2, "x"), 1.21, "at most 1.2x", "missed"},
		{atLeast(7, "x"), 7, "at least 7x", "met"},
		{atLeast(7, "x"), 6.9, "at least 7x", "missed"},
	} {
		want, verdict := tt.goal.cells(tt.figure)
		if want != tt.want || verdict != tt.verdict {
			t.Errorf("%+v of %g: %q %q, want %q %q", tt.goal, tt.figure, want, verdict, tt.want, tt.verdict)
		}
	}
}

func TestParseStat(t *testing.T) {
	// A program's name may hold spaces and parentheses.
	line := "42 (a (b) c) S 7 1 2 0 -1 4194304 1 2 3 4 100 20 3 1 20 0 1 0 5 6 7"
	p, ok := parseStat([]byte(line))
	if !ok || p.parent != 7 || p.program != "a (b) c" || p.cpu != 1240*time.Millisecond {
		t.Errorf("got %+v, %t", p, ok)
	}
	if _, ok := parseStat([]byte("42 (cut")); ok {
		t.Error("a line that was cut is no process")
	}
}

func TestOrders(t *testing.T) {
	seen := make(map[string]bool)
	for i := range 1000 {
		order := string(appendOrder(nil, i))
		if len(order) < 800 || len(order) > 1300 {
			t.Fatalf("an order has %d bytes", len(order))
		}
		if seen[order] {
			t.Fatalf("order %d is there already", i)
		}
		seen[order] = true
	}
}
