package main

import (
	"encoding/json"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/daydb"
)

// revised is a manifest with the revision that it follows.
type revised struct {
	contracts.DayManifest
	Rev string `json:"_rev,omitempty"`
}

func manifestOf(day daydb.Day, generation int64, rev string) revised {
	current := day.String()
	suffix := "daily_" + current
	return revised{
		DayManifest: contracts.DayManifest{
			ID:                 contracts.ManifestID,
			Type:               contracts.ManifestType,
			SchemaVersion:      contracts.ManifestSchemaVersion,
			CurrentBusinessDay: &current,
			CurrentDayDB:       &suffix,
			Overlays:           []contracts.Overlay{},
			Generation:         generation,
			UpdatedAt:          "2026-11-01T08:00:00Z",
		},
		Rev: rev,
	}
}

func revOf(doc []byte) (string, error) {
	var r struct {
		Rev string `json:"_rev"`
	}
	err := json.Unmarshal(doc, &r)
	return r.Rev, err
}
