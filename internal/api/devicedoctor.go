package api

import (
	"context"
	"strings"

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
