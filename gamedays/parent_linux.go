package main

import (
	"os/exec"
	"syscall"
)

// endWithParent has the kernel kill cmd when the thread that starts it ends,
// which it does with this process, however that ends.
func endWithParent(cmd *exec.Cmd) { cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL }
