package device

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/pg"
)

// ReportPath takes, by PUT, what a device holds and could not deliver yet:
//
//	{"sequence": 7, "unsynced": {"20261130": 3}}
//
// The number of documents of each day replaces what the device said before. The
// device counts its reports; one that comes too late is answered 409 with the
// sequence number that the next one has to exceed.
const ReportPath = "/device/unsynced"

const (
	maxReport     = 64 << 10
	maxReportDays = 400
)

// report is the body of a device's report.
type report struct {
	Sequence int64                `json:"sequence"`
	Unsynced map[daydb.Day]uint32 `json:"unsynced"`
}

// takeReport answers a device that says what it has not delivered. Days wait
// for it; a report is not in the hot path, and goes to Postgres.
func (p *Proxy) takeReport(w *recorder, r *http.Request) {
	if !p.View.Loaded() || p.shut.Load() {
		p.refuse(w, r, later(refusedNotReady, "the server starts or stops; try again"))
		return
	}
	grant, refused := p.authenticate(r)
	if refused == nil {
		_, _, refused = p.View.admitDevice(grant)
	}
	if refused != nil {
		p.refuse(w, r, refused)
		return
	}
	done, ok := p.limits.take(grant.Identity)
	if !ok {
		p.refuse(w, r, tooMany())
		return
	}
	defer done()
	said, refused := readReport(w, r)
	if refused != nil {
		p.refuse(w, r, refused)
		return
	}
	documents := make(map[daydb.Day]int64, len(said.Unsynced))
	for day, n := range said.Unsynced {
		if day.IsZero() {
			p.refuse(w, r, badRequest(refusedReport, "a business day is YYYYMMDD"))
			return
		}
		if n > 0 {
			documents[day] = int64(n)
		}
	}
	ctx := r.Context()
	err := pg.WithTx(ctx, p.Pool, func(tx pgx.Tx) error {
		return daydb.ReportUnsynced(ctx, tx, grant.Restaurant, grant.DeviceID, said.Sequence, documents)
	})
	var stale *daydb.StaleReportError
	switch {
	case errors.As(err, &stale):
		writeJSON(w, http.StatusConflict, map[string]any{
			"error": "conflict", "reason": stale.Error(), "code": refusedStale, "sequence": stale.Sequence,
		})
	case err != nil:
		p.Logger.WarnContext(ctx, "report of a device failed", "company_id", grant.CompanyID,
			"restaurant_id", grant.RestaurantID, "device_id", grant.DeviceID, "error", err)
		p.refuse(w, r, later(refusedNotReady, "the report could not be stored; send it again"))
	default:
		writeJSON(w, http.StatusOK, map[string]any{"ok": true})
	}
}

func readReport(w http.ResponseWriter, r *http.Request) (report, *refusal) {
	if r.Method != http.MethodPut {
		w.Header().Set("Allow", http.MethodPut)
		return report{}, &refusal{status: http.StatusMethodNotAllowed, Error: "method_not_allowed", Reason: "only PUT is allowed", Code: refusedRoute}
	}
	var said report
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxReport))
	dec.DisallowUnknownFields()
	err := dec.Decode(&said)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return report{}, &refusal{status: http.StatusRequestTimeout, Error: "timeout", Reason: "the request took longer than it may", Code: refusedTimeout}
	}
	if err != nil || dec.More() {
		return report{}, badRequest(refusedReport, `send {"sequence": 7, "unsynced": {"20261130": 3}}`)
	}
	if said.Sequence < 1 || len(said.Unsynced) > maxReportDays {
		return report{}, badRequest(refusedReport, fmt.Sprintf("sequence counts from 1, and there are at most %d days", maxReportDays))
	}
	return said, nil
}
