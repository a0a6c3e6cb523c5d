package api_test

import (
	"strings"
	"testing"
)

// TestDoctorNamesLegacyDatabasesThatAreAbsent: a typing error would be a catalogue
// that is empty.
func TestDoctorNamesLegacyDatabasesThatAreAbsent(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if found := s.deviceCheck("legacy databases", plane{}, s.couch); found.Status != "ok" {
		t.Errorf("a fleet without a legacy database: %+v", found)
	}
	if _, err := s.pool.Exec(t.Context(), `update restaurants set legacy_db = 'tabels'`); err != nil {
		t.Fatal(err)
	}
	found := s.deviceCheck("legacy databases", plane{}, s.couch)
	if found.Status != "warn" || !strings.Contains(found.Detail, "tabels") || !strings.Contains(found.Advice, "--legacy-db") {
		t.Errorf("a name that is no database's: %+v", found)
	}
}
