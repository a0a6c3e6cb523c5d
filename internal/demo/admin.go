package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// adminAPI is the server's API for operators.
type adminAPI struct {
	base, token string
	client      *http.Client
}

func newAdminAPI(base, token string) *adminAPI {
	return &adminAPI{base: strings.TrimRight(base, "/"), token: token, client: &http.Client{}}
}

func (a *adminAPI) call(ctx context.Context, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, nightTimeout)
	defer cancel()
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	if in == nil {
		body = nil
	}
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+a.token)
	req.Header.Set("Content-Type", "application/json")
	raw, err := answer(a.client, req, path)
	if err != nil || out == nil {
		return err
	}
	return json.Unmarshal(raw, out)
}

// cronRun is a finished run.
type cronRun struct {
	ID       int64            `json:"id"`
	Cron     string           `json:"cron"`
	State    string           `json:"state"`
	Counters map[string]int64 `json:"counters"`
	Changes  []struct {
		DBName string `json:"dbName"`
		From   string `json:"from"`
		To     string `json:"to"`
	} `json:"changes"`
	Failures []struct {
		CompanyID    string `json:"companyId"`
		RestaurantID string `json:"restaurantId"`
		DBName       string `json:"dbName"`
		Step         string `json:"step"`
		Error        string `json:"error"`
	} `json:"failures"`
}

// runCron runs a cron to its end; day is the business day that it takes for
// today, or empty.
func (a *adminAPI) runCron(ctx context.Context, name, day string) (cronRun, error) {
	request := map[string]any{"wait": true}
	if day != "" {
		request["businessDay"] = day
	}
	var run cronRun
	err := a.call(ctx, http.MethodPost, "/admin/crons/"+name+"/run", request, &run)
	return run, err
}

// faults says what went wrong in a run, nothing if it succeeded.
func (r cronRun) faults() []string {
	if r.State == "succeeded" {
		return nil
	}
	faults := []string{fmt.Sprintf("run %d of %s: %s", r.ID, r.Cron, r.State)}
	for _, f := range r.Failures {
		where := f.DBName
		if where == "" {
			where = f.CompanyID + "/" + f.RestaurantID
		}
		faults = append(faults, fmt.Sprintf("run %d of %s: %s: %s: %s", r.ID, r.Cron, where, f.Step, f.Error))
	}
	return faults
}

func (a *adminAPI) register(ctx context.Context, r restaurant, zone string) error {
	return a.call(ctx, http.MethodPut, "/admin/restaurants/"+r.company+"/"+r.id, map[string]any{"timezone": zone}, nil)
}

func (a *adminAPI) switchOn(ctx context.Context, company string) error {
	return a.call(ctx, http.MethodPut, "/admin/flags/"+company, map[string]any{"rollingDb": true, "rollingDbDrop": true}, nil)
}

func (a *adminAPI) hold(ctx context.Context, db, reason string) error {
	return a.call(ctx, http.MethodPut, "/admin/day-dbs/"+db+"/hold", map[string]any{"reason": reason}, nil)
}

// restore rebuilds a dropped day and returns the name of the database.
func (a *adminAPI) restore(ctx context.Context, db, reason string) (string, error) {
	var restored struct {
		DBName string `json:"dbName"`
	}
	err := a.call(ctx, http.MethodPost, "/admin/day-dbs/"+db+"/restore", map[string]any{"reason": reason}, &restored)
	return restored.DBName, err
}

// dayDB is a day database as the server explains it.
type dayDB struct {
	DBName       string `json:"dbName"`
	CompanyID    string `json:"companyId"`
	RestaurantID string `json:"restaurantId"`
	BusinessDay  string `json:"businessDay"`
	State        string `json:"state"`
	AgeDays      int    `json:"ageDays"`
	Documents    int64  `json:"documents"`
	Archived     int64  `json:"archived"`
	Hold         *struct {
		Reason string `json:"reason"`
		Actor  string `json:"actor"`
	} `json:"hold"`
	Locks *struct {
		Lock1 lock `json:"lock1"`
		Lock2 lock `json:"lock2"`
	} `json:"locks"`
	Next struct {
		Action  string     `json:"action"`
		When    *time.Time `json:"when"`
		Because string     `json:"because"`
	} `json:"next"`
	Proof *struct {
		SHA256    string `json:"sha256"`
		Documents int64  `json:"documents"`
	} `json:"proof"`
}

type lock struct {
	Green   bool `json:"green"`
	Reasons []struct {
		Code   string   `json:"code"`
		Count  int64    `json:"count"`
		DocIDs []string `json:"docIds"`
	} `json:"reasons"`
}

// dayDBs lists every day database of the ledger.
func (a *adminAPI) dayDBs(ctx context.Context) ([]dayDB, error) {
	var all []dayDB
	for cursor := ""; ; {
		query := url.Values{"limit": {"500"}}
		if cursor != "" {
			query.Set("cursor", cursor)
		}
		var page struct {
			DayDBs     []dayDB `json:"dayDbs"`
			NextCursor *string `json:"nextCursor"`
		}
		if err := a.call(ctx, http.MethodGet, "/admin/day-dbs?"+query.Encode(), nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.DayDBs...)
		if page.NextCursor == nil {
			return all, nil
		}
		cursor = *page.NextCursor
	}
}
