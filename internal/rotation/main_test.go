package rotation_test

import (
	"flag"
	"testing"

	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

func TestMain(m *testing.M) {
	// A check takes a second of stores; -rapid.checks asks for more of them.
	if err := flag.Set("rapid.checks", "10"); err != nil {
		panic(err)
	}
	pgtest.Main(m)
}
