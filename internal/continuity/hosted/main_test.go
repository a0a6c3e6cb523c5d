package hosted_test

import (
	"testing"

	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
