package socket

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rollingd/rollingd/internal/daydb"
)

const (
	// gather is how long changes are waited for that belong together, such as
	// those of a rotation.
	gather = 50 * time.Millisecond
	// retryAfter is the pause after a failed read.
	retryAfter = time.Second
	// loadTimeout bounds one read of what devices are told.
	loadTimeout = 10 * time.Second
)

// room holds the devices of a restaurant that may be told something.
type room struct {
	devices map[*device]struct{}
	// state is what the devices that are ready have been told; nil before the
	// first read.
	state *State
}

// rooms are the restaurants that have a device here.
type rooms struct {
	mu sync.Mutex
	by map[daydb.Restaurant]*room
	// stale are those of by whose state has to be read, or which have a device
	// that was told nothing yet.
	stale map[daydb.Restaurant]struct{}
	// wake holds a token while stale is not empty.
	wake chan struct{}
}

func newRooms() *rooms {
	return &rooms{
		by:    make(map[daydb.Restaurant]*room),
		stale: make(map[daydb.Restaurant]struct{}),
		wake:  make(chan struct{}, 1),
	}
}

// enter adds a device, which is told the state by the publisher.
func (rs *rooms) enter(d *device) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.by[d.who.Restaurant]
	if r == nil {
		r = &room{devices: make(map[*device]struct{})}
		rs.by[d.who.Restaurant] = r
	}
	r.devices[d] = struct{}{}
	d.ready = false
	rs.markLocked(d.who.Restaurant)
}

// leave takes a device out. What is known of a restaurant goes with its last.
func (rs *rooms) leave(d *device) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.by[d.who.Restaurant]
	if r == nil {
		return
	}
	delete(r.devices, d)
	if len(r.devices) == 0 {
		delete(rs.by, d.who.Restaurant)
		delete(rs.stale, d.who.Restaurant)
	}
}

// named returns the restaurants here that the names cover.
func (rs *rooms) namedLocked(company, restaurant string) []daydb.Restaurant {
	one := daydb.Restaurant{CompanyID: company, RestaurantID: restaurant}
	if restaurant != "" {
		if rs.by[one] == nil {
			return nil
		}
		return []daydb.Restaurant{one}
	}
	var all []daydb.Restaurant
	for r := range rs.by {
		if company == "" || r.CompanyID == company {
			all = append(all, r)
		}
	}
	return all
}

func (rs *rooms) mark(company, restaurant string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.markLocked(rs.namedLocked(company, restaurant)...)
}

func (rs *rooms) markLocked(restaurants ...daydb.Restaurant) {
	for _, r := range restaurants {
		rs.stale[r] = struct{}{}
	}
	if len(rs.stale) > 0 {
		select {
		case rs.wake <- struct{}{}:
		default:
		}
	}
}

// devices returns those that the names cover.
func (rs *rooms) devices(company, restaurant string) []*device {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	var all []*device
	for _, r := range rs.namedLocked(company, restaurant) {
		all = slices.AppendSeq(all, maps.Keys(rs.by[r].devices))
	}
	return all
}

// takeStale returns the restaurants that have to be read and begins a new list:
// what changes from now on is read again.
func (rs *rooms) takeStale() []daydb.Restaurant {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	taken := slices.Collect(maps.Keys(rs.stale))
	clear(rs.stale)
	return taken
}

// message is for one device.
type message struct {
	to      *device
	event   string
	payload any
}

// update takes over what was read and returns what has to be sent.
func (rs *rooms) update(restaurants []daydb.Restaurant, states map[daydb.Restaurant]State) []message {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	var out []message
	for _, name := range restaurants {
		r := rs.by[name]
		if r == nil {
			continue
		}
		state := states[name] // Of a restaurant that is not registered: all off.
		var delta map[string]any
		if r.state != nil {
			delta = state.since(*r.state)
		}
		for d := range r.devices {
			if !d.ready {
				d.ready = true
				out = append(out, message{to: d, event: eventReady, payload: state})
			} else if len(delta) > 0 {
				out = append(out, message{to: d, event: eventUpdates, payload: delta})
			}
		}
		r.state = &state
	}
	return out
}
