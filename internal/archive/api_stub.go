package archive

import (
	"context"
	"errors"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/run"
)

var errSoon = errors.New("archive: being written")

// Restored is a database that was rebuilt from the archive.
type Restored struct {
	DBName    string
	Documents int64
}

func (a *Archiver) Run(ctx context.Context, r run.Run) error { return errSoon }
func (a *Archiver) Restore(ctx context.Context, day daydb.DayDB, reason, actor string) (Restored, error) {
	return Restored{}, errSoon
}
