package api

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newMetrics(registry *prometheus.Registry) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rollingd_api_requests_total",
			Help: "Requests of the administration API, by route and status.",
		}, []string{"method", "route", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "rollingd_api_request_duration_seconds",
			Help:    "How long requests took. A run that is waited for takes as long as the run.",
			Buckets: []float64{0.005, 0.025, 0.1, 0.5, 2.5, 10, 60},
		}, []string{"method", "route"}),
	}
	registry.MustRegister(m.requests, m.duration)
	return m
}

func (a *API) serveMetrics() echo.HandlerFunc {
	return echo.WrapHandler(promhttp.HandlerFor(a.Metrics, promhttp.HandlerOpts{}))
}

// noRoute stands for requests that match no route, so that a scanner's paths do
// not become labels.
const noRoute = "none"

const requestIDHeader = echo.HeaderXRequestID

func requestID(c echo.Context) string { return c.Response().Header().Get(requestIDHeader) }

// observe gives every request an id, counts it and logs it: by its route, never
// with its query or its headers. What only reads is logged at debug.
func (a *API) observe(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		began := time.Now()
		c.Response().Header().Set(requestIDHeader, rand.Text())
		if err := next(c); err != nil {
			c.Error(err)
		}
		elapsed, status := time.Since(began), c.Response().Status
		method, path := c.Request().Method, c.Path()
		if path == "" {
			path = noRoute
		}
		a.metrics.requests.WithLabelValues(knownMethod(method), path, strconv.Itoa(status)).Inc()
		a.metrics.duration.WithLabelValues(knownMethod(method), path).Observe(elapsed.Seconds())
		level := slog.LevelInfo
		if (method == http.MethodGet || method == http.MethodHead) && status < http.StatusInternalServerError {
			level = slog.LevelDebug
		}
		a.Logger.Log(c.Request().Context(), level, "request",
			"method", method, "route", path, "status", status, "actor", callerOf(c).actor,
			"request_id", requestID(c), "elapsed", elapsed)
		return nil
	}
}

// knownMethod keeps what a client makes up out of the labels.
func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete:
		return method
	}
	return "other"
}

// recoverPanic makes a panic of a handler an internal error.
func (a *API) recoverPanic(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if e, ok := p.(error); ok && errors.Is(e, http.ErrAbortHandler) {
				panic(p)
			}
			a.Logger.ErrorContext(c.Request().Context(), "handler panicked",
				"route", c.Path(), "request_id", requestID(c), "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}()
		return next(c)
	}
}
