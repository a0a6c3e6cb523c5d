package guard

import (
	"context"
	"errors"
	"fmt"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/run"
)

// Ghost is a database under a day's name that should not be there.
type Ghost struct {
	DBName string
	Name   daydb.Name
	// Dropped: the ledger calls it DROPPED, so somebody, perhaps a client with an
	// administrator's password, has created it again. Otherwise the ledger does
	// not know it.
	Dropped bool
}

// Ghosts compares CouchDB's databases with the ledger. CouchDB is asked first:
// a day is entered in the ledger before its database is created.
func (g *Guard) Ghosts(ctx context.Context) ([]Ghost, error) {
	names, err := g.Couch.Names(ctx, g.Env+"_")
	if err != nil {
		return nil, err
	}
	states, err := daydb.StatesOf(ctx, g.Pool, names)
	if err != nil {
		return nil, err
	}
	var ghosts []Ghost
	for _, name := range names {
		parsed, err := daydb.ParseName(g.Env, name)
		if err != nil {
			continue // No day's name: never touched, nor our concern.
		}
		state, known := states[name]
		if known && state != daydb.Dropped {
			continue
		}
		ghosts = append(ghosts, Ghost{DBName: name, Name: parsed, Dropped: known})
	}
	return ghosts, nil
}

// findGhosts reports ghosts as failures of the run. A database that has just
// been dropped may still be listed, so its absence is asked for by name.
func (g *Guard) findGhosts(ctx context.Context, r run.Run) error {
	ghosts, err := g.Ghosts(ctx)
	if err != nil {
		return at("ghost check", err)
	}
	w := work{guard: g, run: r}
	for _, ghost := range ghosts {
		gone, err := w.isGone(ctx, ghost.DBName)
		if gone {
			continue
		}
		r.Report.Add("ghosts", 1)
		r.Report.Fail(run.Failure{
			CompanyID:    ghost.Name.CompanyID,
			RestaurantID: ghost.Name.RestaurantID,
			DBName:       ghost.DBName,
			Step:         "ghost check",
			Error:        errors.Join(ghost.err(), err).Error(),
		})
	}
	return nil
}

func (gh Ghost) err() error {
	if gh.Dropped {
		return fmt.Errorf("this day was dropped, and somebody has created it again; " +
			"copy what it holds into the current day, then delete it by hand: rollingd never does")
	}
	return fmt.Errorf("the ledger does not know this database; find out who made it: rollingd never touches it")
}
