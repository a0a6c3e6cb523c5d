package edge

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/contracts"
)

type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	webhooks *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rollingd_edge_requests_total",
			Help: "Requests at the edge, by route and status.",
		}, []string{"method", "route", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "rollingd_edge_request_duration_seconds",
			Help:    "How long requests took.",
			Buckets: []float64{0.005, 0.025, 0.1, 0.5, 1.5, 3, 6, 15},
		}, []string{"method", "route"}),
		webhooks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "continuity_webhooks_total",
			Help: "Webhooks of payment providers, by what became of them.",
		}, []string{"provider", "outcome"}),
	}
	registerer.MustRegister(m.requests, m.duration, m.webhooks)
	return m
}

type watchMetrics struct {
	depth       *prometheus.GaugeVec
	age         prometheus.Gauge
	snapshotAge prometheus.Gauge
	dead        prometheus.Gauge
	blocked     prometheus.Gauge
	expired     prometheus.Gauge
}

func newWatchMetrics(registerer prometheus.Registerer) *watchMetrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &watchMetrics{
		depth: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "continuity_queue_depth",
			Help: "Commands in the queue, by status.",
		}, []string{"status"}),
		age:         gauge("continuity_queue_age_seconds", "Age of the oldest command that is not settled."),
		snapshotAge: gauge("continuity_snapshot_freshness_seconds", "Age of the newest snapshot."),
		dead:        gauge("continuity_dead_unacknowledged", "Dead commands that nobody has decided on."),
		blocked:     gauge("continuity_blocked_aggregates", "Aggregates that a dead command keeps back."),
		expired:     gauge("continuity_expired_leases", "Claimed commands whose lease is over."),
	}
	registerer.MustRegister(m.depth, m.age, m.snapshotAge, m.dead, m.blocked, m.expired)
	return m
}

func (m *watchMetrics) set(s Stats) {
	for _, status := range contracts.CommandStatuses() {
		m.depth.WithLabelValues(string(status)).Set(float64(s.Depth[status]))
	}
	m.age.Set(s.OldestPending.Seconds())
	if s.SnapshotAge != nil {
		m.snapshotAge.Set(s.SnapshotAge.Seconds())
	}
	m.dead.Set(float64(s.Dead))
	m.blocked.Set(float64(s.Blocked))
	m.expired.Set(float64(s.ExpiredLeases))
}
