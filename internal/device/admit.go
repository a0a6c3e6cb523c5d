package device

import (
	"fmt"
	"net/http"
	"time"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/flags"
)

// target is the database that a request is let through to.
type target struct {
	name string
	// roles are those of the device in it.
	roles []string
	// deliverOnly lets in what pushes to it, and nothing that reads documents.
	deliverOnly bool
}

// LegacyRole is the role under which devices reach a legacy database, beside that
// of their restaurant. A legacy database is shared and was secured by others:
// whoever runs it adds this role to its members.
const LegacyRole = "legacy"

// retryAfter is what a device that comes too early is told to wait.
const retryAfter = 5 * time.Second

// The codes of refusals that a device's software goes by.
const (
	refusedUnknown     = "restaurant_unknown"
	refusedNotRouted   = "not_routed"
	refusedRouted      = "legacy_retired"
	refusedNotBegun    = "day_not_begun"
	refusedSealed      = "day_sealed"
	refusedDropped     = "day_dropped"
	refusedUnknownDay  = "day_unknown"
	refusedNotReady    = "not_ready"
	refusedToken       = "token_invalid"
	refusedExpired     = "token_expired"
	refusedRevoked     = "token_revoked"
	refusedClosed      = "database_closed"
	refusedRoute       = "not_allowed"
	refusedRate        = "rate_limited"
	refusedTimeout     = "write_timeout"
	refusedUnavailable = "couchdb_unavailable"
	refusedReport      = "report_invalid"
	refusedStale       = "report_stale"
)

// admit decides whether a device may reach the database of a suffix, and names
// it. It is asked at every request, and again of streams when the view changes.
//
// No refusal is a 404, which PouchDB answers with the creation of the database.
// What will never be there is a 403: replication ends with the reason, its
// checkpoint unwritten, and the documents stay on the device. What will be there
// soon is a 503, which live replication waits for.
func (v *View) admit(g Grant, suffix, env string) (target, *refusal) {
	known, companyFlags, refused := v.admitDevice(g)
	if refused != nil {
		return target{}, refused
	}
	kind, dayText, err := contracts.ParseSuffix(suffix)
	if err != nil {
		return target{}, forbidden(refusedRoute, "there is no such database here: core, daily_YYYYMMDD or legacy")
	}
	routed := companyFlags.RollingDb && companyFlags.DeviceRouted
	if kind == contracts.KindLegacy {
		return target{name: known.legacyDB, roles: []string{LegacyRole, g.Role()}, deliverOnly: routed}, nil
	}
	if !routed {
		return target{}, forbidden(refusedNotRouted, "the company's devices use the legacy database; documents stay on the device")
	}
	t := target{roles: []string{g.Role()}}
	if kind == contracts.KindCore {
		t.name, err = contracts.CoreName(env, g.CompanyID, g.RestaurantID)
	} else {
		t.name, err = contracts.DailyName(env, g.CompanyID, g.RestaurantID, dayText)
	}
	if err != nil {
		return target{}, forbidden(refusedRoute, "there is no such database here")
	}
	if kind == contracts.KindDaily {
		if refused := known.admitDay(dayText); refused != nil {
			return target{}, refused
		}
	}
	return t, nil
}

// admitDevice returns what is known of the restaurant of a device that may do
// anything at all.
func (v *View) admitDevice(g Grant) (*restaurant, flags.Flags, *refusal) {
	known, companyFlags, err := v.find(g.Restaurant)
	switch {
	case err != nil:
		return nil, flags.Flags{}, later(refusedNotReady, "the server has just started; try again")
	case known == nil:
		return nil, flags.Flags{}, forbidden(refusedUnknown, "the restaurant of this token is not registered")
	case known.revokes(g):
		return nil, flags.Flags{}, unauthorized(refusedRevoked, "the device token was revoked")
	}
	return known, companyFlags, nil
}

// revokes reports whether a token was issued before the last revocation that
// covers it.
func (r *restaurant) revokes(g Grant) bool {
	until := latest(r.revoked, r.devices[g.DeviceID])
	return !until.IsZero() && !g.IssuedAt.After(until)
}

func (r *restaurant) admitDay(text string) *refusal {
	date, err := daydb.ParseDay(text)
	if err != nil {
		return forbidden(refusedUnknownDay, "there is no such business day")
	}
	d, ok := r.days[date]
	switch {
	case !ok && r.newest.Before(date), ok && d.state == daydb.Prewarmed:
		return later(refusedNotBegun, fmt.Sprintf("business day %s has not begun; documents stay on the device", text))
	case !ok:
		return forbidden(refusedUnknownDay, fmt.Sprintf("business day %s has no database; documents stay on the device and belong in the current day", text))
	case d.state == daydb.Dropped:
		return forbidden(refusedDropped, fmt.Sprintf("business day %s is archived and was dropped; documents stay on the device and belong in the current day", text))
	case d.state == daydb.Droppable || d.closed:
		return forbidden(refusedSealed, fmt.Sprintf("business day %s is sealed; documents stay on the device and belong in the current day", text))
	}
	return nil
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// refusal is an answer in CouchDB's shape. PouchDB goes by the error: unauthorized
// and forbidden end a replication, anything else is tried again.
type refusal struct {
	status int
	Error  string `json:"error"`
	Reason string `json:"reason"`
	// Code is stable; the device's software goes by it.
	Code       string `json:"code"`
	retryAfter time.Duration
}

func forbidden(code, reason string) *refusal {
	return &refusal{status: http.StatusForbidden, Error: "forbidden", Reason: reason, Code: code}
}

func unauthorized(code, reason string) *refusal {
	return &refusal{status: http.StatusUnauthorized, Error: "unauthorized", Reason: reason, Code: code}
}

func badRequest(code, reason string) *refusal {
	return &refusal{status: http.StatusBadRequest, Error: "bad_request", Reason: reason, Code: code}
}

func tooMany() *refusal {
	return &refusal{
		status:     http.StatusTooManyRequests,
		Error:      "too_many_requests",
		Reason:     "the device makes more requests than it may; try again in a moment",
		Code:       refusedRate,
		retryAfter: time.Second,
	}
}

func later(code, reason string) *refusal {
	return &refusal{status: http.StatusServiceUnavailable, Error: "service_unavailable", Reason: reason, Code: code, retryAfter: retryAfter}
}
