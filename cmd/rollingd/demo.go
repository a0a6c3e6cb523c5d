package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rollingd/rollingd/internal/app"
	"github.com/rollingd/rollingd/internal/demo"
)

// demoSettle is the least time between seal and drop in a demo, whose nights
// are a second apart. No write of a till is under way at night.
const demoSettle = 20 * time.Millisecond

type demoOptions struct {
	days, ttl  int
	seed       uint64
	keep, json bool
}

func (c *cli) demoCommand() *cobra.Command {
	var opts demoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Play 40 business days of two restaurants in a minute, and check that nothing was lost",
		Long: `Play business days of two restaurants: simulated tills sell, are paid, leave orders open, disagree,
delete, attach receipts and come back late; each night the archiver, the guard and the rotation
run through the administration API. Then every document that a till was ever told is stored is
looked for in CouchDB and in Postgres, byte for byte, by a reader that shares no code with the
server.

It runs on stores of its own, which end with it: a private Postgres, and a private Apache CouchDB
if one is installed, else the embedded store. ` + databaseVariable + ` and ` + couchVariable + ` give
other ones; the demo then uses a database and an environment of their own in them, and removes
both at the end. A CouchDB that is given needs proxy authentication with the secret in
` + proxySecretVariable + `.

The exit code is 0 only if nothing was lost and every day database came as far as it should.`,
		Example: `  rollingd demo
  rollingd demo --keep
  rollingd demo --days 12 --ttl-days 5 --json`,
		Args: noArgs,
	}
	cmd.Flags().IntVar(&opts.days, "days", 40, "business days to play, the last of which is today")
	cmd.Flags().IntVar(&opts.ttl, "ttl-days", app.DefaultTTLDays, "a day must be older than this to be dropped")
	cmd.Flags().Uint64Var(&opts.seed, "seed", 1, "what the tills sell")
	cmd.Flags().BoolVar(&opts.keep, "keep", false, "leave the server up afterwards, to look around, until Ctrl-C")
	cmd.Flags().BoolVar(&opts.json, "json", false, "print the summary as JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		err := c.demo(cmd.Context(), opts)
		if errors.Is(err, context.Canceled) {
			return errors.New("interrupted")
		}
		return err
	}
	return cmd
}

func (c *cli) demo(ctx context.Context, opts demoOptions) (err error) {
	if opts.ttl < 1 {
		return usagef("--ttl-days: want 1 or more")
	}
	if least := opts.ttl + demo.BeyondTTL; opts.days < least {
		return usagef("--days: want %d or more, so that days older than --ttl-days, %d, are seen to be dropped", least, opts.ttl)
	}
	if c.getenv(couchVariable) != "" && c.getenv(proxySecretVariable) == "" {
		return usagef("%s: want the secret of the CouchDB in %s, to which the tills connect by proxy authentication", proxySecretVariable, couchVariable)
	}
	fmt.Fprintln(c.errOut, "starting the stores…")
	s, err := c.startStores(ctx, "")
	if err != nil {
		return err
	}
	// What is shared with others gets names that nobody else has.
	env := "demo"
	if s.given {
		env = "demo-" + randomToken()[:12]
	}
	var clean func(context.Context) error
	if c.getenv(couchVariable) != "" {
		clean = func(ctx context.Context) error { return demo.Clean(ctx, s.CouchDBURL, env) }
	}
	defer func() { err = errors.Join(err, s.stop(ctx, clean)) }()

	database, err := s.Scratch(ctx, "rollingd_"+strings.ReplaceAll(env, "-", "_"))
	if err != nil {
		return err
	}
	token := randomToken()
	err = s.serve(ctx, app.Options{
		Env:              env,
		DatabaseURL:      database,
		ListenAddr:       "127.0.0.1:0",
		AdminTokens:      "demo=destroyer:" + token,
		TTLDays:          opts.ttl,
		SealSettle:       demoSettle,
		DeviceWriteLimit: demoSettle,
		Logger:           c.quietLog(),
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(c.errOut, "playing %d days on %s and %s\n", opts.days, s.Postgres, s.CouchDB)
	summary, err := demo.Play(ctx, demo.Options{
		API:         "http://" + s.server.Addr(),
		Token:       token,
		CouchDB:     s.CouchDBURL,
		ProxySecret: s.proxySecret,
		Database:    database,
		Env:         env,
		Days:        opts.days,
		TTLDays:     opts.ttl,
		Seed:        opts.seed,
		Progress:    c.errOut,
		InPlace:     c.terminal,
	})
	if err != nil {
		return err
	}
	if err := c.printSummary(summary, opts.json); err != nil {
		return err
	}
	if opts.keep {
		fmt.Fprintf(c.errOut, "\nThe server stays up until Ctrl-C.\n\n")
		c.printStores(s, "http://"+s.server.Addr(), database)
		fmt.Fprintf(c.errOut, "\nTo look around, in another terminal:\n\n")
		c.printAccess("http://"+s.server.Addr(), token)
		fmt.Fprintf(c.errOut, "  %s day-dbs --state DRAINING\n", self())
		<-ctx.Done()
	}
	if !summary.Good() {
		return errQuiet
	}
	return nil
}

func (c *cli) printSummary(s demo.Summary, asJSON bool) error {
	if asJSON {
		text, err := json.Marshal(s)
		if err != nil {
			return err
		}
		return c.printJSON(text)
	}
	if err := s.WriteTable(c.out); err != nil {
		return err
	}
	verdict := "Nothing was lost."
	if !s.Good() {
		verdict = "FAILED."
	}
	_, err := fmt.Fprintf(c.out, "%s %d days in %.1f seconds.\n", verdict, s.Days, s.Seconds)
	return err
}
