package api

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/labstack/echo/v4"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/guard"
	"github.com/rollingd/rollingd/internal/pg"
)

const (
	standardDayDBs = 100
	mostDayDBs     = 1000
)

// The events that people's decisions leave in the history of a day.
const (
	eventHold      daydb.Event = "hold"
	eventRelease   daydb.Event = "release"
	eventWaive     daydb.Event = "waive"
	eventEndWaiver daydb.Event = "end_waiver"
)

func (a *API) listDayDBs(c echo.Context) error {
	ctx := c.Request().Context()
	f, limit, err := a.dayDBFilter(c)
	if err != nil {
		return err
	}
	// One more than asked for tells whether there is another page.
	f.Limit = limit + 1
	days, err := a.Guard.List(ctx, f)
	if err != nil {
		return err
	}
	var next *string
	if len(days) > limit {
		days = days[:limit]
		cursor := cursorAfter(days[limit-1])
		next = &cursor
	}
	return c.JSON(http.StatusOK, map[string]any{"dayDbs": orEmpty(days), "nextCursor": next})
}

func (a *API) dayDBFilter(c echo.Context) (f daydb.Filter, limit int, err error) {
	q, err := query(c, "companyId", "restaurantId", "state", "businessDay", "limit", "cursor")
	if err != nil {
		return f, 0, err
	}
	for _, field := range []string{"companyId", "restaurantId"} {
		if q[field] == "" {
			continue
		}
		if err := checkID(field, q[field]); err != nil {
			return f, 0, err
		}
	}
	f.CompanyID, f.RestaurantID = q["companyId"], q["restaurantId"]
	if f.BusinessDay, err = dayOf("businessDay", q["businessDay"]); err != nil {
		return f, 0, err
	}
	if q["state"] != "" {
		for _, name := range strings.Split(q["state"], ",") {
			state := daydb.State(name)
			if !daydb.ValidState(state) {
				return f, 0, invalid("invalid_state", "state", "state must be one or more, with commas between, of %v", daydb.States())
			}
			f.States = append(f.States, state)
		}
	}
	if limit, err = limitOf(q["limit"], standardDayDBs, mostDayDBs); err != nil {
		return f, 0, err
	}
	if q["cursor"] != "" {
		if f.AfterID, err = a.readCursor(c, q["cursor"]); err != nil {
			return f, 0, err
		}
	}
	return f, limit, nil
}

// A cursor is the name of the last day database of a page: the ledger keeps
// every name for ever.
func cursorAfter(d guard.Explanation) string {
	return base64.RawURLEncoding.EncodeToString([]byte(d.DBName))
}

func (a *API) readCursor(c echo.Context, cursor string) (int64, error) {
	refused := invalid("invalid_cursor", "cursor", "the cursor is not one that a listing has returned as nextCursor")
	name, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return 0, refused
	}
	if _, err := daydb.ParseName(a.Env, string(name)); err != nil {
		return 0, refused
	}
	last, err := daydb.Load(c.Request().Context(), a.Pool, string(name))
	if errors.Is(err, daydb.ErrNotFound) {
		return 0, refused
	}
	return last.ID, err
}

// dbName returns the name in the path, which must be a day database's.
func (a *API) dbName(c echo.Context) (string, error) {
	name := c.Param("dbName")
	if _, err := daydb.ParseName(a.Env, name); err != nil {
		return "", invalid("invalid_day_db", "dbName", "the name of a day database here is %s_<companyId>_<restaurantId>_daily_<YYYYMMDD>", a.Env)
	}
	return name, nil
}

func (a *API) explainDayDB(c echo.Context) error {
	name, err := a.dbName(c)
	if err != nil {
		return err
	}
	return a.answerDayDB(c, name)
}

func (a *API) answerDayDB(c echo.Context, name string) error {
	explained, err := a.Guard.Explain(c.Request().Context(), name)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, explained)
}

func (a *API) holdDayDB(c echo.Context) error {
	name, err := a.dbName(c)
	if err != nil {
		return err
	}
	reason, err := requiredReason(c)
	if err != nil {
		return err
	}
	return a.changeDayDB(c, name, eventHold, map[string]string{"reason": reason}, func(tx pgx.Tx, _ daydb.DayDB) error {
		_, err := daydb.SetHold(c.Request().Context(), tx, name, reason, callerOf(c).actor)
		return err
	})
}

// releaseDayDB takes a reason for the history, and does not insist on it.
func (a *API) releaseDayDB(c echo.Context) error {
	name, err := a.dbName(c)
	if err != nil {
		return err
	}
	reason, err := optionalReason(c)
	if err != nil {
		return err
	}
	return a.changeDayDB(c, name, eventRelease, map[string]string{"reason": reason}, func(tx pgx.Tx, d daydb.DayDB) error {
		if d.Hold == nil {
			return errNothingToDo
		}
		_, err := daydb.ClearHold(c.Request().Context(), tx, name)
		return err
	})
}

// waiveDevice has a day not wait for a device that says it holds documents of it.
func (a *API) waiveDevice(c echo.Context) error {
	name, device, err := a.deviceOfDay(c)
	if err != nil {
		return err
	}
	reason, err := requiredReason(c)
	if err != nil {
		return err
	}
	return a.changeDayDB(c, name, eventWaive, map[string]string{"deviceId": device, "reason": reason}, func(tx pgx.Tx, d daydb.DayDB) error {
		return daydb.Waive(c.Request().Context(), tx, d, device, reason, callerOf(c).actor)
	})
}

// endWaiver has the day wait again.
func (a *API) endWaiver(c echo.Context) error {
	name, device, err := a.deviceOfDay(c)
	if err != nil {
		return err
	}
	reason, err := optionalReason(c)
	if err != nil {
		return err
	}
	return a.changeDayDB(c, name, eventEndWaiver, map[string]string{"deviceId": device, "reason": reason}, func(tx pgx.Tx, d daydb.DayDB) error {
		return daydb.EndWaiver(c.Request().Context(), tx, d, device)
	})
}

func (a *API) deviceOfDay(c echo.Context) (dayDB, deviceID string, err error) {
	if dayDB, err = a.dbName(c); err != nil {
		return "", "", err
	}
	deviceID = c.Param("deviceId")
	return dayDB, deviceID, checkDeviceID(deviceID)
}

// errNothingToDo ends a change that changes nothing: it leaves no line.
var errNothingToDo = errors.New("nothing to do")

// changeDayDB changes what people have decided about a day that is still there,
// notes it in the history, and answers with the day.
func (a *API) changeDayDB(c echo.Context, name string, event daydb.Event, evidence map[string]string, change func(pgx.Tx, daydb.DayDB) error) error {
	ctx, who := c.Request().Context(), callerOf(c)
	err := pg.WithTx(ctx, a.Pool, func(tx pgx.Tx) error {
		d, err := daydb.LoadForUpdate(ctx, tx, name)
		if err != nil {
			return err
		}
		if d.State == daydb.Dropped {
			return &refusal{
				status: http.StatusConflict,
				code:   "already_dropped",
				field:  "dbName",
				detail: fmt.Sprintf("%s was dropped at %s; `rollingd restore` rebuilds it from the archive", name, d.DroppedAt.UTC().Format(timeFormat)),
			}
		}
		if err := change(tx, d); err != nil {
			return err
		}
		return daydb.Note(ctx, tx, d, event, daydb.Mark{Actor: who.actor, Token: d.Token}, evidence)
	})
	if err != nil && !errors.Is(err, errNothingToDo) {
		return err
	}
	if err == nil {
		a.Logger.InfoContext(ctx, "decided about a day database", "day_db", name, "event", event, "actor", who.actor)
	}
	return a.answerDayDB(c, name)
}

// timeFormat is that of times in messages.
const timeFormat = "2006-01-02T15:04:05Z07:00"

func (a *API) restoreDayDB(c echo.Context) error {
	name, err := a.dbName(c)
	if err != nil {
		return err
	}
	reason, err := requiredReason(c)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	d, err := daydb.Load(ctx, a.Pool, name)
	if err != nil {
		return err
	}
	if d.State != daydb.Dropped {
		return &refusal{
			status: http.StatusConflict,
			code:   "not_dropped",
			field:  "dbName",
			detail: fmt.Sprintf("%s is %s: only a day that was dropped is rebuilt", name, d.State),
		}
	}
	restored, err := a.Archive.Restore(ctx, d, reason, callerOf(c).actor)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"dbName": restored.DBName, "documents": restored.Documents, "restoredFrom": name})
}

// downloadProof streams the list over which the proof was taken, so that
// anybody can hash it again.
func (a *API) downloadProof(c echo.Context) error {
	name, err := a.dbName(c)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	d, err := daydb.Load(ctx, a.Pool, name)
	if err != nil {
		return err
	}
	if d.Proof == nil {
		return &refusal{
			status: http.StatusConflict,
			code:   "no_proof",
			field:  "dbName",
			detail: name + " has no proof yet: one is taken before a drop",
		}
	}
	header := c.Response().Header()
	header.Set(echo.HeaderContentType, "text/plain; charset=utf-8")
	header.Set(echo.HeaderContentDisposition, `attachment; filename="`+name+`.proof.txt"`)
	header.Set("X-Proof-SHA256", fmt.Sprintf("%x", d.Proof.SHA256))
	err = a.Archive.WriteProofList(ctx, d, c.Response())
	if err != nil && c.Response().Committed {
		a.Logger.ErrorContext(ctx, "proof list was cut off", "day_db", name, "request_id", requestID(c), "error", err)
		// The client must not take what it has for the whole.
		panic(http.ErrAbortHandler)
	}
	return err
}
