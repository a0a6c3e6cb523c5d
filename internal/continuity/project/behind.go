package project

import (
	"context"
	"errors"
	"fmt"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
)

// errLedgerBehind is returned for a restaurant whose tills are in a day later than
// its ACTIVE one: Postgres was restored to before a rotation. What was in the later
// day is in none by the ledger, and would be written into the older one as well. It
// waits until a person has told the ledger of the day.
var errLedgerBehind = errors.New("tills are in a later day than the ledger: was Postgres restored from a backup? " +
	"What is in no day waits until \"Postgres was restored\" in the runbook is done")

// behind returns errLedgerBehind if the manifest names such a day, and the day
// exists and bears our marker. The manifest follows the ledger, never the reverse.
func (s *shop) behind(ctx context.Context) error {
	active, err := s.active(ctx, s.Pool)
	if err != nil || active == nil {
		return err
	}
	name, err := contracts.ParseDBName(active.Name)
	if err != nil {
		return err
	}
	core, err := contracts.CoreName(name.Env, s.CompanyID, s.RestaurantID)
	if err != nil {
		return err
	}
	raw, err := s.Couch.Doc(ctx, core, contracts.ManifestID, "")
	if errors.Is(err, couch.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read manifest of %s: %w", core, err)
	}
	m, err := contracts.ParseDayManifest(raw)
	if err != nil || m.CurrentBusinessDay == nil {
		return nil // It says nothing; the next rotation repairs it.
	}
	current, err := daydb.ParseDay(*m.CurrentBusinessDay)
	if err != nil || !active.Business.Before(current) {
		return err
	}
	later, err := contracts.DailyName(name.Env, s.CompanyID, s.RestaurantID, *m.CurrentBusinessDay)
	if err != nil {
		return err
	}
	security, err := s.Couch.Security(ctx, later)
	if errors.Is(err, couch.ErrNotFound) || err == nil && security.Marker == nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("security of %s: %w", later, err)
	}
	return fmt.Errorf("%w (%s)", errLedgerBehind, later)
}
