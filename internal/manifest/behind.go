package manifest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/pg"
)

// ErrLedgerBehind is returned when the manifest in core names a day database that
// exists and bears our marker, and that the ledger does not know: the ledger was
// restored from a backup. To publish what it says would take all tills back to an
// old day, so nothing is written until a person has told the ledger of the day.
var ErrLedgerBehind = errors.New("the ledger is older than CouchDB: was Postgres restored from a backup? " +
	"Stop every rollingd and follow \"Postgres was restored\" in the runbook")

// refuseToGoBack returns ErrLedgerBehind if the stored manifest names such a day.
// A manifest that somebody typed names days that do not exist, or databases that
// are not ours, and is repaired.
func (p *Publisher) refuseToGoBack(ctx context.Context, doc document, l Ledger) error {
	var unknown []string
	for _, leaf := range doc.leaves {
		m, err := contracts.ParseDayManifest(leaf.Body)
		if err != nil {
			continue // Damaged: it says nothing.
		}
		named := m.Overlays
		if m.CurrentBusinessDay != nil {
			named = append(named, contracts.Overlay{BusinessDay: *m.CurrentBusinessDay})
		}
		for _, o := range named {
			name, err := contracts.DailyName(p.env, l.restaurant.CompanyID, l.restaurant.RestaurantID, o.BusinessDay)
			if err != nil || slices.ContainsFunc(l.days, func(d daydb.DayDB) bool { return d.Name == name }) {
				continue
			}
			unknown = append(unknown, name)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	rows, err := p.pool.Query(ctx, `
		select db_name
		from day_databases
		where db_name = any($1) and instance_start_time is not null`, unknown)
	if err != nil {
		return fmt.Errorf("days of the manifest: %w", pg.Translate(err))
	}
	known, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("days of the manifest: %w", pg.Translate(err))
	}
	var ours []string
	for _, name := range unknown {
		if slices.Contains(known, name) || slices.Contains(ours, name) {
			continue
		}
		switch security, err := p.couch.Security(ctx, name); {
		case errors.Is(err, couch.ErrNotFound):
		case err != nil:
			return fmt.Errorf("day of the manifest: %w", err)
		case security.Marker != nil:
			ours = append(ours, name)
		}
	}
	if len(ours) > 0 {
		return fmt.Errorf("%w (%s)", ErrLedgerBehind, strings.Join(ours, ", "))
	}
	return nil
}
