package devstack

import (
	"os/exec"
	"syscall"
	"time"
)

// programGrace is how long a program may take to stop in order.
const programGrace = 20 * time.Second

// Program is a program in a process of its own, which ends with this process,
// whatever ends that.
type Program struct{ process *process }

// StartProgram starts cmd in a process group of its own.
func StartProgram(cmd *exec.Cmd) (*Program, error) {
	p, err := startProcess(cmd, syscall.SIGKILL)
	if err != nil {
		return nil, err
	}
	return &Program{process: p}, nil
}

// Kill ends the program as a power failure would, and returns when it has ended.
func (p *Program) Kill() error { return p.process.stop(syscall.SIGKILL, programGrace) }

// Stop asks the program to end, and kills it after 20 seconds.
func (p *Program) Stop() error { return p.process.stop(syscall.SIGTERM, programGrace) }
