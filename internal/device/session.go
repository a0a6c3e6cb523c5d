package device

import (
	"context"
	"errors"
	"time"
)

// ErrTokenRevoked is returned for a token that was taken back.
var ErrTokenRevoked = errors.New("the device token was revoked")

// Authenticate returns what a token says outside of a request, and how long it
// still holds: ErrToken, ErrTokenExpired, ErrTokenRevoked or ErrNotLoaded. The
// restaurant need not be registered.
func (p *Proxy) Authenticate(ctx context.Context, raw string) (g Grant, left time.Duration, err error) {
	now := p.View.Now()
	g, err = p.Tokens.Verify(ctx, raw, now)
	if err != nil {
		return Grant{}, 0, err
	}
	known, _, err := p.View.find(g.Restaurant)
	if err != nil {
		return Grant{}, 0, err
	}
	if known != nil && known.revokes(g) {
		return Grant{}, 0, ErrTokenRevoked
	}
	return g, g.ExpiresAt.Sub(now), nil
}
