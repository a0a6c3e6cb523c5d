package app

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/internal/daemon"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/device"
	"github.com/rollingd/rollingd/internal/device/socket"
)

// devicePlane is what devices reach.
type devicePlane struct {
	*device.Proxy
	sockets *socket.Server
}

// startDevicePlane returns the device plane, nil if it is off, with its view of
// the ledger loaded and followed.
func (a *App) startDevicePlane(ctx context.Context, pool *pgxpool.Pool, metrics *prometheus.Registry) (*devicePlane, error) {
	opts := a.opts
	if !opts.devicePlane() {
		return nil, nil
	}
	// The plane lives until it is stopped, not until the start is done.
	living, cancel := context.WithCancel(context.WithoutCancel(ctx))
	tokens, err := device.NewTokens(living, device.TokenOptions{
		Secret:  opts.DeviceJWTSecret,
		JWKSURL: opts.DeviceJWKSURL,
		Logger:  opts.Logger,
	})
	if err != nil {
		cancel()
		return nil, err
	}
	view := device.NewView()
	if err := view.LoadAll(ctx, pool); err != nil {
		cancel()
		return nil, err
	}
	proxy, err := device.New(device.Options{
		CouchURL:    opts.CouchURL,
		ProxySecret: opts.CouchProxySecret,
		Env:         opts.Env,
		Tokens:      tokens,
		View:        view,
		Pool:        pool,
		WriteLimit:  opts.DeviceWriteLimit,
		Rate:        opts.DeviceRate,
		Origins:     opts.deviceOrigins(),
		Metrics:     metrics,
		Logger:      opts.Logger,
	})
	if err != nil {
		cancel()
		return nil, err
	}
	sockets := socket.New(socket.Options{
		Tokens:  gate{proxy},
		Source:  socket.NewLedger(pool),
		Metrics: metrics,
		Logger:  opts.Logger,
		Origins: opts.deviceOrigins(),
	})
	view.Tell(func(named []daydb.Restaurant) {
		if named == nil {
			named = []daydb.Restaurant{{}}
		}
		for _, r := range named {
			sockets.Revoked(r.CompanyID, r.RestaurantID)
			sockets.Changed(r.CompanyID, r.RestaurantID)
		}
	})
	var running sync.WaitGroup
	running.Go(func() { view.Follow(living, pool, opts.Logger) })
	running.Go(func() { proxy.Watch(living) })
	a.OnStop("device plane", func(ctx context.Context) error {
		cancel()
		defer proxy.Close()
		return errors.Join(sockets.Close(ctx), daemon.Within(ctx, running.Wait))
	})
	return &devicePlane{Proxy: proxy, sockets: sockets}, nil
}

// shut ends what would keep the HTTP server from shutting down.
func (p *devicePlane) shut(ctx context.Context) error {
	p.Shut()
	return p.sockets.Close(ctx)
}

// gate judges the token of a socket like that of a request.
type gate struct{ proxy *device.Proxy }

// Admit is asked when a device connects or sends a fresh token.
func (g gate) Admit(ctx context.Context, token string) (socket.Pass, error) {
	grant, err := g.proxy.Authenticate(ctx, token)
	if err != nil {
		return socket.Pass{}, ofSocket(err)
	}
	return socket.Pass{
		Restaurant: grant.Restaurant,
		DeviceID:   grant.DeviceID,
		IssuedAt:   grant.IssuedAt,
		ExpiresAt:  grant.ExpiresAt,
	}, nil
}

// Left is asked of a device that is connected.
func (g gate) Left(p socket.Pass) (time.Duration, error) {
	left, err := g.proxy.Left(device.Grant{
		Identity:  device.Identity{Restaurant: p.Restaurant, DeviceID: p.DeviceID},
		IssuedAt:  p.IssuedAt,
		ExpiresAt: p.ExpiresAt,
	})
	return left, ofSocket(err)
}

// ofSocket translates what the proxy says of a token.
func ofSocket(err error) error {
	switch {
	case errors.Is(err, device.ErrTokenExpired):
		return socket.ErrExpired
	case errors.Is(err, device.ErrToken), errors.Is(err, device.ErrTokenRevoked):
		return socket.ErrRefused
	}
	return err
}

// socketPath is where Socket.IO's clients connect.
const socketPath = "/socket.io/"

// besideDevices sends to the proxy what is the device plane's by the path as it
// was sent, before anything cleans or unescapes it, and the rest to others.
func besideDevices(plane *devicePlane, others http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		onSocket := strings.HasPrefix(r.URL.EscapedPath(), socketPath)
		switch {
		case !onSocket && !device.Covers(r):
			others.ServeHTTP(w, r)
		case plane == nil:
			device.AnswerOff(w)
		case onSocket:
			plane.sockets.ServeHTTP(w, r)
		default:
			plane.ServeHTTP(w, r)
		}
	})
}
