package publish

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	events    prometheus.Counter
	snapshots prometheus.Counter
	blocked   prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		events: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "continuity_events_published_total",
			Help: "Events that the hosted outbox has taken.",
		}),
		snapshots: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "continuity_snapshots_published_total",
			Help: "Snapshots that were published.",
		}),
		blocked: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "continuity_events_blocked_aggregates",
			Help: "Aggregates of which the hosted outbox refuses an event.",
		}),
	}
	reg.MustRegister(m.events, m.snapshots, m.blocked)
	return m
}

func (m *metrics) observe(r Result) {
	m.events.Add(float64(r.Events))
	m.snapshots.Add(float64(r.Snapshots))
	m.blocked.Set(float64(r.Blocked))
}
