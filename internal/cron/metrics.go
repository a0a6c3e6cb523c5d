package cron

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	runs        *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	lastSuccess *prometheus.GaugeVec
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	m := &metrics{
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rollingd_cron_runs_total",
			Help: "Runs that ended in this process, by how they ended.",
		}, []string{"cron", "state"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "rollingd_cron_run_duration_seconds",
			Help:    "How long runs took.",
			Buckets: []float64{0.1, 1, 5, 15, 60, 300, 900, 3600, 10800},
		}, []string{"cron"}),
		lastSuccess: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rollingd_cron_last_success_timestamp_seconds",
			Help: "When a run last ended without any failure, in any replica, in the time zone where that was the longest ago.",
		}, []string{"cron"}),
	}
	if registerer != nil {
		registerer.MustRegister(m.runs, m.duration, m.lastSuccess)
	}
	return m
}

func (m *metrics) ended(job string, state State, elapsed time.Duration) {
	m.runs.WithLabelValues(job, string(state)).Inc()
	m.duration.WithLabelValues(job).Observe(elapsed.Seconds())
}
