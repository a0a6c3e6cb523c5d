package contracts

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
