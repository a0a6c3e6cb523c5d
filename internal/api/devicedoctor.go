package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/device"
)

// checkProxyAuth says which setting of CouchDB keeps the device plane from
// working. While the plane is off it only informs.
func (a *API) checkProxyAuth(ctx context.Context) check {
	const name = "couchdb proxy authentication"
	missing, open, err := a.missingProxySettings(ctx)
	if a.Devices != nil {
		if err := a.Devices.Probe(ctx); err != nil {
			advice := "set [chttpd_auth] secret to what ROLLINGD_COUCHDB_PROXY_SECRET is, or the other way round"
			if len(missing) > 0 {
				advice = strings.Join(missing, "; ")
			}
			return fail(name, advice, "%v", err)
		}
	}
	switch {
	case err != nil:
		return ok(name, "its settings cannot be read")
	case open:
		return warn(name, "set [chttpd_auth] proxy_use_secret = true", "on without a secret: anybody who reaches CouchDB can be anybody")
	case a.Devices != nil:
		return ok(name, "on, and CouchDB takes the proxy's word; its role in legacy databases is %s", device.LegacyRole)
	case len(missing) > 0:
		return ok(name, "off; the device plane needs it: %s", strings.Join(missing, "; "))
	}
	return ok(name, "on; the device plane is off")
}

// missingProxySettings says what to set, and whether anybody can be anybody.
func (a *API) missingProxySettings(ctx context.Context) (missing []string, open bool, err error) {
	handlers, err := a.Couch.Config(ctx, "chttpd", "authentication_handlers")
	if err != nil {
		return nil, false, err
	}
	secret, err := a.Couch.Config(ctx, "chttpd_auth", "secret")
	if err != nil {
		return nil, false, err
	}
	useSecret, err := a.Couch.Config(ctx, "chttpd_auth", "proxy_use_secret")
	if err != nil {
		return nil, false, err
	}
	on := strings.Contains(handlers, "proxy_authentication_handler")
	if !on {
		missing = append(missing, "add {chttpd_auth, proxy_authentication_handler} to [chttpd] authentication_handlers")
	}
	if secret == "" {
		missing = append(missing, "set [chttpd_auth] secret")
	}
	return missing, on && useSecret == "false", nil
}

// checkLegacyRoles looks for legacy databases that do not admit the tills of
// their restaurants: who secured them knew nothing of the proxy. And for those
// that somebody has named and that are not there: nothing tells a typing error from
// a restaurant that began without one, and its tills are routed to an empty
// catalogue.
func (a *API) checkLegacyRoles(ctx context.Context) check {
	const name = "legacy databases"
	all, err := daydb.Restaurants(ctx, a.Pool)
	if err != nil {
		return fail(name, "", "restaurants cannot be listed: %v", err)
	}
	roles := make(map[string][]string)
	for _, r := range all {
		if r.Active {
			roles[r.LegacyDB] = append(roles[r.LegacyDB], r.Role())
		}
	}
	var closed, absent []string
	for db, needed := range roles {
		security, err := a.Couch.Security(ctx, db)
		if errors.Is(err, couch.ErrNotFound) {
			if db != contracts.LegacyName(a.Env) { // The default, of a fleet that may have none.
				absent = append(absent, db)
			}
			continue
		}
		if err != nil {
			return warn(name, "see CouchDB's log", "_security of %s cannot be read: %v", db, err)
		}
		if !admits(security.Members, needed) {
			closed = append(closed, db)
		}
	}
	if len(closed) > 0 {
		slices.Sort(closed)
		return warn(name, fmt.Sprintf("add the role %s to members.roles in their _security", device.LegacyRole),
			"do not admit tills that come through the proxy: %s", some(closed, ""))
	}
	if len(absent) > 0 {
		slices.Sort(absent)
		return warn(name, "if they are typing errors, `rollingd restaurants put --legacy-db` corrects them",
			"are not in CouchDB, so their restaurants begin with an empty catalogue: %s", some(absent, ""))
	}
	return ok(name, "admit the tills of their restaurants")
}

// admits reports whether members let in a device of each role. Members that are
// empty let in everybody.
func admits(members couch.Principals, roles []string) bool {
	if len(members.Names)+len(members.Roles) == 0 || slices.Contains(members.Roles, device.LegacyRole) {
		return true
	}
	return !slices.ContainsFunc(roles, func(role string) bool { return !slices.Contains(members.Roles, role) })
}
