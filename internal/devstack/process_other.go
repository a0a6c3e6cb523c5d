//go:build unix && !linux

package devstack

import (
	"fmt"
	"os/exec"
	"strconv"
	"syscall"
)

// watch waits for the end of its input, which comes when this process has died, and then sends the signal.
const watch = `read -r _; kill -"$1" "$2"`

// startWithParent starts cmd and a shell that outlives this process and then sends cmd the signal onDeath. There is no
// parent-death signal outside of Linux; what does tell of a death, also by kill -9, is a pipe whose other end closes.
// release is called when cmd has ended; it ends the shell before the process number can belong to somebody else.
func startWithParent(cmd *exec.Cmd, onDeath syscall.Signal) (release func(), err error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	watcher := exec.Command("/bin/sh", "-c", watch, "watch", strconv.Itoa(int(onDeath)), strconv.Itoa(cmd.Process.Pid))
	watcher.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	_, err = watcher.StdinPipe()
	if err == nil {
		err = watcher.Start()
	}
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, fmt.Errorf("start the watcher of process %d: %w", cmd.Process.Pid, err)
	}
	return func() {
		_ = watcher.Process.Kill()
		_ = watcher.Wait()
	}, nil
}
