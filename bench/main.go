// Command bench measures rollingd as ratios within one run on one machine:
// against what bounds it (a bare read of the feed, a bare COPY, the bare calls)
// and against what others use for the same. See docs/performance.md.
//
//	go run ./bench [-only archive,memory,rotation,quiet,proxy,sockets,queue,breaker] [-quick] [-rounds N] [-embedded]
//
// Everything runs on loopback, on stores that it starts itself, and is removed at
// the end. CouchDB is that of ROLLINGD_TEST_COUCHDB_URL if set, else a private
// node of the Apache CouchDB that is installed, else the embedded store, whose
// figures say nothing about production.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// limit bounds the whole run.
const limit = 90 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, limit)
	err := execute(ctx, os.Args[1:])
	cancel()
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func execute(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case archiverArg:
			return archiveAsChild(ctx, os.Stdin, os.Stdout)
		case storeArg:
			return serveEmbedded(os.Stdin, os.Stdout)
		}
	}
	return measure(ctx, args, os.Stdout)
}

// measurement is one of the parts that can be chosen with -only.
type measurement struct {
	name string
	run  func(*bench, context.Context) error
}

var measurements = []measurement{
	{"archive", (*bench).archive},
	{"memory", (*bench).memory},
	{"rotation", (*bench).rotation},
	{"quiet", (*bench).quiet},
	{"proxy", (*bench).proxy},
	{"sockets", (*bench).sockets},
	{"queue", (*bench).queue},
	{"breaker", (*bench).breaker},
}

// bench is a run of the measurements.
type bench struct {
	stores *stores
	sizes  sizes
	// profiles is where the archiver's CPU profiles go, or empty.
	profiles string
	results  results
}

// sizes of what is measured.
type sizes struct {
	rounds          int
	archiveDocs     int
	memoryDocs      int
	restaurants     int
	quietDays       int
	quietRestaurant int
	// Of a round of the proxy: batches, single writes, and documents in the feed.
	pushes, puts, feedDocs int
	// devices that are connected by socket.
	devices int
	// commands of a round of the queue, and those at a pace.
	queueJobs, queuePaced int
	// backlog are commands that wait, and flood is how long more of them come in,
	// before they are brought home.
	backlog int
	flood   time.Duration
	// breakerTime is how long one benchmark of the breaker runs, or "Nx".
	breakerTime string
}

var (
	fullSizes = sizes{rounds: 5, archiveDocs: 100_000, memoryDocs: 1_000_000, restaurants: 1_000, quietDays: 2_000, quietRestaurant: 40,
		pushes: 100, puts: 2_000, feedDocs: 20_000, devices: 1_000,
		queueJobs: 5_000, queuePaced: 500, backlog: 2_000, flood: 10 * time.Second, breakerTime: "500ms"}
	quickSizes = sizes{rounds: 3, archiveDocs: 10_000, memoryDocs: 100_000, restaurants: 50, quietDays: 100, quietRestaurant: 10,
		pushes: 10, puts: 200, feedDocs: 2_000, devices: 100,
		queueJobs: 1_000, queuePaced: 100, backlog: 200, flood: 2 * time.Second, breakerTime: "50ms"}
)

// say tells that something that takes time begins.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}

func measure(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	return o.measure(ctx, out)
}

// options of a run.
type options struct {
	only     []string
	sizes    sizes
	profiles string
	embedded bool
}

func parse(args []string) (options, error) {
	var names []string
	for _, m := range measurements {
		names = append(names, m.name)
	}
	o := options{sizes: fullSizes}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	only := flags.String("only", strings.Join(names, ","), "what to measure, comma-separated")
	quick := flags.Bool("quick", false, "a tenth of the documents or less, to see whether it runs")
	rounds := flags.Int("rounds", 0, "rounds of which the median is taken; default 5, with -quick 3")
	flags.StringVar(&o.profiles, "profiles", "", "write the archiver's CPU profiles into this folder")
	flags.BoolVar(&o.embedded, "embedded", false, "use the embedded store, whatever is installed")
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	if *quick {
		o.sizes = quickSizes
	}
	if *rounds > 0 {
		o.sizes.rounds = *rounds
	}
	for _, name := range strings.Split(*only, ",") {
		if !slices.Contains(names, name) {
			return options{}, fmt.Errorf("-only %s: want some of %s", name, strings.Join(names, ","))
		}
		o.only = append(o.only, name)
	}
	return o, nil
}

func (o options) measure(ctx context.Context, out io.Writer) (err error) {
	b := &bench{sizes: o.sizes, profiles: o.profiles}
	if b.stores, err = startStores(ctx, o.embedded); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stores.stop()) }()
	stores := fmt.Sprintf("CouchDB: %s\nPostgres: %s", b.stores.couchName, b.stores.postgresName)
	b.say("%s", stores)
	for _, m := range measurements {
		if !slices.Contains(o.only, m.name) {
			continue
		}
		b.say("== %s", m.name)
		if err := m.run(b, ctx); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	_, err = fmt.Fprintf(out, "%s\n%s", stores, b.results.String())
	return err
}
