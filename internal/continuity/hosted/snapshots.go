package hosted

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// ErrNoSnapshot means that nothing was published under the key.
var ErrNoSnapshot = errors.New("no such snapshot")

// Snapshots are what the edge reads from while the primary is away.
type Snapshots struct {
	transport Transport
}

// NewSnapshots returns the client over the transport.
func NewSnapshots(transport Transport) *Snapshots {
	return &Snapshots{transport: transport}
}

// Snapshot is a compact state that the primary published.
type Snapshot struct {
	Payload     json.RawMessage `json:"payload"`
	Version     int64           `json:"version"`
	PublishedAt time.Time       `json:"publishedAt"`
	// Age is the time since it was published, by the hosted database's clock.
	Age Seconds `json:"ageSeconds"`
}

// Put publishes a snapshot, and tells whether it was stored: an older version never replaces a newer one. The same version
// again makes it fresh. Versions have to rise across a restore of the primary too, so an epoch belongs into their high
// bits.
//
// Errors: ErrInvalid, ErrPayloadTooLarge.
func (s *Snapshots) Put(ctx context.Context, key string, payload json.RawMessage, version int64) (bool, error) {
	var result struct{ Stored bool }
	err := s.transport.Call(ctx, "continuity_put_snapshot", map[string]any{
		"p_snapshot_key": key,
		"p_payload":      payload,
		"p_version":      version,
	}, &result)
	return result.Stored, err
}

// Read returns the snapshot, or ErrNoSnapshot.
func (s *Snapshots) Read(ctx context.Context, key string) (Snapshot, error) {
	var snapshot *Snapshot
	err := s.transport.Call(ctx, "continuity_read_snapshot", map[string]any{
		"p_snapshot_key": key,
	}, &snapshot)
	if err != nil {
		return Snapshot{}, err
	}
	if snapshot == nil {
		return Snapshot{}, fmt.Errorf("read snapshot %s: %w", key, ErrNoSnapshot)
	}
	return *snapshot, nil
}

// Purge deletes snapshots whose key begins with the prefix and that were published so long ago, at least 14 days, and
// returns how many. It deletes some thousand at a time: the caller repeats it while it deletes any.
func (s *Snapshots) Purge(ctx context.Context, prefix string, olderThan time.Duration) (int, error) {
	var purged struct{ Snapshots int }
	err := s.transport.Call(ctx, "continuity_purge_snapshots", map[string]any{
		"p_prefix":             prefix,
		"p_older_than_seconds": seconds(olderThan),
	}, &purged)
	return purged.Snapshots, err
}
