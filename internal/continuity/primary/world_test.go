package primary

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// shop is a primary on a database of its own.
type shop struct {
	*testing.T
	*Primary
	sequence continuity.Sequence
}

type held struct{}

func (held) Check(context.Context, pgx.Tx) error { return nil }

func newShop(t *testing.T, opts Options) *shop {
	t.Helper()
	if opts.Pool == nil {
		opts.Pool = pgtest.New(t)
	}
	if opts.Lease == 0 {
		opts.Lease = time.Hour
	}
	p, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return &shop{T: t, Primary: p}
}

// open has the primary read a hosted fence of this epoch and mode.
func (s *shop) open(epoch continuity.Epoch, mode continuity.Mode) {
	s.Helper()
	now, err := s.Clock(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	if err := s.Adopt(s.Context(), continuity.Fence{Epoch: epoch, Mode: mode}, now, "test"); err != nil {
		s.Fatal(err)
	}
}

func order1(kind, key, payload string) continuity.Command {
	return commandFor("o1", kind, key, payload)
}

// commandFor is a command with a key of its own unless one is given.
func commandFor(id, kind, key, payload string) continuity.Command {
	c := continuity.Command{
		CommandID: uuid.New(), IdempotencyKey: key, CommandType: kind,
		AggregateType: "order", AggregateID: id, Payload: json.RawMessage(payload),
	}
	if key == "" {
		c.IdempotencyKey = c.CommandID.String()
	}
	switch kind {
	case "payment.record":
		c.AggregateType = "payment"
	case "cashflow.record":
		c.AggregateType = "cashflow"
	}
	return c
}

const (
	ofNorth = `{"companyId":"acme","restaurantId":"north","total":12990}`
	paidBy1 = `{"transactionId":"t1","amount":"12990.00","method":"pix"}`
)

// apply applies directly in epoch 1, and fails the test if it is refused.
func (s *shop) apply(c continuity.Command) Outcome {
	s.Helper()
	out, err := s.Apply(s.Context(), c, 1)
	if err != nil {
		s.Fatalf("%s: %v", c.CommandType, err)
	}
	return out
}

// applyInTime is Apply for a write that the test has wait for others: the machine
// may be slow, and the time that a write may take is none of what is tested.
func (s *shop) applyInTime(c continuity.Command, epoch continuity.Epoch) (Outcome, error) {
	return s.arrive(s.Context(), arrival{Command: c, way: direct, epoch: epoch})
}

func (s *shop) claim(c continuity.Command, epoch continuity.Epoch) continuity.Claim {
	s.sequence++
	return continuity.Claim{Command: c, Sequence: s.sequence, Token: continuity.ClaimToken(s.sequence), Epoch: epoch, MaxAttempts: 8}
}

func (s *shop) count(table string) (n int) {
	s.Helper()
	if err := s.pool.QueryRow(s.Context(), `select count(*) from `+pgx.Identifier{table}.Sanitize()).Scan(&n); err != nil {
		s.Fatal(err)
	}
	return n
}

func exec(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func text[T any](s *shop, sql string, args ...any) (v T) {
	s.Helper()
	if err := s.pool.QueryRow(s.Context(), sql, args...).Scan(&v); err != nil {
		s.Fatalf("%s: %v", sql, err)
	}
	return v
}
