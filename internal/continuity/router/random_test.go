package router_test

import (
	"context"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/breaker"
	"github.com/rollingd/rollingd/internal/continuity/router"
)

// TestEveryAcceptedKeyIsOneEffect plays any order of outages, lost answers,
// flips of the fence and retries, by two edges of which either may be behind.
func TestEveryAcceptedKeyIsOneEffect(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &world{hosted: newHosted(), primary: newPrimary()}
		edges := make([]*router.Router, 2)
		for i := range edges {
			edges[i] = router.New(router.Options{
				Primary:   w.primary,
				Queue:     w.hosted,
				Snapshots: w.hosted,
				Fence:     w.hosted,
				Instance:  fmt.Sprint("edge-", i),
				// The window has passed at the next look.
				Breaker: breaker.Options{OpenWindow: 1, Jitter: -1},
			})
			defer edges[i].Close()
		}
		var (
			accepted = make(map[string]bool)
			epoch    continuity.Epoch
			up       = true
		)
		w.hosted.heartbeat = func() bool { return up }
		write := func(t *rapid.T, key string) {
			edge := edges[rapid.IntRange(0, len(edges)-1).Draw(t, "edge")]
			direct := w.hosted.now().Mode == continuity.Direct
			written, err := edge.Write(context.Background(), command(key, essential))
			switch {
			case err == nil:
				accepted[key] = true
			case codeOf(err) == "":
				t.Fatalf("a refusal without a code: %v", err)
			}
			if err == nil && written.Way == router.ByPrimary && !written.Deduplicated && !direct {
				t.Fatalf("%s was written directly while the queue was open", key)
			}
		}
		next := 0
		t.Repeat(map[string]func(*rapid.T){
			"new command": func(t *rapid.T) {
				next++
				write(t, fmt.Sprint("k-", next))
			},
			"same command": func(t *rapid.T) {
				if next == 0 {
					t.Skip("none yet")
				}
				write(t, fmt.Sprint("k-", rapid.IntRange(1, next).Draw(t, "key")))
			},
			"primary": func(t *rapid.T) {
				next := rapid.SampledFrom([]string{"up", "gone", "loses its answers"}).Draw(t, "primary")
				if up = next == "up"; up {
					// It is closed until it has read the fence.
					fence := w.hosted.now()
					w.primary.set(fence.Epoch, fence.Mode)
				}
				w.primary.becomes(map[string]func(context.Context, string) error{"gone": gone}[next])
				w.primary.loses(map[string]func(context.Context) error{
					"loses its answers": func(context.Context) error { return context.DeadlineExceeded },
				}[next])
			},
			"queue loses a reply": func(*rapid.T) {
				w.hosted.mu.Lock()
				defer w.hosted.mu.Unlock()
				w.hosted.loseReplies = 1
			},
			"conditions of the fence": func(t *rapid.T) {
				w.hosted.mu.Lock()
				defer w.hosted.mu.Unlock()
				w.hosted.mayOpen = rapid.Bool().Draw(t, "may open")
				w.hosted.mayBreak = rapid.Bool().Draw(t, "may break")
			},
			"seal": func(*rapid.T) {
				if fence := w.hosted.now(); fence.Mode == continuity.Queue {
					w.hosted.set(fence.Epoch, continuity.Sealed)
				}
			},
			"drain": func(*rapid.T) { w.drain(nil) },
			"": func(t *rapid.T) {
				if now := w.hosted.now().Epoch; now < epoch {
					t.Fatalf("the epoch fell from %d to %d", epoch, now)
				} else {
					epoch = now
				}
				for key, n := range w.primary.effects {
					if n > 1 {
						t.Fatalf("%s had %d effects", key, n)
					}
				}
				for key := range accepted {
					row, queued := w.hosted.commands[key]
					if w.primary.effects[key] == 0 && (!queued || row.receipt.Status != contracts.CommandPending) {
						t.Fatalf("%s was accepted and is lost", key)
					}
				}
			},
		})
	})
}
