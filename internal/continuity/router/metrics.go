package router

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/internal/continuity"
)

// Where a read was answered from, and how a write ended that was neither taken
// nor refused with a code of the contract.
const (
	sourcePrimary   = "primary"
	sourceSnapshot  = "snapshot"
	sourceNone      = "none"
	outcomeRefused  = "refused"
	outcomeHungUp   = "hung_up"
	outcomeInternal = "internal"
)

type metrics struct {
	reads   *prometheus.CounterVec
	writes  *prometheus.CounterVec
	probes  *prometheus.CounterVec
	shadows *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer, r *Router) *metrics {
	m := &metrics{
		reads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "continuity_reads_total",
			Help: "Reads at the edge, by what answered them.",
		}, []string{"source"}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "continuity_writes_total",
			Help: "Commands at the edge, by where they went or the code of their refusal.",
		}, []string{"outcome"}),
		probes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "continuity_probes_total",
			Help: "Probes of the primary, by how they came out.",
		}, []string{"result"}),
		shadows: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "continuity_shadow_total",
			Help: "What would have been done with calls that failed, while the router only looks on.",
		}, []string{"would"}),
	}
	registerer.MustRegister(m.reads, m.writes, m.probes, m.shadows,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "continuity_circuit_state",
			Help: "0 PRIMARY, 1 DEGRADED, 2 RECOVERING.",
		}, func() float64 { return float64(r.breaker.State()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "continuity_epoch",
			Help: "The epoch as this edge knows it; 0 for not at all.",
		}, func() float64 { return float64(r.fence.epoch()) }),
	)
	for _, mode := range []continuity.Mode{continuity.Direct, continuity.Queue, continuity.Catchup, continuity.Sealed} {
		registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "continuity_fence_mode",
			Help:        "1 for the mode of the fence as this edge knows it.",
			ConstLabels: prometheus.Labels{"mode": string(mode)},
		}, func() float64 {
			if fence, known := r.fence.load(); known && fence.Mode == mode {
				return 1
			}
			return 0
		}))
	}
	return m
}

// shadow counts what would have been done, unless the router is off altogether.
func (m *metrics) shadow(would string, shadows bool) {
	if shadows {
		m.shadows.WithLabelValues(would).Inc()
	}
}
