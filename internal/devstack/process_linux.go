package devstack

import (
	"os/exec"
	"syscall"
)

// startWithParent starts cmd so that the kernel sends it onDeath when the calling thread ends, also by kill -9.
// release is called when cmd has ended.
func startWithParent(cmd *exec.Cmd, onDeath syscall.Signal) (release func(), err error) {
	cmd.SysProcAttr.Pdeathsig = onDeath
	return func() {}, cmd.Start()
}
