package device

import (
	"context"
	"errors"
	"time"
)

// ErrTokenRevoked is returned for a token that was taken back.
var ErrTokenRevoked = errors.New("the device token was revoked")

// Authenticate returns what a token says outside of a request: ErrToken,
// ErrTokenExpired, ErrTokenRevoked, ErrNoKeys or ErrNotLoaded. The restaurant need
// not be registered.
func (p *Proxy) Authenticate(ctx context.Context, raw string) (Grant, error) {
	g, err := p.Tokens.Verify(ctx, raw, p.View.Now())
	if err != nil {
		return Grant{}, err
	}
	if _, err := p.Left(g); err != nil {
		return Grant{}, err
	}
	return g, nil
}

// Left returns how long the token of a grant still holds, from memory:
// ErrTokenExpired, ErrTokenRevoked or ErrNotLoaded.
func (p *Proxy) Left(g Grant) (time.Duration, error) {
	known, _, err := p.View.find(g.Restaurant)
	if err != nil {
		return 0, err
	}
	if known != nil && known.revokes(g) {
		return 0, ErrTokenRevoked
	}
	left := g.ExpiresAt.Sub(p.View.Now())
	if left <= 0 {
		return 0, ErrTokenExpired
	}
	return left, nil
}
