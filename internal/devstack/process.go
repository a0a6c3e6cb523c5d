package devstack

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

const (
	// startTimeout bounds the time from the start of a server to its first answer.
	startTimeout = 60 * time.Second
	// startPoll is the pause between two tries to reach a server that is starting.
	startPoll = 20 * time.Millisecond
)

// process is a server that belongs to this process: it is stopped with it, whatever ends this process.
type process struct {
	cmd *exec.Cmd
	// exited is closed when the server has ended and was waited for; err is valid from then on.
	exited chan struct{}
	err    error
}

// startProcess starts cmd in a process group of its own, so that Ctrl-C in a terminal reaches only this process, which
// then stops the server in its own order. onDeath is the signal that the server gets when this process dies.
//
// Linux sends that signal when the thread that forked ends, not when the process does. Hence one goroutine keeps its
// thread from the fork until the server has ended.
func startProcess(cmd *exec.Cmd, onDeath syscall.Signal) (*process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	p := &process{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		release, err := startWithParent(cmd, onDeath)
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			release()
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// stop sends the signal that asks the server to end, and after the grace period kills its process group. It returns
// when the server has ended; stopping a server that has ended is no error.
func (p *process) stop(ask syscall.Signal, grace time.Duration) error {
	select {
	case <-p.exited:
		return nil
	default:
	}
	if err := p.cmd.Process.Signal(ask); err != nil {
		<-p.exited // The only failure is a process that ended in between.
		return nil
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.exited:
		return nil
	case <-timer.C:
	}
	if err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
		return fmt.Errorf("kill process group %d: %w", p.cmd.Process.Pid, err)
	}
	<-p.exited
	return nil
}

// serverEnv is the whole environment of a server: nothing of this process's own, which holds secrets and perhaps
// PG variables of another cluster.
func serverEnv() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
}

// tail is the end of a server's log, for the error that says that the server did not start.
func tail(log string) []byte {
	const lines = 10
	content, err := os.ReadFile(log)
	if err != nil {
		return []byte(err.Error())
	}
	all := bytes.Split(bytes.TrimSpace(content), []byte("\n"))
	return bytes.Join(all[max(0, len(all)-lines):], []byte("\n"))
}
