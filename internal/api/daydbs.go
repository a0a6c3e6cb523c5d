package api

import (
	"encoding/base64"
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

// The events that a hold leaves in the history of a day.
const (
	eventHold    daydb.Event = "hold"
	eventRelease daydb.Event = "release"
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
	if err != nil {
		return 0, refused
	}
	return last.ID, nil
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
	var given *string
	name, err := a.dbName(c)
	if err != nil {
		return err
	}
	if err := decode(c, fields{"reason": &given}); err != nil {
		return err
	}
	reason, err := reasonOf(given)
	if err != nil {
		return err
	}
	err = a.changeHold(c, name, eventHold, reason, func(tx pgx.Tx) error {
		_, err := daydb.SetHold(c.Request().Context(), tx, name, reason, callerOf(c).actor)
		return err
	})
	if err != nil {
		return err
	}
	return a.answerDayDB(c, name)
}

// releaseDayDB takes a reason for the history, and does not insist on it.
func (a *API) releaseDayDB(c echo.Context) error {
	var given *string
	name, err := a.dbName(c)
	if err != nil {
		return err
	}
	if err := decode(c, fields{"reason": &given}); err != nil {
		return err
	}
	reason := ""
	if given != nil {
		if reason, err = reasonOf(given); err != nil {
			return err
		}
	}
	err = a.changeHold(c, name, eventRelease, reason, func(tx pgx.Tx) error {
		_, err := daydb.ClearHold(c.Request().Context(), tx, name)
		return err
	})
	if err != nil {
		return err
	}
	return a.answerDayDB(c, name)
}

// changeHold changes a hold and notes it in the history of the day.
func (a *API) changeHold(c echo.Context, name string, event daydb.Event, reason string, change func(pgx.Tx) error) error {
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
		if event == eventRelease && d.Hold == nil {
			return nil
		}
		if err := change(tx); err != nil {
			return err
		}
		return daydb.Note(ctx, tx, d, event, daydb.Mark{Actor: who.actor, Token: d.Token}, map[string]string{"reason": reason})
	})
	if err != nil {
		return err
	}
	a.Logger.InfoContext(ctx, "hold changed", "day_db", name, "event", event, "actor", who.actor)
	return nil
}

// timeFormat is that of times in messages.
const timeFormat = "2006-01-02T15:04:05Z07:00"

func (a *API) restoreDayDB(c echo.Context) error {
	var given *string
	name, err := a.dbName(c)
	if err != nil {
		return err
	}
	if err := decode(c, fields{"reason": &given}); err != nil {
		return err
	}
	reason, err := reasonOf(given)
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
