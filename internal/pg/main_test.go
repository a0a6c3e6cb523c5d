package pg_test

import (
	"os"
	"testing"

	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

// TestMain is also the entry of the processes that TestMigratorsThatStartTogether starts.
func TestMain(m *testing.M) {
	if dsn := os.Getenv(migratorVariable); dsn != "" {
		os.Exit(runMigrator(dsn))
	}
	pgtest.Main(m)
}
