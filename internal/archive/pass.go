package archive

import (
	"context"
	"fmt"

	"github.com/rollingd/rollingd/internal/couch"
)

// pass reads the feed from the checkpoint to its end and commits it in batches.
// Reading, classifying and hashing go on while the batch before is written. When
// the feed breaks off, the whole batches before are committed all the same.
func (w *writer) pass(ctx context.Context, classify classifier) error {
	return w.passFrom(ctx, w.source.since, classify)
}

// passFrom is pass from another sequence than the checkpoint.
func (w *writer) passFrom(ctx context.Context, since couch.Seq, classify classifier) error {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	// One batch is filled, one is written, one waits.
	free, full := make(chan *batch, 2), make(chan *batch, 1)
	free <- newBatch()
	free <- newBatch()
	swap := func(b *batch) (*batch, error) {
		select {
		case full <- b:
		case <-reading.Done():
			return nil, context.Cause(reading)
		}
		select {
		case b := <-free:
			return b, nil
		case <-reading.Done():
			return nil, context.Cause(reading)
		}
	}
	var readErr error
	go func() {
		defer close(full)
		readErr = w.readBatches(reading, w.source.db, since, classify, newBatch(), swap)
	}()

	var err error
	for b := range full {
		if err != nil {
			continue // The reader was stopped; what it had read is left to the next run.
		}
		if err = w.write(ctx, b); err != nil {
			stop()
			continue
		}
		b.reset()
		free <- b
	}
	if err != nil {
		return err
	}
	return readErr
}

// readBatches fills batches with the feed and hands each over to swap, which
// returns the next to fill. A feed that breaks off gives no more than the whole
// batches before.
func (a *Archiver) readBatches(ctx context.Context, db string, since couch.Seq, classify classifier,
	b *batch, swap func(*batch) (*batch, error)) error {
	feed, err := a.couch.Changes(ctx, db, couch.ChangesOptions{Since: since, Docs: true, SeqInterval: seqInterval})
	if err != nil {
		return err
	}
	defer feed.Close()
	for feed.Next() {
		c := feed.Change()
		if c.Doc == nil {
			return fmt.Errorf("%w: a row without its document", couch.ErrFeedBroken)
		}
		b.add(c, classify)
		if !b.full(c) {
			continue
		}
		b.next = c.Seq
		if b, err = swap(b); err != nil {
			return err
		}
	}
	if err := feed.Err(); err != nil {
		return err
	}
	b.next, _ = feed.End()
	_, err = swap(b)
	return err
}
