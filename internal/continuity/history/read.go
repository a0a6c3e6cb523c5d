package history

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
)

const page = 1000

func (c *check) readEpochs(ctx context.Context) error {
	c.gates = make(map[continuity.Epoch]bool)
	for after := int64(0); ; {
		flips, err := c.Fence.Log(ctx, after, page)
		if err != nil {
			return err
		}
		for _, f := range flips {
			after = f.ID
			c.log = append(c.log, f)
		}
		if len(flips) < page {
			return nil
		}
	}
}

// accepted is a command of the queue, without its payload.
type accepted struct {
	CommandID uuid.UUID
	Key       string
	Sequence  continuity.Sequence
	Epoch     continuity.Epoch
	Status    contracts.CommandStatus
	LastError string
	// effect is the line of the inbox under the key, nil for none.
	effect *entry
}

// readQueue keeps the whole queue, which is purged; the primary's books, which are
// not, are read through.
func (c *check) readQueue(ctx context.Context) error {
	c.byKey = make(map[string]*accepted)
	for after := continuity.Sequence(0); ; {
		commands, err := c.Queue.List(ctx, "", after, page)
		if err != nil {
			return err
		}
		for _, q := range commands {
			after = q.Sequence
			command := &accepted{CommandID: q.CommandID, Key: q.IdempotencyKey, Sequence: q.Sequence, Epoch: q.Epoch, Status: q.Status}
			if q.LastError != nil {
				command.LastError = strings.TrimSpace(*q.LastError)
			}
			c.queue = append(c.queue, command)
			c.byKey[q.IdempotencyKey] = command
			c.Progress(len(c.queue), "commands of the queue")
		}
		c.report.Accepted = len(c.queue)
		if len(commands) < page {
			return nil
		}
	}
}

// checkPrimary reads what belongs together in one transaction: the primary goes on
// meanwhile, and a new effect has its line in three of the tables.
func (c *check) checkPrimary(ctx context.Context) error {
	atOnce := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return pgx.BeginTxFunc(ctx, c.Primary, atOnce, func(tx pgx.Tx) error {
		// Years of books take longer than a statement may.
		if _, err := tx.Exec(ctx, `set local statement_timeout = '6h'`); err != nil {
			return err
		}
		if err := c.readFlips(ctx, tx); err != nil {
			return fmt.Errorf("flips: %w", err)
		}
		if err := c.inbox(ctx, tx); err != nil {
			return fmt.Errorf("inbox: %w", err)
		}
		if err := c.events(ctx, tx); err != nil {
			return fmt.Errorf("events: %w", err)
		}
		if err := c.untold(ctx, tx); err != nil {
			return fmt.Errorf("effects without events: %w", err)
		}
		return nil
	})
}

// flip is a line in the primary's log. What was applied under it stands behind
// inboxOrder, up to that of the next.
type flip struct {
	Epoch      continuity.Epoch
	Mode       continuity.Mode
	Closed     bool
	InboxOrder int64
	At         time.Time
}

func (f flip) direct() bool { return !f.Closed && f.Mode == continuity.Direct }

func (c *check) readFlips(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		select
		  epoch,
		  mode,
		  closed,
		  inbox_order,
		  at
		from primary_fence_flips
		order by id`)
	if err != nil {
		return err
	}
	c.flips, err = pgx.CollectRows(rows, pgx.RowToStructByPos[flip])
	if err == nil && len(c.flips) == 0 {
		return errors.New("the log is empty")
	}
	return err
}
