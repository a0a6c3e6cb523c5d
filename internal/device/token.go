package device

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"regexp"
	"time"

	"github.com/MicahParks/keyfunc/v3"
	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/time/rate"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/daydb"
)

// Sentinels of tokens.
var (
	// ErrToken: the token is not one of ours, or its claims name no device. The
	// text around it says which, and never repeats any of the token.
	ErrToken = errors.New("the device token is not valid")
	// ErrTokenExpired: the token was good once.
	ErrTokenExpired = errors.New("the device token has expired")
	// ErrNoKeys: the published keys could not be fetched yet, so that nobody can say
	// whether the token is good.
	ErrNoKeys = errors.New("the keys for device tokens are not there yet")
	// ErrNoIssuer: tokens are verified by published keys, and issued elsewhere.
	ErrNoIssuer = errors.New("this server issues no device tokens")
)

const (
	// MinSecretLength is the least length in bytes of the secret for HS256: as
	// many as the hash has.
	MinSecretLength = 32
	// maxTokenLength bounds what is parsed of a header.
	maxTokenLength = 8 << 10
	// jwksRefresh is how often published keys are fetched. A key that has been
	// taken back counts until then; one that is new is fetched when it is first seen.
	jwksRefresh = 10 * time.Minute
	// jwksUnknownKey bounds the fetches that tokens with made-up key ids cause.
	jwksUnknownKey = 5 * time.Second
	jwksTimeout    = 5 * time.Second
	// jwksWait is how long a request waits for such a fetch to be its turn.
	jwksWait = time.Second
)

// Identity names a device of a restaurant.
type Identity struct {
	daydb.Restaurant
	DeviceID string
}

var deviceFormat = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// ValidDeviceID reports whether id can name a device: it is part of the name
// under which CouchDB knows the device, and of log lines.
func ValidDeviceID(id string) bool { return deviceFormat.MatchString(id) }

// user is the device's name towards CouchDB.
func (i Identity) user() string { return "device:" + i.Restaurant.String() + "/" + i.DeviceID }

// Grant is what a verified token says.
type Grant struct {
	Identity
	// IssuedAt is zero for a token that does not say; any revocation covers it.
	IssuedAt  time.Time
	ExpiresAt time.Time
}

// Tokens verifies device tokens, and issues them if it has a secret.
type Tokens struct {
	secret []byte
	jwks   keyfunc.Keyfunc
	parser *jwt.Parser
}

// TokenOptions say who signs the tokens; at least one is set.
type TokenOptions struct {
	// Secret for HS256, of MinSecretLength bytes and more.
	Secret string
	// JWKSURL publishes the keys for ES256, RS256 and EdDSA.
	JWKSURL string
	Logger  *slog.Logger
}

// NewTokens returns the verifier. The keys of a JWKS URL are fetched at once and
// then by a goroutine that ends with ctx; a server that does not answer is asked
// again.
func NewTokens(ctx context.Context, opts TokenOptions) (*Tokens, error) {
	t := &Tokens{secret: []byte(opts.Secret)}
	var methods []string
	if opts.Secret != "" {
		if len(opts.Secret) < MinSecretLength {
			return nil, fmt.Errorf("the secret for device tokens is shorter than %d bytes", MinSecretLength)
		}
		methods = append(methods, jwt.SigningMethodHS256.Alg())
	}
	if opts.JWKSURL != "" {
		keys, err := keyfunc.NewDefaultOverrideCtx(ctx, []string{opts.JWKSURL}, keyfunc.Override{
			HTTPTimeout:       jwksTimeout,
			RefreshInterval:   jwksRefresh,
			RefreshUnknownKID: rate.NewLimiter(rate.Every(jwksUnknownKey), 1),
			RateLimitWaitMax:  jwksWait,
			RefreshErrorHandlerFunc: func(string) func(context.Context, error) {
				return func(ctx context.Context, err error) {
					opts.Logger.WarnContext(ctx, "keys for device tokens not fetched", "error", withoutURL(err))
				}
			},
		})
		if err != nil {
			return nil, fmt.Errorf("keys for device tokens: %w", err)
		}
		t.jwks = keys
		methods = append(methods, jwt.SigningMethodES256.Alg(), jwt.SigningMethodRS256.Alg(), jwt.SigningMethodEdDSA.Alg())
	}
	if len(methods) == 0 {
		return nil, errors.New("device tokens need a secret or a JWKS URL")
	}
	// The times are checked below, by a clock that is not this process's.
	t.parser = jwt.NewParser(jwt.WithValidMethods(methods), jwt.WithoutClaimsValidation())
	return t, nil
}

// withoutURL drops the address, which may hold a key of its own.
func withoutURL(err error) error {
	if urlErr := (*url.Error)(nil); errors.As(err, &urlErr) {
		return urlErr.Err
	}
	return err
}

// names are the claims that name a device.
type names struct {
	CompanyID    string `json:"companyId"`
	RestaurantID string `json:"restaurantId"`
	DeviceID     string `json:"deviceId"`
}

// claims are what is read of a token. Supabase Auth keeps what the owner of the
// project has set, and its user cannot change, under app_metadata.
type claims struct {
	jwt.RegisteredClaims
	names
	AppMetadata *names `json:"app_metadata"`
	// IssuedAtSeconds keeps the fraction, so that a token that was issued in the
	// second of a revocation is on the right side of it.
	IssuedAtSeconds *float64 `json:"iat"`
}

// Verify checks a token at a time of Postgres' clock: ErrToken, ErrTokenExpired or
// ErrNoKeys.
func (t *Tokens) Verify(ctx context.Context, raw string, now time.Time) (Grant, error) {
	if len(raw) > maxTokenLength {
		return Grant{}, fmt.Errorf("%w: it is too long", ErrToken)
	}
	var c claims
	_, err := t.parser.ParseWithClaims(raw, &c, t.key(ctx))
	if errors.Is(err, ErrNoKeys) {
		return Grant{}, ErrNoKeys
	}
	if err != nil {
		return Grant{}, fmt.Errorf("%w: %s", ErrToken, complaint(err))
	}
	switch {
	case c.ExpiresAt == nil:
		return Grant{}, fmt.Errorf("%w: it has no exp", ErrToken)
	case !now.Before(c.ExpiresAt.Time):
		return Grant{}, ErrTokenExpired
	case c.NotBefore != nil && now.Before(c.NotBefore.Time):
		return Grant{}, fmt.Errorf("%w: it is not valid yet", ErrToken)
	}
	who, err := c.identity()
	if err != nil {
		return Grant{}, err
	}
	g := Grant{Identity: who, ExpiresAt: c.ExpiresAt.Time}
	if c.IssuedAtSeconds != nil {
		g.IssuedAt = time.UnixMicro(int64(*c.IssuedAtSeconds * 1e6))
	}
	return g, nil
}

// key chooses by the algorithm, which the parser has found to be an allowed one:
// a published key never serves as the secret.
func (t *Tokens) key(ctx context.Context) jwt.Keyfunc {
	return func(token *jwt.Token) (any, error) {
		if token.Method == jwt.SigningMethodHS256 {
			return t.secret, nil
		}
		key, err := t.jwks.KeyfuncCtx(ctx)(token)
		if err == nil {
			return key, nil
		}
		if known, readErr := t.jwks.Storage().KeyReadAll(ctx); readErr == nil && len(known) == 0 {
			return nil, ErrNoKeys
		}
		return nil, err
	}
}

// complaint says what is wrong in words of ours.
func complaint(err error) string {
	switch {
	case errors.Is(err, jwt.ErrTokenMalformed):
		return "it is no JWT with the claims of a device"
	case errors.Is(err, jwt.ErrTokenSignatureInvalid):
		return "its signature or algorithm is wrong"
	default:
		return "its key is not known"
	}
}

// identity takes the names from the token itself or from app_metadata. Both may
// be there, but not say different things.
func (c claims) identity() (Identity, error) {
	n := c.names
	if c.AppMetadata != nil && *c.AppMetadata != (names{}) {
		if n != (names{}) && n != *c.AppMetadata {
			return Identity{}, fmt.Errorf("%w: its claims and its app_metadata name different devices", ErrToken)
		}
		n = *c.AppMetadata
	}
	for claim, ok := range map[string]bool{
		"companyId":    contracts.ValidID(n.CompanyID),
		"restaurantId": contracts.ValidID(n.RestaurantID),
		"deviceId":     ValidDeviceID(n.DeviceID),
	} {
		if !ok {
			return Identity{}, fmt.Errorf("%w: its claim %s is missing or out of form", ErrToken, claim)
		}
	}
	return Identity{
		Restaurant: daydb.Restaurant{CompanyID: n.CompanyID, RestaurantID: n.RestaurantID},
		DeviceID:   n.DeviceID,
	}, nil
}

// Issue returns a token from now on for a while, or ErrNoIssuer. Now is a time of
// Postgres' clock. The expiry is in whole seconds, rounded down.
func (t *Tokens) Issue(who Identity, now time.Time, ttl time.Duration) (token string, expiresAt time.Time, err error) {
	if len(t.secret) == 0 {
		return "", time.Time{}, ErrNoIssuer
	}
	expiresAt = now.Add(ttl).Truncate(time.Second).UTC()
	token, err = jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"companyId":    who.CompanyID,
		"restaurantId": who.RestaurantID,
		"deviceId":     who.DeviceID,
		"iat":          json.Number(fmt.Sprintf("%d.%06d", now.Unix(), now.Nanosecond()/1000)),
		"exp":          expiresAt.Unix(),
	}).SignedString(t.secret)
	return token, expiresAt, err
}
