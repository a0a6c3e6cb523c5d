package device

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// probeTimeout bounds the question of Probe.
const probeTimeout = 10 * time.Second

// Probe asks CouchDB whether it takes the proxy's word for who a device is:
// errNotTrusted if it does not, whatever its settings say.
func (p *Proxy) Probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.couch.JoinPath("_session").String(), nil)
	if err != nil {
		return err
	}
	const role = "rollingd-probe"
	p.identify(req.Header, "rollingd-probe", []string{role})
	res, err := p.reverse.Transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("ask CouchDB who a device is: %w", err)
	}
	defer res.Body.Close()
	var session struct {
		UserCtx struct{ Roles []string } `json:"userCtx"`
	}
	if err := json.NewDecoder(res.Body).Decode(&session); err != nil || !slices.Contains(session.UserCtx.Roles, role) {
		return errNotTrusted
	}
	return nil
}

// Issue signs a token from now on, a time of Postgres' clock: ErrNoIssuer.
func (p *Proxy) Issue(who Identity, now time.Time, ttl time.Duration) (token string, expiresAt time.Time, err error) {
	return p.Tokens.Issue(who, now, ttl)
}
