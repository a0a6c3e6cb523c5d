package main

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"

	devcouch "github.com/rollingd/rollingd/internal/devstack/couch"
)

// storeArg makes this program the embedded store.
const storeArg = "embedded-store"

// serveEmbedded serves from the folder named in the first line of in, with the
// secret of proxy authentication after it, prints the address, and ends when in
// does.
func serveEmbedded(in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	var dir, secret string
	if _, err := fmt.Fscanln(lines, &dir, &secret); err != nil {
		return err
	}
	server, err := devcouch.Start(devcouch.Options{
		Dir:           dir,
		AdminUser:     "admin",
		AdminPassword: rand.Text(),
		ProxySecret:   secret,
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
