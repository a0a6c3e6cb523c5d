package socket

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"time"
)

// response is the response of a request until it becomes a websocket. It then
// lets go of the HTTP server's, whose buffers would stay as long as the
// connection, and gives the connection a limit on each write.
type response struct{ http.ResponseWriter }

// Hijack hands the connection over.
func (r *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffers, err := http.NewResponseController(r.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	r.ResponseWriter = spent{}
	return limitedConn{conn}, buffers, nil
}

// Unwrap is for http.ResponseController.
func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// spent is the response of a connection that was handed over.
type spent struct{}

func (spent) Header() http.Header       { return http.Header{} }
func (spent) Write([]byte) (int, error) { return 0, errors.ErrUnsupported }
func (spent) WriteHeader(int)           {}

// limitedConn fails a write that takes longer than writeLimit.
type limitedConn struct{ net.Conn }

func (c limitedConn) Write(b []byte) (int, error) {
	start := time.Now()
	if err := c.Conn.SetWriteDeadline(start.Add(writeLimit)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}
