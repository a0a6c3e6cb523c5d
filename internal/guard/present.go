package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
)

// presentWithin bounds the look: whoever asks why a database is still there, while
// CouchDB hangs, is to be told all else that is known.
const presentWithin = 5 * time.Second

// present looks at the physical database now, and says what is not as the
// ledger has it. Evaluations look at days that are over and at those alone; a
// person who asks wants to know now.
func (g *Guard) present(ctx context.Context, d daydb.DayDB) []string {
	ctx, cancel := context.WithTimeout(ctx, presentWithin)
	defer cancel()
	info, err := g.Couch.Info(ctx, d.Name)
	if errors.Is(err, couch.ErrNotFound) && d.State == daydb.Dropped {
		return nil
	}
	if errors.Is(err, couch.ErrNotFound) {
		if d.InstanceStartTime == nil {
			return nil // It was not created yet.
		}
		if d.State == daydb.Droppable && d.DropIntendedAt != nil {
			return []string{"the database is gone: the drop that was committed has worked, and the next run records it"}
		}
		return []string{ErrAbsent.Error()}
	}
	if err != nil {
		return []string{fmt.Sprintf("CouchDB does not answer for this database now: %v", err)}
	}
	if d.State == daydb.Dropped {
		return []string{Ghost{Dropped: true}.err().Error()}
	}
	security, err := g.Couch.Security(ctx, d.Name)
	if err != nil {
		return []string{fmt.Sprintf("CouchDB does not answer for this database now: %v", err)}
	}
	var warnings []string
	if !security.Marked(d.Generation) || d.InstanceStartTime != nil && *d.InstanceStartTime != info.InstanceStartTime {
		warnings = append(warnings, ErrForeign.Error()+": it was deleted and created again, or its _security was overwritten")
	}
	switch sealed := security.IsSealed(); {
	case d.State == daydb.Droppable && !sealed:
		warnings = append(warnings, ErrSealBroken.Error()+": _security lets somebody in; the next run seals it again")
	case d.State != daydb.Droppable && sealed && d.SealStartedAt == nil:
		warnings = append(warnings, "_security is sealed, and the ledger knows of no seal: tills are refused")
	case d.InstanceStartTime != nil && !sealed && !slices.Equal(security.Members.Roles, []string{d.Role()}):
		warnings = append(warnings, fmt.Sprintf("_security admits the roles %v instead of %s alone", security.Members.Roles, d.Role()))
	}
	return warnings
}
