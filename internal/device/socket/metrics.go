package socket

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	connected prometheus.Gauge
	refused   *prometheus.CounterVec
	messages  *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		connected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "rollingd_device_sockets",
			Help: "Devices that are connected by socket.",
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rollingd_device_socket_refusals_total",
			Help: "Tokens that a socket was refused for, by code.",
		}, []string{"code"}),
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rollingd_device_socket_messages_total",
			Help: "Messages sent to devices by socket, by event.",
		}, []string{"event"}),
	}
	reg.MustRegister(m.connected, m.refused, m.messages)
	return m
}
