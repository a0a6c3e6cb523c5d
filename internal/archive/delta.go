package archive

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	// fewIDs is how many ids a report names.
	fewIDs = 10
	// idBytes is how much of an id a report shows; what is read of it is one
	// character more, so that a cut shows.
	idBytes     = 200
	idBytesRead = idBytes + 4
)

// Delta counts the documents that differ in one way.
type Delta struct {
	Count int64 `json:"count"`
	// IDs are the first few, made printable.
	IDs []string `json:"ids,omitempty"`
}

// printable returns text that a terminal, a log and a column of type text can
// hold: what does not print is escaped, what is very long is cut.
func printable(s string) string {
	cut := len(s) > idBytes
	if cut {
		s = s[:idBytes]
		for len(s) > 0 && !utf8.ValidString(s[max(0, len(s)-utf8.UTFMax):]) {
			s = s[:len(s)-1]
		}
	}
	quoted := strconv.Quote(s)
	s = strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
	if cut {
		s += "…"
	}
	return s
}
