package socket

import (
	"context"
	"time"
)

// publish reads what has become stale and sends it until the server is closed.
// It alone sends states, so every device sees them in the order in which they
// were read.
func (s *Server) publish(ctx context.Context) {
	pause := time.NewTimer(0)
	<-pause.C
	wait := func(d time.Duration) bool {
		pause.Reset(d)
		select {
		case <-pause.C:
			return true
		case <-ctx.Done():
			pause.Stop()
			return false
		}
	}
	for {
		select {
		case <-s.rooms.wake:
		case <-ctx.Done():
			return
		}
		if !wait(gather) {
			return
		}
		if err := s.publishOnce(ctx); err != nil && ctx.Err() == nil {
			s.Logger.WarnContext(ctx, "what devices are told was not read", "error", err)
			if !wait(retryAfter) {
				return
			}
		}
	}
}

// publishOnce reads the stale restaurants, in one go, and sends what is new. On
// an error they are stale still.
func (s *Server) publishOnce(ctx context.Context) error {
	stale := s.rooms.takeStale()
	if len(stale) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	states, err := s.Source.Load(ctx, stale)
	if err != nil {
		for _, r := range stale {
			s.rooms.mark(r.CompanyID, r.RestaurantID)
		}
		return err
	}
	for _, m := range s.rooms.update(stale, states) {
		s.send(m.to, m.event, m.payload)
	}
	return nil
}

// send queues a message; it never waits for the device.
func (s *Server) send(to *device, event string, payload ...any) {
	// The names of the events are not reserved ones, the only error there is.
	_ = to.socket.Emit(event, payload...)
	s.metrics.messages.WithLabelValues(event).Inc()
}
