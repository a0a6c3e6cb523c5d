package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/rollingd/rollingd/internal/app"
	"github.com/rollingd/rollingd/internal/demo"
	"github.com/rollingd/rollingd/internal/device"
	"github.com/rollingd/rollingd/internal/devstack"
)

// devEnv is the environment of a server for development.
const devEnv = "dev"

func (c *cli) devCommand() *cobra.Command {
	var (
		dir, listen string
		continuity  bool
	)
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a server for development on stores of its own, with a demo tenant",
		Long: `Run a server on a private Postgres and on a private Apache CouchDB, if one is installed, else on the
embedded store. Their data stay in the folder --data. ` + databaseVariable + ` and ` + couchVariable + `
give other stores.

The company demo has one restaurant, centro, whose days rotate and may be dropped. In a new folder
yesterday is still ACTIVE and has a few documents: "rollingd run rolling-db-rotate" is the night
after it. The tokens are other ones at each start.

With --continuity there are a hosted Postgres and an edge, too, and the primary runs in a process of
its own that can be killed: it prints how to have an outage, and to sell through it.

Ctrl-C stops everything.`,
		Example: `  rollingd dev
  rollingd dev --continuity
  rollingd dev --data /var/tmp/rollingd-dev --listen 127.0.0.1:0`,
		Args: noArgs,
	}
	cmd.Flags().StringVar(&dir, "data", ".rollingd-dev", "folder of the private stores")
	cmd.Flags().StringVar(&listen, "listen", app.DefaultListenAddr, "host:port of the server; port 0 is a free one")
	cmd.Flags().BoolVar(&continuity, "continuity", false, "with a hosted Postgres, an edge, and a primary that can be killed")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		err := c.dev(cmd.Context(), dir, listen, continuity)
		if errors.Is(err, context.Canceled) {
			return errors.New("interrupted before it had started")
		}
		return err
	}
	return cmd
}

func (c *cli) dev(ctx context.Context, dir, listen string, continuity bool) (err error) {
	if listen, err = checkFree(ctx, listen); err != nil {
		return err
	}
	fmt.Fprintln(c.errOut, "starting the stores…")
	s, err := c.startStores(ctx, dir)
	if errors.Is(err, devstack.ErrInUse) {
		return usagef("--data: %s is used by another rollingd dev; stop it, or choose another folder", dir)
	}
	if unusable := (*fs.PathError)(nil); errors.As(err, &unusable) {
		return usagef("--data: %w; choose another folder", err)
	}
	if err != nil {
		return err
	}
	defer func() {
		fmt.Fprintln(c.errOut, "stopping…")
		err = errors.Join(err, s.stop(ctx, nil))
	}()
	token, jwtSecret := randomToken(), ""
	if s.proxySecret != "" {
		jwtSecret = randomToken()
	}
	var plane *outage
	if continuity {
		plane, err = c.startOutage(ctx, s, dir, listen, primaryEnv{token: token, jwtSecret: jwtSecret})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, plane.stop(ctx)) }()
	} else {
		err = s.serve(ctx, app.Options{
			Env:              devEnv,
			ListenAddr:       listen,
			AdminTokens:      "dev=destroyer:" + token,
			CouchProxySecret: s.proxySecret,
			DeviceJWTSecret:  jwtSecret,
			// Pages of developers' own servers.
			DeviceOrigins: device.AnyOrigin,
			Logger:        slog.New(slog.NewTextHandler(c.errOut, nil)),
		})
		if err != nil {
			return err
		}
	}
	url := "http://" + listen
	day, faults, err := demo.Tenant(ctx, demo.Options{
		API:         url,
		Token:       token,
		CouchDB:     s.CouchDBURL,
		ProxySecret: s.proxySecret,
		Database:    s.DatabaseURL,
		Env:         devEnv,
	})
	if err != nil {
		return fmt.Errorf("make the demo tenant: %w", err)
	}
	till, err := s.tillToken(ctx, url, token)
	if err != nil {
		return err
	}
	c.printDev(s, url, token, day, faults)
	c.printTill(url, till)
	var failed <-chan error
	if plane != nil {
		c.printOutage(s, plane)
	} else {
		failed = s.server.Failed()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// checkFree finds out that the address is taken before the stores are started,
// and which port a free one is.
func checkFree(ctx context.Context, address string) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	switch {
	case err == nil:
		return l.Addr().String(), l.Close()
	case errors.Is(err, syscall.EADDRINUSE):
		return "", usagef("--listen: another process listens on %s; choose another port, or 127.0.0.1:0 for a free one", address)
	default:
		return "", usagef("--listen: %w", err)
	}
}

// printDev prints where everything is. Faults are what somebody broke before:
// the server is there to look at it.
func (c *cli) printDev(s *stand, url, token, day string, faults []string) {
	fmt.Fprintf(c.errOut, "\nrollingd is ready. Ctrl-C stops everything.\n\n")
	c.printStores(s, url, s.DatabaseURL)
	commands := []string{"day-dbs", "run rolling-db-rotate --company demo", "run archive --company demo"}
	if len(faults) > 0 {
		fmt.Fprintf(c.errOut, "\nThe first rotation found things out of place; another --data folder begins anew:\n\n")
		for _, fault := range faults {
			fmt.Fprintf(c.errOut, "  %s\n", fault)
		}
	} else {
		commands = append(commands, "explain "+day)
	}
	fmt.Fprintf(c.errOut, "\nIn another terminal:\n\n")
	c.printAccess(url, token)
	for _, command := range commands {
		fmt.Fprintf(c.errOut, "  %s %s\n", self(), command)
	}
	fmt.Fprintln(c.errOut)
}

// printStores prints where the server and its stores answer, passwords of
// private stores included: there is no other way to learn them.
func (c *cli) printStores(s *stand, url, database string) {
	for _, line := range [][2]string{
		{"server", url},
		{"CouchDB", s.CouchDBURL + "  (" + s.CouchDB + ")"},
		{"Postgres", database + "  (" + s.Postgres + ")"},
	} {
		fmt.Fprintf(c.errOut, "  %-10s %s\n", line[0], line[1])
	}
}

// printAccess prints what the other commands need to reach the server.
func (c *cli) printAccess(url, token string) {
	fmt.Fprintf(c.errOut, "  export %s=%s %s=%s\n", urlVariable, url, tokenVariable, token)
}

// self is how this program was called, to be called again. What `go run` has
// built is gone when it ends.
func self() string {
	if strings.HasPrefix(os.Args[0], filepath.Join(os.TempDir(), "go-build")) {
		return "go run ./cmd/rollingd"
	}
	return os.Args[0]
}
