// Package manifest keeps day_manifest, the document in core that tells the
// devices of a restaurant which day database is current. It is derived from the
// ledger and flows one way, from SQL to core.
package manifest

import (
	"encoding/json"
	"reflect"
	"slices"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/daydb"
)

// Build returns the manifest of a restaurant's days, without generation and
// time: the ACTIVE day is current and the DRAINING days are overlays, newest
// first. A day whose database was never created and secured is not named, and
// neither is a day in another state.
func Build(days []daydb.DayDB) contracts.DayManifest {
	m := contracts.DayManifest{
		ID:            contracts.ManifestID,
		Type:          contracts.ManifestType,
		SchemaVersion: contracts.ManifestSchemaVersion,
		Overlays:      []contracts.Overlay{},
	}
	for _, d := range days {
		if d.InstanceStartTime == nil {
			continue
		}
		day := d.BusinessDay.String()
		suffix, err := contracts.DailySuffix(day)
		if err != nil {
			continue // A day of the ledger is a real one.
		}
		switch d.State {
		case daydb.Active:
			m.CurrentBusinessDay, m.CurrentDayDB = &day, &suffix
		case daydb.Draining:
			m.Overlays = append(m.Overlays, contracts.Overlay{BusinessDay: day, DBName: suffix})
		}
	}
	// The one format of a day sorts as text.
	slices.SortFunc(m.Overlays, func(a, b contracts.Overlay) int {
		switch {
		case a.BusinessDay > b.BusinessDay:
			return -1
		case a.BusinessDay < b.BusinessDay:
			return 1
		}
		return 0
	})
	return m
}

// says reports whether a stored document is a manifest of this content, whatever
// its generation and time. A field too many is damage like a field too few.
func says(raw []byte, want contracts.DayManifest) bool {
	if _, err := contracts.ParseDayManifest(raw); err != nil {
		return false
	}
	encoded, err := json.Marshal(want)
	if err != nil {
		return false
	}
	have, wanted := content(raw), content(encoded)
	return have != nil && reflect.DeepEqual(have, wanted)
}

// content is a manifest without the fields that differ from one write to the
// next, or nil if it is no object.
func content(raw []byte) map[string]any {
	var doc map[string]any
	if json.Unmarshal(raw, &doc) != nil {
		return nil
	}
	for _, key := range []string{"_rev", "generation", "updatedAt"} {
		delete(doc, key)
	}
	return doc
}
