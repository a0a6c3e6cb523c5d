package couch

import (
	"testing"

	"github.com/rollingd/rollingd/internal/devstack/couch/store"
)

func TestSeq(t *testing.T) {
	mine := store.Meta{Incarnation: [8]byte{1}, UpdateSeq: 9}
	text := string(appendSeq(nil, mine.Incarnation, 7, seqInChanges))
	if n, err := parseSeq(text, mine); n != 7 || err != nil {
		t.Errorf("parseSeq(%s) = %d, %v", text, n, err)
	}
	if n, err := parseSeq(text, store.Meta{Incarnation: [8]byte{2}}); n != 0 || err != nil {
		t.Errorf("in another incarnation: %d, %v", n, err)
	}
	if n, err := parseSeq("now", mine); n != 9 || err != nil {
		t.Errorf("now = %d, %v", n, err)
	}
	if other := string(appendSeq(nil, mine.Incarnation, 7, seqInInfo)); other == text {
		t.Error("sequences of different answers are equal as text")
	}
}

func FuzzParseSeq(f *testing.F) {
	meta := store.Meta{Incarnation: [8]byte{1, 2, 3}, UpdateSeq: 5}
	f.Add(string(appendSeq(nil, meta.Incarnation, 7, seqInChanges)))
	f.Add("7-g1AAAA")
	f.Fuzz(func(t *testing.T, text string) {
		n, err := parseSeq(text, meta)
		if err != nil || n == 0 || text == "now" {
			return
		}
		again, err := parseSeq(string(appendSeq(nil, meta.Incarnation, n, seqInInfo)), meta)
		if err != nil || again != n {
			t.Fatalf("%q is %d, and that is %d, %v", text, n, again, err)
		}
	})
}
