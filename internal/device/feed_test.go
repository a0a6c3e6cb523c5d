package device

import (
	"net/http"
	"testing"
)

// TestFeedsOfReplicationAlone: CouchDB ends an event source twice, and what comes
// after the first end would be taken for the answer to the next device's request
// on the same connection.
func TestFeedsOfReplicationAlone(t *testing.T) {
	t.Parallel()
	s := newShop(t, shopOptions{})
	token := s.token(north, "till-1")
	for query, want := range map[string]int{
		"":                                    http.StatusOK,
		"feed=normal":                         http.StatusOK,
		"feed=longpoll&timeout=1":             http.StatusOK,
		"feed=continuous&timeout=1":           http.StatusOK,
		"feed=eventsource&timeout=1":          http.StatusBadRequest,
		"feed=events%6furce&timeout=1":        http.StatusBadRequest,
		"feed=normal&feed=eventsource":        http.StatusBadRequest,
		"feed=eventsource&feed=normal":        http.StatusBadRequest,
		"feed=continuous&feed=x&timeout=1":    http.StatusBadRequest,
		"feed=Eventsource&timeout=1&since=0":  http.StatusBadRequest,
		"feed=&timeout=1&include_docs=true":   http.StatusBadRequest,
		"feed=continuous&timeout=1&limit=100": http.StatusOK,
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			body := ""
			if method == http.MethodPost {
				body = "{}"
			}
			if got := s.do(method, "/db/core/_changes?"+query, token, body); got.status != want {
				t.Errorf("%s %s: %d %s, want %d", method, query, got.status, got.body, want)
			}
		}
	}
}
