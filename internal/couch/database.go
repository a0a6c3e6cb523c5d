package couch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-kivik/kivik/v4"
)

// Info is what GET of a database says.
type Info struct {
	Name        string
	DocCount    int64
	DocDelCount int64
	// PurgeSeq is the number before the dash: how many purges there were. A
	// purge shows nowhere else.
	PurgeSeq int64
	// InstanceStartTime is the creation time in whole seconds of the node's
	// clock. Two databases of one name that are created within a second share it.
	InstanceStartTime string
}

// Info returns what GET of the database says. ErrNotFound is the one proof that
// a database is absent; under load CouchDB answers 500 for databases that are
// there.
func (c *Client) Info(ctx context.Context, db string) (Info, error) {
	// Not through kivik, which takes a plus in a legacy database's name for a space.
	var stats struct {
		Name              string          `json:"db_name"`
		DocCount          int64           `json:"doc_count"`
		DocDelCount       int64           `json:"doc_del_count"`
		PurgeSeq          json.RawMessage `json:"purge_seq"`
		InstanceStartTime string          `json:"instance_start_time"`
	}
	if err := c.doJSON(ctx, http.MethodGet, path(db), nil, &stats); err != nil {
		return Info{}, fmt.Errorf("info of %s: %w", db, err)
	}
	purges, err := purgeNumber(stats.PurgeSeq)
	if err != nil {
		return Info{}, fmt.Errorf("info of %s: %w: %w", db, ErrUnavailable, err)
	}
	return Info{
		Name:              stats.Name,
		DocCount:          stats.DocCount,
		DocDelCount:       stats.DocDelCount,
		PurgeSeq:          purges,
		InstanceStartTime: stats.InstanceStartTime,
	}, nil
}

// purgeNumber reads "3-g1AAA…", or 3 from a server that is not clustered.
func purgeNumber(raw json.RawMessage) (int64, error) {
	text := strings.Trim(string(raw), `"`)
	number, _, _ := strings.Cut(text, "-")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("purge_seq %q", text)
	}
	return n, nil
}

const (
	// createTries and createPause: after 412 and 404 in a row the next PUT was
	// seen to work some 60 ms later.
	createTries = 10
	createPause = 100 * time.Millisecond
)

// Create makes sure that a database exists, with one shard, and reports whether
// this call has made it. A new database is the administrator's alone until its
// security is set.
func (c *Client) Create(ctx context.Context, db string) (created bool, err error) {
	for range createTries {
		created, err = c.create(ctx, db)
		if !errors.Is(err, ErrExists) {
			return created, err
		}
		// 412 is no proof of existence: while a DELETE runs it is the answer for
		// a database that is gone.
		if _, err := c.Info(ctx, db); err == nil {
			return false, nil
		} else if !errors.Is(err, ErrNotFound) {
			return false, err
		}
		timer := time.NewTimer(createPause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return false, context.Cause(ctx)
		case <-timer.C:
		}
	}
	return false, err
}

func (c *Client) create(ctx context.Context, db string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	if err := c.kivik.CreateDB(ctx, db, kivik.Param("q", 1)); err != nil {
		return false, fmt.Errorf("create %s: %w", db, fromKivik(err))
	}
	return true, nil
}

// Delete sends one DELETE of a database. It has no precondition and is not
// repeated, neither here nor by the transport: nobody can tell a repetition from
// the deletion of a successor. ErrNotFound when it is gone already;
// ErrUnavailable when nobody knows.
func (c *Client) Delete(ctx context.Context, db string) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	if err := c.kivik.DestroyDB(ctx, db); err != nil {
		return fmt.Errorf("delete %s: %w", db, fromKivik(err))
	}
	return nil
}

// Names returns the names of all databases within a prefix, sorted by CouchDB.
func (c *Client) Names(ctx context.Context, prefix string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	// The keys are JSON; kivik encodes them for views only. U+FFF0 collates
	// behind every name.
	names, err := c.kivik.AllDBs(ctx, kivik.Params(map[string]any{
		"startkey": strconv.Quote(prefix),
		"endkey":   strconv.Quote(prefix + "\ufff0"),
	}))
	if err != nil {
		return nil, fmt.Errorf("list databases: %w", fromKivik(err))
	}
	return names, nil
}
