// Command withcouchdb runs a command with ROLLINGD_TEST_COUCHDB_URL set: as it
// is, or else to a private node of the Apache CouchDB that is installed, which
// ends with the command. It exits as the command does, and with 2 when there is
// no CouchDB.
//
//	go run ./scripts/withcouchdb COMMAND [ARGUMENT...]
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/rollingd/rollingd/internal/devstack"
	"github.com/rollingd/rollingd/internal/devstack/couchtest"
)

const urlVariable = "ROLLINGD_TEST_COUCHDB_URL"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status, err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "withcouchdb:", err)
	}
	os.Exit(status)
}

// run returns the exit status of the command, or 2 and why it was not run.
func run(ctx context.Context, command []string) (int, error) {
	if len(command) == 0 {
		return 2, errors.New("name a command")
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	// The command is told to end and given the time to do so.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if os.Getenv(urlVariable) == "" {
		node, err := devstack.StartCouchDB(ctx, devstack.CouchDBOptions{
			AdminUser:     "admin",
			AdminPassword: "secret",
			ProxySecret:   couchtest.ProxySecret,
		})
		if err != nil {
			return 2, fmt.Errorf("%w; or set %s=http://admin:PASSWORD@HOST:5984", err, urlVariable)
		}
		defer func() {
			if err := node.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, "withcouchdb:", err)
			}
		}()
		cmd.Env = append(os.Environ(), urlVariable+"="+node.URL())
	}
	err := cmd.Run()
	var exited *exec.ExitError
	if errors.As(err, &exited) {
		return max(exited.ExitCode(), 1), nil
	}
	if err != nil {
		return 2, err
	}
	return 0, nil
}
