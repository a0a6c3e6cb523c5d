// Package contracts is the Go mirror of the contracts that devices and the
// server share: which document types rotate, how databases are named, and the
// shapes of the manifest, the flags and the continuity queue.
//
// The TypeScript files beside it are the same rules for devices. The golden
// vectors in vectors/ run on both sides, and scripts/verify-contracts-parity.sh
// reports every divergence. The package is a leaf: standard library only.
package contracts

import (
	"maps"
	"slices"
)

// terminalStatuses holds the document types that rotate by business day and,
// for each, the statuses that end a document's life. A nil list means that the
// type is an append-only fact, terminal from birth.
//
// The set of keys is both the set that rotates and the set that is archived.
// One map for both is deliberate: a type that rotated without being archived
// would be lost when its day database is dropped.
var terminalStatuses = map[string][]string{
	"order":              {"closed", "cancelled", "refunded"},
	"payment":            {"approved", "rejected", "refunded", "voided"},
	"cashflow":           {"closed"},
	"inventory_movement": nil,
}

// DynamicTypes returns the document types that live in day databases, sorted.
// The slice is the caller's to change.
func DynamicTypes() []string {
	return slices.Sorted(maps.Keys(terminalStatuses))
}

// IsDynamic reports whether documents of docType live in day databases. Types
// are exact and case-sensitive; every other type, the empty one included,
// belongs to core.
func IsDynamic(docType string) bool {
	_, ok := terminalStatuses[docType]
	return ok
}

// IsTerminal reports whether a document of docType whose field "status" holds
// status will not change any more, so that it may be archived and its day
// dropped. An unknown status or an absent one (the empty string) is not
// terminal, and neither is any document of a type that does not rotate.
func IsTerminal(docType, status string) bool {
	statuses, ok := terminalStatuses[docType]
	if !ok {
		return false
	}
	return statuses == nil || slices.Contains(statuses, status)
}

// KindOf returns the kind of database that documents of docType live in:
// KindDaily for the types that rotate, KindCore for all others.
func KindOf(docType string) Kind {
	if IsDynamic(docType) {
		return KindDaily
	}
	return KindCore
}
