package device

import (
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

const (
	// DefaultRate is far more than replication of one till makes.
	DefaultRate = 50
	// burstSeconds is how many seconds of its rate a device may use at once.
	burstSeconds = 4
	// mostOpen is how many requests of a device may be under way.
	mostOpen = 64
	// mostIdle is how many devices without a request are remembered.
	mostIdle = 10_000
)

// limits are per device, so that one that has gone mad slows down itself alone.
type limits struct {
	rate    rate.Limit
	mu      sync.Mutex
	devices map[Identity]*deviceLimit
}

type deviceLimit struct {
	rate *rate.Limiter
	open int
}

func newLimits(perSecond int) *limits {
	return &limits{rate: rate.Limit(perSecond), devices: make(map[Identity]*deviceLimit)}
}

// take admits a request, which has to be given back, or refuses it.
func (l *limits) take(who Identity) (done func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.devices[who]
	if d == nil {
		l.forgetIdle()
		d = &deviceLimit{rate: rate.NewLimiter(l.rate, int(l.rate)*burstSeconds)}
		l.devices[who] = d
	}
	if d.open >= mostOpen || !d.rate.Allow() {
		return nil, false
	}
	d.open++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		d.open--
	}, true
}

// forgetIdle drops the devices that have their whole burst again: a new limit is
// the same.
func (l *limits) forgetIdle() {
	if len(l.devices) < mostIdle {
		return
	}
	for who, d := range l.devices {
		if d.open == 0 && d.rate.Tokens() >= float64(d.rate.Burst()) {
			delete(l.devices, who)
		}
	}
}

type metrics struct{ requests *prometheus.CounterVec }

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{requests: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rollingd_device_requests_total",
		Help: "Requests of devices, by kind of database (none if it was refused before) and status.",
	}, []string{"database", "status"})}
	registry.MustRegister(m.requests)
	return m
}

func (m *metrics) answered(kind string, status int) {
	if status == 0 {
		status = statusHungUp
	}
	m.requests.WithLabelValues(kind, strconv.Itoa(status)).Inc()
}
