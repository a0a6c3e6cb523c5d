package main

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"

	devcouch "github.com/rollingd/rollingd/internal/devstack/couch"
)

// storeArg makes this program the embedded store.
const storeArg = "embedded-store"

// serveEmbedded serves from the folder named in the first line of in, prints the
// address, and ends when in does.
func serveEmbedded(in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	dir, err := lines.ReadString('\n')
	if err != nil {
		return err
	}
	server, err := devcouch.Start(devcouch.Options{
		Dir:           strings.TrimSpace(dir),
		AdminUser:     "admin",
		AdminPassword: rand.Text(),
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, server.URL())
	if err == nil {
		_, err = io.Copy(io.Discard, lines)
	}
	return errors.Join(err, server.Close())
}
