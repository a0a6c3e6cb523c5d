package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// child is a rollingd in a process of its own.
type child struct {
	name string
	// program and arg are what runs: rollingd serve, or rollingd edge.
	program string
	arg     string
	env     []string
	addr    string
	// log is a file that every start appends to.
	log string

	cmd    *exec.Cmd
	exited chan struct{}
	err    error
}

// stopWithin is how long an orderly stop may take.
const stopWithin = 40 * time.Second

var errChildEnded = errors.New("it has ended")

// start starts it and returns when it answers.
func (c *child) start(ctx context.Context) error {
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	// It lives until it is stopped, not until the start is done.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), c.program, c.arg)
	cmd.Dir = filepath.Dir(c.log)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, c.env...)
	cmd.Stdout, cmd.Stderr = log, log
	// Ctrl-C on the terminal is for this process, which stops the others in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	endWithParent(cmd)
	c.cmd, c.exited = cmd, make(chan struct{})
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // See endWithParent.
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			c.err = cmd.Wait()
			close(c.exited)
		}
	}()
	if err := <-started; err != nil {
		c.cmd = nil
		return fmt.Errorf("start %s: %w", c.name, err)
	}
	err = until(ctx, c.name+" answers", func(ctx context.Context) (bool, error) {
		select {
		case <-c.exited:
			return false, errChildEnded
		default:
			return c.answers(ctx), nil
		}
	})
	if err != nil {
		return errors.Join(err, c.kill())
	}
	return nil
}

func (c *child) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.addr+"/healthz", nil)
	if err != nil {
		return false
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	return res.Body.Close() == nil && res.StatusCode == http.StatusOK
}

// stop and resume have the kernel give it no time, and time again.
func (c *child) stop() error   { return c.cmd.Process.Signal(syscall.SIGSTOP) }
func (c *child) resume() error { return c.cmd.Process.Signal(syscall.SIGCONT) }

// kill ends it as a power failure would. One that does not run is no error.
func (c *child) kill() error {
	if c.cmd == nil {
		return nil
	}
	err := c.cmd.Process.Kill()
	<-c.exited
	c.cmd = nil
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// end stops it in order, and fails if that does not go well.
func (c *child) end(ctx context.Context) error {
	if c.cmd == nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, stopWithin, errors.New("it did not stop within "+stopWithin.String()))
	defer cancel()
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return errors.Join(err, c.kill())
	}
	select {
	case <-c.exited:
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("stop %s: %w", c.name, context.Cause(ctx)), c.kill())
	}
	c.cmd = nil
	if c.err != nil {
		return fmt.Errorf("stop %s: %w", c.name, c.err)
	}
	return nil
}

// lastWords is the end of its log.
func (c *child) lastWords() string {
	const lines = 25
	content, err := os.ReadFile(c.log)
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimSpace(content), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}
