package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// took is what something took: time, and the CPU of the three sides. Those of
// the servers are 0 where the system does not tell.
type took struct {
	wall     time.Duration
	client   time.Duration
	couch    time.Duration
	postgres time.Duration
}

// serverCPU is the CPU time that the servers this process has started have used so far.
type serverCPU struct {
	couch    time.Duration
	postgres time.Duration
}

// timed runs fn, which returns time and CPU of the client's side, and adds what
// the servers used meanwhile.
func timed(fn func() (took, error)) (took, error) {
	before := readServerCPU()
	t, err := fn()
	after := readServerCPU()
	t.couch, t.postgres = after.couch-before.couch, after.postgres-before.postgres
	return t, err
}

// ownCPU is what this process has used so far.
func ownCPU() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// process is a line of /proc.
type process struct {
	parent  int
	program string
	// cpu includes that of children which have ended.
	cpu time.Duration
}

// clockTick is the unit of the times in /proc.
const clockTick = 10 * time.Millisecond

func readServerCPU() serverCPU {
	all := make(map[int]process)
	files, _ := filepath.Glob("/proc/[0-9]*/stat") // The pattern is well-formed.
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			continue // It has ended.
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if p, ok := parseStat(content); ok {
			all[pid] = p
		}
	}
	var sum serverCPU
	for pid, p := range all {
		switch rootBelow(all, pid, os.Getpid()) {
		case "":
		case "postgres":
			sum.postgres += p.cpu
		default:
			sum.couch += p.cpu
		}
	}
	return sum
}

// parseStat reads "pid (program) state ppid … utime stime cutime cstime …".
func parseStat(content []byte) (process, bool) {
	open, closed := bytes.IndexByte(content, '('), bytes.LastIndexByte(content, ')')
	if open < 0 || closed < open {
		return process{}, false
	}
	const parent, utime, cstime = 1, 11, 14
	fields := strings.Fields(string(content[closed+1:]))
	if len(fields) <= cstime {
		return process{}, false
	}
	p := process{program: string(content[open+1 : closed])}
	p.parent, _ = strconv.Atoi(fields[parent])
	for _, field := range fields[utime : cstime+1] {
		ticks, _ := strconv.ParseInt(field, 10, 64)
		p.cpu += time.Duration(ticks) * clockTick
	}
	return p, true
}

// rootBelow returns the program of the ancestor of pid, or of pid itself, that is
// a child of top; "" when there is none.
func rootBelow(all map[int]process, pid, top int) string {
	for {
		p, ok := all[pid]
		switch {
		case !ok:
			return ""
		case p.parent == top:
			return p.program
		}
		pid = p.parent
	}
}

// memory is the resident memory of a process in bytes, now and at its highest.
type memory struct {
	now, peak int64
}

// memoryOf reads the memory of a process; zero where the system does not tell,
// or when it has ended.
func memoryOf(pid int) memory {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return memory{}
	}
	var m memory
	for line := range strings.Lines(string(content)) {
		key, value, _ := strings.Cut(line, ":")
		kilobytes, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			continue
		}
		switch key {
		case "VmRSS":
			m.now = kilobytes << 10
		case "VmHWM":
			m.peak = kilobytes << 10
		}
	}
	return m
}
