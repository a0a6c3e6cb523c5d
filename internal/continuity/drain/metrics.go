package drain

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are named as operators know them from the queue's.
type metrics struct {
	commands   *prometheus.CounterVec
	throughput prometheus.Gauge
	lag        prometheus.Gauge
	sealed     prometheus.Gauge
	cutovers   prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		commands: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "continuity_drain_commands_total",
			Help: "Commands that the drain has taken from the queue, by what has become of them.",
		}, []string{"outcome"}),
		throughput: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "continuity_drain_throughput",
			Help: "Commands acked per minute, in the last run that had any.",
		}),
		lag: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "continuity_replay_lag_seconds",
			Help: "Age of the oldest queued command that the primary has not applied, when the last run began.",
		}),
		sealed: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "continuity_seal_duration_seconds",
			Help: "How long the queue was sealed for the last cutover.",
		}),
		cutovers: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "continuity_cutovers_total",
			Help: "Cutovers from the queue to direct writes.",
		}),
	}
	reg.MustRegister(m.commands, m.throughput, m.lag, m.sealed, m.cutovers)
	return m
}

func (m *metrics) observe(r Result, elapsed time.Duration) {
	for o, n := range map[outcome]int{
		applied: r.Applied, deduplicated: r.Deduplicated, failed: r.Failed, snoozed: r.Snoozed, dead: r.Dead,
	} {
		m.commands.WithLabelValues(string(o)).Add(float64(n))
	}
	if acked := r.Applied + r.Deduplicated; acked > 0 {
		m.throughput.Set(float64(acked) / max(elapsed.Minutes(), time.Millisecond.Minutes()))
	}
	if r.Cutover != nil {
		m.sealed.Set(r.Cutover.Sealed.Duration().Seconds())
		m.cutovers.Inc()
	}
}
