// Package flags holds the feature flags of each company. A company without a
// row has everything off, which is the single legacy database.
package flags

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/contracts"
)

// ErrDropNeedsRolling is returned for rollingDbDrop without rollingDb.
var ErrDropNeedsRolling = errors.New("rollingDbDrop needs rollingDb")

// Flags of a company.
type Flags struct {
	// RollingDb turns on rotation, warming of core and the cutover.
	RollingDb bool
	// RollingDbDrop permits the physical drop. It needs RollingDb.
	RollingDbDrop bool
	// DeviceRouted is set by the cutover, when every restaurant of the company
	// is ready for its devices, and cleared when RollingDb is turned off.
	DeviceRouted bool
}

// Device returns the canonical shape that devices are sent.
func (f Flags) Device() contracts.DeviceFlags {
	return contracts.DeviceFlags{
		RollingDbEnabled:      f.RollingDb,
		RollingDbDeviceRouted: f.DeviceRouted,
		RollingDbDropEnabled:  f.RollingDbDrop,
	}
}

// querier is what reading needs: a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Load returns the flags of a company; no row is all off.
func Load(ctx context.Context, db querier, companyID string) (Flags, error) {
	return load(ctx, db, companyID, ``)
}

// LoadForShare is Load with the row locked against change until the
// transaction ends. A destructive step decides by this one.
func LoadForShare(ctx context.Context, tx pgx.Tx, companyID string) (Flags, error) {
	return load(ctx, tx, companyID, ` for share`)
}

func load(ctx context.Context, db querier, companyID, lock string) (Flags, error) {
	var f Flags
	err := db.QueryRow(ctx, `
		select rolling_db, rolling_db_drop, device_routed
		from company_feature_flags
		where company_id = $1`+lock, companyID).Scan(&f.RollingDb, &f.RollingDbDrop, &f.DeviceRouted)
	if errors.Is(err, pgx.ErrNoRows) {
		return Flags{}, nil
	}
	if err != nil {
		return Flags{}, fmt.Errorf("flags of %s: %w", companyID, err)
	}
	return f, nil
}

// All returns the flags of every company that has a row.
func All(ctx context.Context, db querier) (map[string]Flags, error) {
	rows, err := db.Query(ctx, `select company_id, rolling_db, rolling_db_drop, device_routed from company_feature_flags`)
	if err != nil {
		return nil, fmt.Errorf("flags: %w", err)
	}
	all := make(map[string]Flags)
	var (
		company string
		f       Flags
	)
	_, err = pgx.ForEachRow(rows, []any{&company, &f.RollingDb, &f.RollingDbDrop, &f.DeviceRouted}, func() error {
		all[company] = f
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("flags: %w", err)
	}
	return all, nil
}

// Set turns a company's flags on or off. Turning rollingDb off un-routes its
// devices in the same step. ErrDropNeedsRolling for flags that contradict.
func Set(ctx context.Context, tx pgx.Tx, companyID string, rollingDb, rollingDbDrop bool, actor string) (Flags, error) {
	if rollingDbDrop && !rollingDb {
		return Flags{}, ErrDropNeedsRolling
	}
	var f Flags
	err := tx.QueryRow(ctx, `
		insert into company_feature_flags (company_id, rolling_db, rolling_db_drop, updated_by)
		values (@company, @rolling, @drop, @actor)
		on conflict on constraint company_feature_flags_pkey do update set
		  rolling_db = excluded.rolling_db,
		  rolling_db_drop = excluded.rolling_db_drop,
		  device_routed = company_feature_flags.device_routed and excluded.rolling_db,
		  updated_by = excluded.updated_by,
		  updated_at = now()
		returning rolling_db, rolling_db_drop, device_routed`,
		pgx.NamedArgs{"company": companyID, "rolling": rollingDb, "drop": rollingDbDrop, "actor": actor}).
		Scan(&f.RollingDb, &f.RollingDbDrop, &f.DeviceRouted)
	if err != nil {
		return Flags{}, fmt.Errorf("set flags of %s: %w", companyID, err)
	}
	return f, nil
}

// Route sets DeviceRouted of a company whose RollingDb is on, and reports
// whether it is set now.
func Route(ctx context.Context, tx pgx.Tx, companyID, actor string) (bool, error) {
	tag, err := tx.Exec(ctx, `
		update company_feature_flags set
		  device_routed = true,
		  updated_by = $2,
		  updated_at = now()
		where company_id = $1 and rolling_db`, companyID, actor)
	if err != nil {
		return false, fmt.Errorf("route %s: %w", companyID, err)
	}
	return tag.RowsAffected() == 1, nil
}
