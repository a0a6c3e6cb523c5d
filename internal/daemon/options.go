package daemon

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Problem is an option that has no usable value.
type Problem struct {
	// Option is the name of the field of the options.
	Option string
	// Want says what it wants, and never repeats the value: it may be a secret.
	Want string
}

// InvalidError lists all options that have no usable value.
type InvalidError struct{ Problems []Problem }

func (e *InvalidError) Error() string {
	var all []string
	for _, p := range e.Problems {
		all = append(all, p.Option+": "+p.Want)
	}
	return strings.Join(all, "; ")
}

// Check collects what is wrong with options.
type Check struct{ problems []Problem }

// Want notes what the option wants unless it is met.
func (c *Check) Want(met bool, option, format string, args ...any) {
	if !met {
		c.problems = append(c.problems, Problem{Option: option, Want: fmt.Sprintf(format, args...)})
	}
}

// Err is an InvalidError with all problems, or nil.
func (c *Check) Err() error {
	if len(c.problems) > 0 {
		return &InvalidError{Problems: c.problems}
	}
	return nil
}

// SetDefault gives an option that is zero its standard value.
func SetDefault[T comparable](option *T, standard T) {
	var zero T
	if *option == zero {
		*option = standard
	}
}

// ValidListen reports whether a server can listen on host:port.
func ValidListen(address string) bool {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}
