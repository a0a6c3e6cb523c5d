// Command rollingd is the server of rolling day databases, and the operator's
// hand tools for it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	// Zones must load in a container that has no zone data of its own.
	_ "time/tzdata"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
)

// The exit codes, which the help of the root command documents.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	c := &cli{
		out:      os.Stdout,
		errOut:   os.Stderr,
		getenv:   os.Getenv,
		terminal: isatty.IsTerminal(os.Stderr.Fd()),
	}
	os.Exit(c.run(ctx, os.Args[1:]))
}

// cli is the process as the commands see it.
type cli struct {
	out, errOut io.Writer
	getenv      func(string) string
	// terminal says that somebody watches errOut.
	terminal bool
}

// usageError is a wrong call or a wrong setting: nothing was done.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// errQuiet makes the exit code 1 without another word: the command has said
// already what is wrong.
var errQuiet = errors.New("failed")

// run runs a command line and returns the exit code.
func (c *cli) run(ctx context.Context, args []string) int {
	root := c.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var (
		usage   *usageError
		refused *refusedError
	)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errQuiet):
		return exitFailed
	case errors.As(err, &usage):
		// Several settings that are wrong are a line each.
		for line := range strings.Lines(usage.Error()) {
			fmt.Fprintln(c.errOut, "error:", strings.TrimSpace(line))
		}
		return exitUsage
	case errors.As(err, &refused):
		fmt.Fprintln(c.errOut, "error:", oneLine(err))
		fmt.Fprintln(c.errOut, "code: ", refused.problem.Code)
		return exitFailed
	default:
		fmt.Fprintln(c.errOut, "error:", oneLine(err))
		return exitFailed
	}
}

// oneLine makes one line of an error: drivers put several in theirs.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "rollingd",
		Short: "Rolling day databases for restaurants that sell offline",
		Long: `rollingd splits the one CouchDB database of a restaurant, which grows for ever, into a
persistent core and one database per business day. It creates each day's database before it
is needed, copies finished documents to Postgres, proves that the copy is complete, and,
where a flag says so, drops the database after 30 days.

"rollingd serve" is the server. The other commands are the operator's hand tools: they talk to
the server's administration API at ROLLINGD_URL, with the token in ROLLINGD_TOKEN.

Exit codes:
  0  done
  1  it failed, was refused, or found something wrong; for "run": the run was partial or failed
  2  the command line or a setting is wrong; nothing was done`,
		Example: `  rollingd serve
  rollingd run rolling-db-rotate --company acme --dry-run
  rollingd explain prod_acme_centro_daily_20261101`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetOut(c.out)
	root.SetErr(c.errOut)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w; see %s --help", err, cmd.CommandPath())
	})
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(
		c.serveCommand(),
		c.edgeCommand(),
		c.devCommand(),
		c.demoCommand(),
		c.migrateCommand(),
		c.runCommand(),
		c.runsCommand(),
		c.cronsCommand(),
		c.dayDBsCommand(),
		c.explainCommand(),
		c.holdCommand(),
		c.waiveCommand(),
		c.continuityCommand(),
		c.verifyHistoryCommand(),
		c.restoreCommand(),
		c.flagsCommand(),
		c.restaurantsCommand(),
		c.doctorCommand(),
		c.versionCommand(),
	)
	return root
}

// args wants these arguments, whose names a refusal repeats.
func args(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		if len(given) == len(names) {
			return nil
		}
		if cmd.HasSubCommands() {
			return usagef("%s has no command %q; see %s --help", cmd.CommandPath(), given[0], cmd.CommandPath())
		}
		if len(names) == 0 {
			return usagef("%s takes no arguments, and %q is one; see %s --help", cmd.CommandPath(), given[0], cmd.CommandPath())
		}
		return usagef("%s wants %s; see %s --help", cmd.CommandPath(), strings.Join(names, " "), cmd.CommandPath())
	}
}

var noArgs = args()
