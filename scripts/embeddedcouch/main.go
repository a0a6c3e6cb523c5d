// Command embeddedcouch runs the embedded CouchDB-compatible store for the tests
// of the SDK. It prints the URL with the administrator's credentials and the secret of
// proxy authentication, and ends when its standard input does.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/rollingd/rollingd/internal/devstack/couch"
)

const proxySecret = "proxysecret"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "embeddedcouch:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	dir, err := os.MkdirTemp("", "rollingd-sdk-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	server, err := couch.Start(couch.Options{
		Dir:           dir,
		AdminUser:     "admin",
		AdminPassword: "secret",
		ProxySecret:   proxySecret,
		NoSync:        true,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	fmt.Fprintln(os.Stdout, server.URL(), proxySecret)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
