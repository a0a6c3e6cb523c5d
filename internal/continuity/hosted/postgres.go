package hosted

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Postgres is the Transport over a connection to Postgres, direct or through a pooler in transaction mode. It uses neither
// prepared statements nor a session's state.
type Postgres struct {
	pool *pgxpool.Pool
}

// NewPostgres returns the transport over the pool.
func NewPostgres(pool *pgxpool.Pool) *Postgres {
	return &Postgres{pool: pool}
}

// Call sends the time limit and the call in one message group, which is one transaction and one round trip. The parameters
// have no types: the function's signature gives them, as it does for PostgREST. The limit is set apart because that of the
// function itself begins to count with the next statement.
func (p *Postgres) Call(ctx context.Context, function string, args map[string]any, into any) error {
	args, err := checked(function, args)
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(args))
	values := make([][]byte, len(names))
	list := make([]string, len(names))
	for i, name := range names {
		value, err := parameter(args[name])
		if err != nil {
			return fmt.Errorf("%s: %s: %w", function, name, err)
		}
		values[i] = value
		list[i] = pgx.Identifier{name}.Sanitize() + " => $" + strconv.Itoa(i+1)
	}
	batch := &pgconn.Batch{}
	batch.ExecParams(`select set_config('statement_timeout', $1, true)`,
		[][]byte{strconv.AppendInt(nil, statementTimeout.Milliseconds(), 10)}, nil, nil, nil)
	batch.ExecParams(`select `+pgx.Identifier{"public", function}.Sanitize()+`(`+strings.Join(list, ", ")+`)`,
		values, nil, nil, nil)

	connect, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := p.pool.Acquire(connect)
	if err != nil {
		return unsent(function, err)
	}
	defer conn.Release()

	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	results, err := conn.Conn().PgConn().ExecBatch(call, batch).ReadAll()
	if err == nil {
		// The error of a single statement stands in its result alone.
		for _, result := range results {
			err = errors.Join(err, result.Err)
		}
	}
	if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) {
		return refusal(function, refused.Code, refused.Detail)
	}
	if err != nil && pgconn.SafeToRetry(err) {
		return unsent(function, err)
	}
	if err != nil {
		return unanswered(call, function, err)
	}
	if into == nil {
		return nil
	}
	if len(results) != 2 || len(results[1].Rows) != 1 || len(results[1].Rows[0]) != 1 {
		return unanswered(call, function, errors.New("the answer is not one value"))
	}
	return decode(call, function, results[1].Rows[0][0], into)
}

// decode reads a result. One that cannot be read belongs to a call that was committed all the same.
func decode(ctx context.Context, function string, text []byte, into any) error {
	if text == nil {
		text = []byte("null")
	}
	if err := json.Unmarshal(text, into); err != nil {
		return unanswered(ctx, function, fmt.Errorf("read the answer: %w", err))
	}
	return nil
}

// parameter is a value in the text form that Postgres reads, nil for null.
func parameter(value any) ([]byte, error) {
	switch v := value.(type) {
	case nil:
		return nil, nil
	case string:
		return []byte(v), nil
	case json.RawMessage:
		return v, nil
	case uuid.UUID:
		return []byte(v.String()), nil
	case time.Time:
		return []byte(v.UTC().Format(time.RFC3339Nano)), nil
	}
	// Numbers, and types that are numbers or words; JSON writes a word in quotes.
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	var word string
	if json.Unmarshal(text, &word) == nil {
		return []byte(word), nil
	}
	return text, nil
}
