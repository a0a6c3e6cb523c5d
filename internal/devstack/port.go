package devstack

import (
	"errors"
	"net"
	"strconv"
	"syscall"
)

const (
	loopback = "127.0.0.1"
	// portAttempts is how often a server that found its port taken is given another one.
	portAttempts = 3
)

// freePort is a port of loopback that nobody listens on. Somebody may take it before its user does, so a server that did
// not start asks portTaken and tries another.
func freePort() (int, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(loopback, "0"))
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func portTaken(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(port)))
	if err != nil {
		return errors.Is(err, syscall.EADDRINUSE)
	}
	l.Close()
	return false
}
