package pgtest

import "testing"

// LeftOut reports whether the n-th case of a table of faults is left out under
// -short, as the race detector runs them: a race shows in any of them, and a
// fault that is not survived shows when the whole table is run.
func LeftOut(n int64) bool { return testing.Short() && n%4 != 1 }
