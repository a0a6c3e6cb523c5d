package app

import (
	"context"
	"net/http"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/internal/device"
)

// startDevicePlane returns the proxy of the devices, nil if the plane is off,
// with its view of the ledger loaded and followed.
func (a *App) startDevicePlane(ctx context.Context, pool *pgxpool.Pool, metrics *prometheus.Registry) (*device.Proxy, error) {
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
		WriteLimit:  opts.DeviceWriteLimit,
		Rate:        opts.DeviceRate,
		Metrics:     metrics,
		Logger:      opts.Logger,
	})
	if err != nil {
		cancel()
		return nil, err
	}
	var running sync.WaitGroup
	running.Go(func() { view.Follow(living, pool, opts.Logger) })
	running.Go(func() { proxy.Watch(living) })
	a.onStop("device plane", func(ctx context.Context) error {
		cancel()
		defer proxy.Close()
		return within(ctx, running.Wait)
	})
	return proxy, nil
}

// besideDevices sends to the proxy what is the device plane's by the path as it
// was sent, before anything cleans or unescapes it, and the rest to others.
func besideDevices(plane *device.Proxy, others http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !device.Covers(r):
			others.ServeHTTP(w, r)
		case plane == nil:
			device.AnswerOff(w)
		default:
			plane.ServeHTTP(w, r)
		}
	})
}
