package socket_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/device/socket"
)

// TestBodyThatNeverComesEnds has somebody without a token announce a body and send
// none.
func TestBodyThatNeverComesEnds(t *testing.T) {
	t.Parallel()
	_, url := serve(t, newGate(), read(func([]daydb.Restaurant) (map[daydb.Restaurant]socket.State, error) { return nil, nil }), time.Second)
	for _, head := range []string{
		"POST /socket.io/?EIO=4&transport=polling&sid=none HTTP/1.1\r\nContent-Length: 10",
		"POST /socket.io/?EIO=4&transport=polling HTTP/1.1\r\nTransfer-Encoding: chunked",
		"GET /socket.io/?EIO=4&transport=polling HTTP/1.1\r\nContent-Length: 10",
	} {
		t.Run(head, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprintf(conn, "%s\r\nHost: till\r\n\r\n", head)
			if err := conn.SetReadDeadline(time.Now().Add(45 * time.Second)); err != nil {
				t.Fatal(err)
			}
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatalf("no answer: %v", err)
			}
			res.Body.Close()
		})
	}
}
