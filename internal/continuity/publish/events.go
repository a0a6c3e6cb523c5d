package publish

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
)

// events publishes a batch, aggregates side by side, and returns those that the
// hosted outbox has now. The first error that concerns more than its event ends
// all.
func (w *work) events(ctx context.Context, events []event) ([]event, error) {
	var order []aggregate
	of := make(map[aggregate][]event)
	for _, e := range events {
		if w.blocked[e.aggregate()] {
			continue
		}
		if _, known := of[e.aggregate()]; !known {
			order = append(order, e.aggregate())
		}
		of[e.aggregate()] = append(of[e.aggregate()], e)
	}
	var (
		mu   sync.Mutex
		told []event
	)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, a := range order {
		group.Go(func() error {
			for _, e := range of[a] {
				err := w.publish(ctx, e)
				mu.Lock()
				if err == nil {
					told = append(told, e)
				}
				blocked := isRefusal(err)
				if blocked {
					w.blocked[a] = true
				}
				mu.Unlock()
				if blocked && !w.wasBlocked[a] {
					w.Logger.ErrorContext(ctx, "event refused", "event_id", e.EventID, "event_type", e.EventType, "error", err)
				}
				if blocked {
					return nil
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := group.Wait()
	return told, err
}

func (w *work) publish(ctx context.Context, e event) error {
	_, err := w.Outbox.Publish(ctx, hosted.Event{
		EventID:       e.EventID,
		EventType:     e.EventType,
		AggregateType: e.AggregateType,
		AggregateID:   e.AggregateID,
		Payload:       e.Payload,
		Epoch:         e.Epoch,
	})
	if err != nil {
		return fmt.Errorf("event %s: %w", e.EventID, err)
	}
	return nil
}

// isRefusal reports whether an event will never be taken. An epoch that has not
// come in a restored hosted database is none: the drain begins a later one.
func isRefusal(err error) bool {
	return errors.Is(err, continuity.ErrInvalid) || errors.Is(err, continuity.ErrPayloadTooLarge) || errors.Is(err, continuity.ErrKeyReused)
}
