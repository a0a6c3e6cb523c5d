// Command gamedays has the continuity plane go through its outages, over real
// processes: rollingd serve, two rollingd edge, a Postgres on either side, and
// networks between them that can be cut. See docs/runbook.md.
//
//	go run ./gamedays [-only 1,5,8] [-quick] [-standard] [-keep]
//
// After each day both databases are compared with what the edges have promised to
// their clients, and the day databases with the primary's books. It exits with 1 if
// a promise was broken. Everything runs on loopback and is removed at the end; -keep
// leaves the logs of all programs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/rollingd/rollingd/internal/continuity/primary"
)

const (
	// limit bounds the whole run, and dayLimit one game day.
	limit    = 45 * time.Minute
	dayLimit = 6 * time.Minute
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, limit)
	err := execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	cancel()
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "gamedays:", err)
		os.Exit(1)
	}
}

// errBroken is returned when a promise was broken, which the table says.
var errBroken = errors.New("promises were broken")

// execute plays the chosen days, and prints the table to out.
func execute(ctx context.Context, args []string, out, progress io.Writer) (err error) {
	o, err := parse(args, progress)
	if err != nil {
		return err
	}
	fmt.Fprintln(progress, "building rollingd and starting the stores…")
	stack, err := newStack(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if o.keep {
			fmt.Fprintln(progress, "the logs are in", stack.dir)
		}
		err = errors.Join(err, stack.stop(o.keep))
	}()
	var results []result
	for _, d := range o.days {
		if ctx.Err() != nil {
			break
		}
		r := stack.play(ctx, d, o, progress)
		fmt.Fprintf(progress, "%-3s %s: %s in %s\n", d.id, d.name, r.verdict(), r.elapsed.Round(time.Second))
		results = append(results, r)
	}
	if err := printTable(out, results); err != nil {
		return err
	}
	for _, r := range results {
		if !r.kept() {
			return errBroken
		}
	}
	return context.Cause(ctx)
}

const usage = `gamedays has the continuity plane go through its outages, over real processes, and
compares afterwards what the edges have promised with both databases, and the orders
and payments of the primary with the documents that tills see. It exits with 1 if a
promise was broken.

`

// options of a run.
type options struct {
	days                  []day
	quick, standard, keep bool
}

func parse(args []string, errOut io.Writer) (options, error) {
	o := options{days: program}
	flags := flag.NewFlagSet("gamedays", flag.ContinueOnError)
	flags.SetOutput(errOut)
	flags.Usage = func() {
		fmt.Fprint(errOut, usage)
		flags.PrintDefaults()
		fmt.Fprintf(errOut, "\nThe columns of the table:\n%s\nThe days:\n\n", columns)
		for _, d := range program {
			fmt.Fprintf(errOut, "  %-3s %s\n", d.id, d.name)
		}
	}
	only := flags.String("only", "", "numbers of the days to be played, as in 1,5,10; 10 is 10a and 10b, 3 is 3, 3r and 3s")
	flags.BoolVar(&o.quick, "quick", false, "shorter floods and flapping, and leases that are ended by hand")
	flags.BoolVar(&o.standard, "standard", false, "windows and timeouts as they are without settings: outages as long as they are in production")
	flags.BoolVar(&o.keep, "keep", false, "leave the logs of all programs")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if *only == "" {
		return o, nil
	}
	o.days = nil
	for number := range strings.SplitSeq(*only, ",") {
		found := false
		for _, d := range program {
			if d.id == number || strings.TrimRight(d.id, "abrs") == number {
				o.days, found = append(o.days, d), true
			}
		}
		if !found {
			return o, fmt.Errorf("-only: there is no game day %q", number)
		}
	}
	return o, nil
}

// day is a game day.
type day struct {
	id        string
	name      string
	transport transport
	policy    primary.Policy
	play      func(*site, context.Context) error
}

// program is all of them, in the order in which they are played.
var program = []day{
	{"1", "tunnel killed", overPostgres, primary.Available, (*site).tunnelKilled},
	{"2", "primary Postgres killed", overPostgres, primary.Available, (*site).postgresKilled},
	{"3", "hosted partitioned", overPostgres, primary.Available, (*site).hostedPartitioned},
	{"3r", "hosted partitioned, over RPC", overRPC, primary.Available, (*site).hostedPartitioned},
	{"3s", "hosted lost, strict primary", overPostgres, primary.Strict, (*site).strictPrimary},
	{"4", "clocks skewed 5 min", overPostgres, primary.Available, (*site).clocksSkewed},
	{"5", "duplicate commands", overPostgres, primary.Available, (*site).duplicates},
	{"6", "late commit and replay", overPostgres, primary.Available, (*site).lateCommit},
	{"7", "payment after a cancel", overPostgres, primary.Available, (*site).paymentAfterCancel},
	{"8", "tunnel flapping", overPostgres, primary.Available, (*site).flapping},
	{"9", "flood, 1000 a minute", overPostgres, primary.Available, (*site).flood},
	{"10a", "both down, primary restored", overPostgres, primary.Available, (*site).primaryRestored},
	{"10b", "both down, hosted restored", overPostgres, primary.Available, (*site).hostedRestored},
	{"11a", "worker killed mid-claim", overPostgres, primary.Available, (*site).workerKilled},
	{"11b", "worker paused mid-claim", overPostgres, primary.Available, (*site).workerPaused},
	{"12", "dead after 8 attempts", overPostgres, primary.Available, (*site).deadCommand},
}

// play plays a day in a world of its own, and compares the books afterwards.
func (s *stack) play(ctx context.Context, d day, o options, progress io.Writer) (r result) {
	r.day = d
	began := time.Now()
	defer func() { r.elapsed = time.Since(began) }()
	ctx, cancel := context.WithTimeoutCause(ctx, dayLimit, fmt.Errorf("the day took longer than %s", dayLimit))
	defer cancel()
	w, err := s.open(ctx, d, o)
	if err != nil {
		r.err = fmt.Errorf("open the world: %w", err)
		return r
	}
	defer func() {
		if !r.kept() {
			fmt.Fprint(progress, w.lastWords())
		}
		r.err = errors.Join(r.err, w.abandon())
	}()
	r.err = d.play(w, ctx)
	if r.err == nil {
		r.err = w.settle(ctx)
	}
	if r.err == nil {
		r.err = w.projected(ctx)
	}
	r.err = errors.Join(r.err, w.end(ctx))
	r.faults, r.longest = w.faults, w.ledger.longestWait()
	found, err := w.check(ctx)
	r.found, r.err = found, errors.Join(r.err, err)
	return r
}
