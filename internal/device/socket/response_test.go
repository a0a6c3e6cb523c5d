package socket

import (
	"errors"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// TestDeviceThatDoesNotRead has a write end after the limit.
func TestDeviceThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, device := net.Pipe()
		defer server.Close()
		defer device.Close()
		start := time.Now()
		_, err := limitedConn{server}.Write([]byte("update"))
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != writeLimit {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
}
