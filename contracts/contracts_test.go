package contracts_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/rollingd/rollingd/contracts"
)

func TestDynamicTypesIsSortedAndACopy(t *testing.T) {
	want := []string{"cashflow", "inventory_movement", "order", "payment"}
	types := contracts.DynamicTypes()
	if !slices.Equal(types, want) {
		t.Fatalf("DynamicTypes() = %q, want %q", types, want)
	}
	types[0] = "product"
	if got := contracts.DynamicTypes(); !slices.Equal(got, want) {
		t.Errorf("DynamicTypes() = %q after a caller changed its copy", got)
	}
}

// What a device receives is what the accessors over the struct say.
func TestFlagsAgreeWithTheirJSON(t *testing.T) {
	for bits := range 8 {
		flags := contracts.DeviceFlags{
			RollingDbEnabled:      bits&1 != 0,
			RollingDbDeviceRouted: bits&2 != 0,
			RollingDbDropEnabled:  bits&4 != 0,
		}
		raw, err := json.Marshal(flags)
		if err != nil {
			t.Fatal(err)
		}
		if flags.IsRollingDb() != contracts.IsRollingDb(raw) || flags.IsRollingDbDrop() != contracts.IsRollingDbDrop(raw) {
			t.Errorf("%s: the struct and its JSON disagree", raw)
		}
	}
}

// The vectors hold JSON values; these are bytes that are none.
func TestFlagsThatAreNotJSONAreOff(t *testing.T) {
	for _, raw := range []string{"", " ", "{", `{"rollingDb":true`, `{"rollingDb":true}}`, "\xff", `{rollingDb:true}`} {
		if contracts.IsRollingDb([]byte(raw)) || contracts.IsRollingDbDrop([]byte(raw)) {
			t.Errorf("%q is on", raw)
		}
	}
	if !contracts.IsRollingDb([]byte(" {\n\"rollingDb\" :\ttrue } ")) {
		t.Error("white space turns the flags off")
	}
}

func TestParseDayManifestReadsWhatTheServerWrites(t *testing.T) {
	day, suffix := "20261130", "daily_20261130"
	for name, m := range map[string]contracts.DayManifest{
		"a current day": {CurrentBusinessDay: &day, CurrentDayDB: &suffix},
		"no day":        {},
	} {
		m.ID, m.Type, m.SchemaVersion = contracts.ManifestID, contracts.ManifestType, contracts.ManifestSchemaVersion
		m.Overlays = []contracts.Overlay{{BusinessDay: "20261129", DBName: "daily_20261129"}}
		m.Generation, m.UpdatedAt = 7, "2026-11-30T08:00:03Z"
		raw, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := contracts.ParseDayManifest(raw)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		again, err := json.Marshal(parsed)
		if err != nil {
			t.Fatal(err)
		}
		if string(again) != string(raw) {
			t.Errorf("%s: read back as %s, want %s", name, again, raw)
		}
	}
}

func ExampleParseDBName() {
	name, err := contracts.ParseDBName("prod_acme_r-1_daily_20261130")
	fmt.Println(name.CompanyID, name.RestaurantID, name.Kind, name.BusinessDay, err)

	_, err = contracts.ParseDBName("prod_acme_r-1_daily_20260230")
	fmt.Println(err)
	// Output:
	// acme r-1 daily 20261130 <nil>
	// invalid database name: "prod_acme_r-1_daily_20260230"
}
