package contracts

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// Identity of the manifest: one document, always this id and type, in core.
const (
	ManifestID            = "day_manifest"
	ManifestType          = "day_manifest"
	ManifestSchemaVersion = 1
)

// Overlay is a DRAINING day that devices keep mounted to finish its open
// documents. DBName is the logical suffix daily_${BusinessDay}.
type Overlay struct {
	BusinessDay string `json:"businessDay"`
	DBName      string `json:"dbName"`
}

// DayManifest is the document that tells the devices of a restaurant which day
// database is current and which to mount beside it. Only the server writes it.
type DayManifest struct {
	ID            string `json:"_id"`
	Type          string `json:"type"`
	SchemaVersion int    `json:"schemaVersion"`

	// CurrentBusinessDay (YYYYMMDD) and CurrentDayDB (daily_YYYYMMDD) are both
	// set, or both nil when the restaurant has no ACTIVE day.
	CurrentBusinessDay *string `json:"currentBusinessDay"`
	CurrentDayDB       *string `json:"currentDayDb"`

	// Overlays are ordered newest first, without the current day.
	Overlays []Overlay `json:"overlays"`

	// Generation is the fencing token of the run that wrote the document; core
	// refuses a lower one than it holds.
	Generation int64 `json:"generation"`

	// UpdatedAt is an RFC 3339 instant. It informs people; nothing orders by it.
	UpdatedAt string `json:"updatedAt"`
}

// ErrInvalidManifest is the cause of every refusal to read a manifest: it is
// damaged, or of a newer schema than this one.
var ErrInvalidManifest = errors.New("invalid day manifest")

// maxSafeInteger is the largest generation that a device can read exactly.
const maxSafeInteger = 1<<53 - 1

// ParseDayManifest reads a manifest out of whatever core holds under its id, by
// the rules that devices read it. Fields that this schema does not know are
// dropped. It decodes to plain maps because encoding/json matches the keys of a
// struct without regard to case, and a device does not.
func ParseDayManifest(raw []byte) (DayManifest, error) {
	var doc map[string]any
	if err := json.Unmarshal(raw, &doc); err != nil {
		return DayManifest{}, fmt.Errorf("%w: %w", ErrInvalidManifest, err)
	}
	if doc["_id"] != ManifestID || doc["type"] != ManifestType {
		return DayManifest{}, fmt.Errorf("%w: not the manifest", ErrInvalidManifest)
	}
	if doc["schemaVersion"] != float64(ManifestSchemaVersion) {
		return DayManifest{}, fmt.Errorf("%w: schemaVersion", ErrInvalidManifest)
	}
	generation, ok := doc["generation"].(float64)
	if !ok || generation < 1 || generation > maxSafeInteger || generation != math.Trunc(generation) {
		return DayManifest{}, fmt.Errorf("%w: generation", ErrInvalidManifest)
	}
	updatedAt, ok := doc["updatedAt"].(string)
	if !ok {
		return DayManifest{}, fmt.Errorf("%w: updatedAt", ErrInvalidManifest)
	}
	m := DayManifest{
		ID:            ManifestID,
		Type:          ManifestType,
		SchemaVersion: ManifestSchemaVersion,
		Overlays:      []Overlay{},
		Generation:    int64(generation),
		UpdatedAt:     updatedAt,
	}
	mounted := map[string]bool{}
	if !isNull(doc, "currentBusinessDay") || !isNull(doc, "currentDayDb") {
		current, ok := parseDay(doc["currentBusinessDay"], doc["currentDayDb"])
		if !ok {
			return DayManifest{}, fmt.Errorf("%w: current day", ErrInvalidManifest)
		}
		m.CurrentBusinessDay, m.CurrentDayDB = &current.BusinessDay, &current.DBName
		mounted[current.BusinessDay] = true
	}
	overlays, ok := doc["overlays"].([]any)
	if !ok {
		return DayManifest{}, fmt.Errorf("%w: overlays", ErrInvalidManifest)
	}
	for _, entry := range overlays {
		fields, _ := entry.(map[string]any)
		overlay, ok := parseDay(fields["businessDay"], fields["dbName"])
		if !ok || mounted[overlay.BusinessDay] {
			return DayManifest{}, fmt.Errorf("%w: overlays", ErrInvalidManifest)
		}
		mounted[overlay.BusinessDay] = true
		m.Overlays = append(m.Overlays, overlay)
	}
	return m, nil
}

// isNull tells an explicit null, which the contract asks for, from an absent
// field.
func isNull(doc map[string]any, key string) bool {
	value, present := doc[key]
	return present && value == nil
}

// parseDay reads a day and its suffix, provided that they name the same day.
func parseDay(businessDay, dbName any) (Overlay, bool) {
	day, _ := businessDay.(string)
	suffix, err := DailySuffix(day)
	if err != nil || dbName != suffix {
		return Overlay{}, false
	}
	return Overlay{BusinessDay: day, DBName: suffix}, true
}
