package fence_test

import (
	"os"
	"testing"

	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

// TestMain is also the entry of the process that TestStoppedHolderWritesNothing pauses.
func TestMain(m *testing.M) {
	if dsn := os.Getenv(holderVariable); dsn != "" {
		os.Exit(runHolder(dsn))
	}
	pgtest.Main(m)
}
