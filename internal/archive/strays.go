package archive

import (
	"context"

	"github.com/rollingd/rollingd/internal/run"
)

// strays are operational documents that name no restaurant of their database. They
// are neither archived nor carried: nobody can tell whose they are.
type strays struct {
	count int64
	// ids are the first few, made printable.
	ids []string
}

func (s *strays) add(e *entry) {
	if s.count++; len(s.ids) < fewIDs {
		s.ids = append(s.ids, printable(e.id))
	}
}

// countStrays adds the strays that were read to the report, and names some in the log.
func (a *Archiver) countStrays(ctx context.Context, r run.Run, l legacy) {
	if l.strays.count == 0 {
		return
	}
	r.Report.Add("unassigned", l.strays.count)
	a.log.WarnContext(ctx, "documents of no known restaurant", "day_db", l.db, "run_id", r.ID,
		"documents", l.strays.count, "first", l.strays.ids)
}
