package publish

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// beforeQuery calls a hook before the n-th statement that holds a text.
type beforeQuery struct {
	text string
	n    atomic.Int64
	hook func(n int64)
}

func (b *beforeQuery) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, b.text) {
		b.hook(b.n.Add(1))
	}
	return ctx
}

func (b *beforeQuery) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestPausedAtItsVersion has a publisher stop before it draws the version of a
// snapshot, past its lease, while the world goes on and another publishes: a
// version that is drawn late does not show a state that was read early.
func TestPausedAtItsVersion(t *testing.T) {
	t.Parallel()
	for n := int64(1); n <= 5; n++ {
		w := newWorld(t)
		w.day()
		cfg := w.primary.Config()
		cfg.ConnConfig.Tracer = &beforeQuery{text: "primary_snapshot_versions", hook: func(i int64) {
			if i != n {
				return
			}
			w.exec(w.primary, `update leases set expires_at = now() - interval '1 second'`)
			w.apply("order.create", "o3", `{"companyId":"acme","restaurantId":"north"}`)
			w.apply("order.update_status", "o1", `{"status":"refunded"}`)
			w.run(w.publisher(nil))
		}}
		traced, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(traced.Close)
		p := w.publisher(nil)
		p.Pool = traced
		_, _ = p.RunOnce(t.Context())
		w.check()
	}
}
