package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
)

// breakerPackage has the benchmarks, which are those of its own tests.
const breakerPackage = "github.com/rollingd/rollingd/internal/continuity/breaker"

// ofBreaker is a line of the benchmarks: whose, how many goroutines, which state.
type ofBreaker struct {
	whose, goroutines, state string
}

// costs of a call through a breaker.
type costs struct {
	ns     []float64
	allocs int
}

// breaker compares a call through the breaker with one through gobreaker.
func (b *bench) breaker(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^BenchmarkBreaker$",
		"-benchtime", b.sizes.breakerTime, "-count", strconv.Itoa(b.sizes.rounds), breakerPackage)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("go test: %w\n%s", err, out)
	}
	all := parseBreaker(out)
	s := b.results.section(fmt.Sprintf("A call through the breaker (medians of %d runs)", b.sizes.rounds),
		"", "rollingd", "allocations", "gobreaker", "allocations", "gobreaker's time", "goal", "")
	for _, goroutines := range []string{"1", "16"} {
		for _, state := range []string{"closed", "open"} {
			ours, theirs := all[ofBreaker{"rollingd", goroutines, state}], all[ofBreaker{"gobreaker", goroutines, state}]
			if ours == nil || theirs == nil {
				return fmt.Errorf("go test measures nothing for %s with %s goroutines:\n%s", state, goroutines, out)
			}
			ratio := ours.median() / theirs.median()
			want, verdict := atMost(1, "x").cells(ratio)
			s.row(fmt.Sprintf("%s, goroutines: %s", state, goroutines),
				fmt.Sprintf("%.1f ns", ours.median()), strconv.Itoa(ours.allocs),
				fmt.Sprintf("%.1f ns", theirs.median()), strconv.Itoa(theirs.allocs), times(ratio), want, verdict)
		}
	}
	return nil
}

func (c *costs) median() float64 {
	sorted := slices.Sorted(slices.Values(c.ns))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

var breakerLine = regexp.MustCompile(`(?m)^BenchmarkBreaker/(\w+)/(\d+)/(\w+?)(?:-\d+)?\s+\d+\s+([\d.]+) ns/op.*?\s(\d+) allocs/op`)

func parseBreaker(out []byte) map[ofBreaker]*costs {
	all := make(map[ofBreaker]*costs)
	for _, m := range breakerLine.FindAllSubmatch(bytes.TrimSpace(out), -1) {
		key := ofBreaker{string(m[1]), string(m[2]), string(m[3])}
		if all[key] == nil {
			all[key] = &costs{}
		}
		ns, _ := strconv.ParseFloat(string(m[4]), 64) // The expression matches numbers alone.
		all[key].ns = append(all[key].ns, ns)
		all[key].allocs, _ = strconv.Atoi(string(m[5]))
	}
	return all
}
