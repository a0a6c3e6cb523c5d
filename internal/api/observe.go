package api

import (
	"crypto/rand"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rollingd/rollingd/internal/web"
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

const requestIDHeader = echo.HeaderXRequestID

func requestID(c echo.Context) string { return c.Response().Header().Get(requestIDHeader) }

// identify is a request's id for the log.
func identify(c echo.Context) slog.Attr { return slog.String("request_id", requestID(c)) }

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
		method, route := web.Labels(c)
		a.metrics.requests.WithLabelValues(method, route, strconv.Itoa(status)).Inc()
		a.metrics.duration.WithLabelValues(method, route).Observe(elapsed.Seconds())
		level := slog.LevelInfo
		if web.OnlyReads(method) && status < http.StatusInternalServerError {
			level = slog.LevelDebug
		}
		a.Logger.Log(c.Request().Context(), level, "request",
			"method", method, "route", route, "status", status, "actor", callerOf(c).actor,
			"request_id", requestID(c), "elapsed", elapsed)
		return nil
	}
}
