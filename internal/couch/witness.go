package couch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// A witness is a checkpoint that a reader leaves within the database that it has
// read, as replication does. When the files of a database are put back to an
// older state and documents are written after that, its feed shows nothing of
// them behind the reader's sequence: same creation time, no purge, nothing
// pending. But the witness in the files is older too. A reader that finds
// another witness than its own last sequence has to read from the start.
//
// It is a local document: it is in no feed, and no replication carries it over.
// Members of the database may write it, which costs a reading and no document.
type witness struct {
	Since Seq `json:"since"`
}

func witnessID(reader string) string { return "_local/rollingd_" + reader }

// Witness returns the sequence that a reader has left in a database, or nothing.
func (c *Client) Witness(ctx context.Context, db, reader string) (Seq, error) {
	raw, err := c.Doc(ctx, db, witnessID(reader), "")
	if errors.Is(err, ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("witness in %s: %w", db, err)
	}
	var w witness
	if json.Unmarshal(raw, &w) != nil {
		return "", nil // Somebody else's document is no witness.
	}
	return w.Since, nil
}

// PutWitness leaves the sequence up to which a reader has read a database.
func (c *Client) PutWitness(ctx context.Context, db, reader string, since Seq) error {
	if err := c.Put(ctx, db, witnessID(reader), witness{Since: since}); err != nil {
		return fmt.Errorf("witness in %s: %w", db, err)
	}
	return nil
}
