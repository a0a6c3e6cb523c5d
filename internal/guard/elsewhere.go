package guard

import (
	"context"

	"github.com/rollingd/rollingd/internal/daydb"
)

// elsewhere is what belongs into a day and is not in it yet.
type elsewhere struct {
	unsynced    []daydb.Unsynced
	undelivered Undelivered
}

// Undelivered is what the continuity plane has yet to bring to a day.
type Undelivered struct {
	// Count of documents, events and commands of this day.
	Count int64
	// QueueOpen: the hosted queue takes commands, of which nobody here knows for
	// which day they are.
	QueueOpen bool
}

// elsewhereOf looks, for each of the days, at what is elsewhere.
func (g *Guard) elsewhereOf(ctx context.Context, db daydb.Querier, dayIDs ...int64) (map[int64]elsewhere, error) {
	unsynced, err := daydb.UnsyncedOf(ctx, db, dayIDs, g.Silence)
	if err != nil {
		return nil, err
	}
	var undelivered map[int64]Undelivered
	if g.Undelivered != nil {
		if undelivered, err = g.Undelivered(ctx, db, dayIDs); err != nil {
			return nil, err
		}
	}
	all := make(map[int64]elsewhere, len(dayIDs))
	for _, id := range dayIDs {
		all[id] = elsewhere{unsynced: unsynced[id], undelivered: undelivered[id]}
	}
	return all, nil
}

// with is lock 1 of the documents in a day and of what is elsewhere, whatever
// was elsewhere when it was last judged.
func (l Lock) with(x elsewhere) Lock {
	var reasons []Reason
	for _, r := range l.Reasons {
		if r.Code != CodeUnsynced && r.Code != CodeUndelivered {
			reasons = append(reasons, r)
		}
	}
	held := Reason{Code: CodeUnsynced, DocIDs: []string{}}
	for _, u := range x.unsynced {
		if u.Waited {
			held.Devices = append(held.Devices, u)
			held.Count += u.Documents
		}
	}
	if held.Count > 0 {
		reasons = append(reasons, held)
	}
	if x.undelivered.Count > 0 {
		reasons = append(reasons, Reason{Code: CodeUndelivered, Count: x.undelivered.Count, DocIDs: []string{}})
	}
	judged := lockOf(reasons)
	judged.EvaluatedAt = l.EvaluatedAt
	return judged
}
