package daydb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrNoReport is returned when a device has not said that it holds documents of
// a day.
var ErrNoReport = errors.New("the device has not said that it holds documents of this day")

// StaleReportError is returned for a report that a later one has overtaken.
type StaleReportError struct {
	// Sequence is that of the later report; the device's next one is higher.
	Sequence int64
}

func (e *StaleReportError) Error() string {
	return fmt.Sprintf("a report with sequence number %d is already here", e.Sequence)
}

// Unsynced is what a device says that it holds of a day and could not deliver.
type Unsynced struct {
	DeviceID  string `json:"deviceId"`
	Documents int64  `json:"documents"`
	// ReportedAt is when the device was last heard, and WaitUntil when it will
	// have been silent for so long that it is not waited for any more.
	ReportedAt time.Time `json:"reportedAt"`
	WaitUntil  time.Time `json:"waitUntil"`
	Waiver     *Waiver   `json:"waiver"`
	// Waited reports whether the day waits for the device.
	Waited bool `json:"waited"`
}

// Waiver is a person's decision not to wait for a device. It ends when the
// device has delivered.
type Waiver struct {
	Reason string    `json:"reason"`
	Actor  string    `json:"actor"`
	Since  time.Time `json:"since"`
}

// ReportUnsynced replaces what is known of a device by the number of documents
// that it holds of each day; a day that is not named is delivered. It returns a
// StaleReportError, and changes nothing, unless sequence is the highest so far.
func ReportUnsynced(ctx context.Context, tx pgx.Tx, r Restaurant, deviceID string, sequence int64, documents map[Day]int64) error {
	args := pgx.NamedArgs{
		"company":    r.CompanyID,
		"restaurant": r.RestaurantID,
		"device":     deviceID,
		"sequence":   sequence,
	}
	taken, err := tx.Exec(ctx, `
		insert into device_reports as known (company_id, restaurant_id, device_id, sequence)
		values (@company, @restaurant, @device, @sequence)
		on conflict on constraint device_reports_pkey do update set
		  sequence = excluded.sequence,
		  reported_at = now()
		where known.sequence < excluded.sequence`, args)
	if err != nil {
		return fmt.Errorf("report of %s: %w", deviceID, translate(err))
	}
	if taken.RowsAffected() == 0 {
		stale := &StaleReportError{}
		err := tx.QueryRow(ctx, `
			select sequence
			from device_reports
			where (company_id, restaurant_id, device_id) = (@company, @restaurant, @device)`, args).Scan(&stale.Sequence)
		if err != nil {
			return fmt.Errorf("report of %s: %w", deviceID, translate(err))
		}
		return stale
	}
	days, counts := make([]Day, 0, len(documents)), make([]int64, 0, len(documents))
	for day, n := range documents {
		days, counts = append(days, day), append(counts, n)
	}
	args["days"], args["counts"] = days, counts
	for _, statement := range []string{
		`delete from device_unsynced
		where (company_id, restaurant_id, device_id) = (@company, @restaurant, @device)
		  and business_day <> all(@days::date[])`,
		`insert into device_unsynced (company_id, restaurant_id, device_id, business_day, documents)
		select @company, @restaurant, @device, reported.*
		from unnest(@days::date[], @counts::bigint[]) reported
		on conflict on constraint device_unsynced_pkey do update set documents = excluded.documents`,
	} {
		if _, err := tx.Exec(ctx, statement, args); err != nil {
			return fmt.Errorf("report of %s: %w", deviceID, translate(err))
		}
	}
	return nil
}

// UnsyncedOf returns, by the ids of days, what devices say that they hold of
// them. A device that has not been heard for silence is not waited for.
func UnsyncedOf(ctx context.Context, db Querier, dayIDs []int64, silence time.Duration) (map[int64][]Unsynced, error) {
	rows, err := db.Query(ctx, `
		select
		  d.id,
		  u.device_id,
		  u.documents,
		  r.reported_at,
		  r.reported_at + @silence,
		  u.waived_at is null and r.reported_at + @silence > now(),
		  coalesce(u.waived_reason, ''),
		  coalesce(u.waived_by, ''),
		  u.waived_at
		from day_databases d
		join device_unsynced u using (company_id, restaurant_id, business_day)
		join device_reports r using (company_id, restaurant_id, device_id)
		where d.id = any(@days)
		order by d.id, u.device_id`, pgx.NamedArgs{"days": dayIDs, "silence": silence})
	if err != nil {
		return nil, fmt.Errorf("reports of devices: %w", err)
	}
	all := make(map[int64][]Unsynced)
	var (
		dayID    int64
		u        Unsynced
		waiver   Waiver
		waivedAt *time.Time
	)
	scan := []any{&dayID, &u.DeviceID, &u.Documents, &u.ReportedAt, &u.WaitUntil, &u.Waited, &waiver.Reason, &waiver.Actor, &waivedAt}
	_, err = pgx.ForEachRow(rows, scan, func() error {
		found := u
		found.ReportedAt, found.WaitUntil = u.ReportedAt.UTC(), u.WaitUntil.UTC()
		if waivedAt != nil {
			found.Waiver = &Waiver{Reason: waiver.Reason, Actor: waiver.Actor, Since: waivedAt.UTC()}
		}
		all[dayID] = append(all[dayID], found)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reports of devices: %w", err)
	}
	return all, nil
}

// Waive has a day not wait for a device any more. ErrNoReport if it does not
// hold any document of the day.
func Waive(ctx context.Context, tx pgx.Tx, d DayDB, deviceID, reason, actor string) error {
	return changeWaiver(ctx, tx, d, deviceID, `waived_reason = @reason, waived_by = @actor, waived_at = coalesce(waived_at, now())`,
		pgx.NamedArgs{"reason": reason, "actor": actor})
}

// EndWaiver has a day wait for a device again. ErrNoReport as for Waive.
func EndWaiver(ctx context.Context, tx pgx.Tx, d DayDB, deviceID string) error {
	return changeWaiver(ctx, tx, d, deviceID, `waived_reason = null, waived_by = null, waived_at = null`, pgx.NamedArgs{})
}

func changeWaiver(ctx context.Context, tx pgx.Tx, d DayDB, deviceID, assignments string, args pgx.NamedArgs) error {
	args["company"], args["restaurant"], args["day"], args["device"] = d.CompanyID, d.RestaurantID, d.BusinessDay, deviceID
	changed, err := tx.Exec(ctx, `update device_unsynced set `+assignments+`
		where (company_id, restaurant_id, business_day, device_id) = (@company, @restaurant, @day, @device)`, args)
	if err != nil {
		return fmt.Errorf("waiver of %s for %s: %w", deviceID, d.Name, translate(err))
	}
	if changed.RowsAffected() == 0 {
		return fmt.Errorf("%s, %s: %w", d.Name, deviceID, ErrNoReport)
	}
	return nil
}
