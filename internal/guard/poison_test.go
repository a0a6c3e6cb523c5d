package guard

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/archive"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/fence"
)

// poison is what tills have been seen to store, and what CouchDB takes, as
// members of a finished order. Each must come through unharmed.
var poison = map[string]string{
	"number one":        `"v":1.0`,
	"beyond 2^53":       `"v":9007199254740993`,
	"huge exponent":     `"v":1e308,"w":1e22,"x":1E+2`,
	"many digits":       `"v":0.1234567890123456789012345`,
	"minus zero":        `"v":-0,"w":-0.0`,
	"duplicate keys":    `"a":1,"a":2,"o":{"b":1,"b":2}`,
	"NUL in a value":    `"v":"a\u0000b"`,
	"NUL in a key":      `"a\u0000b":1`,
	"key order":         `"z":1,"a":2,"m":{"z":1,"a":2}`,
	"5,000 levels":      `"v":` + strings.Repeat(`[`, 5000) + strings.Repeat(`]`, 5000),
	"20,000 levels":     `"v":` + strings.Repeat(`{"a":`, 20000) + `1` + strings.Repeat(`}`, 20000),
	"escapes":           `"v":"\uffff\u2028<>&\/\u001f\t\"\\"`,
	"emoji":             `"v":"é😀","w":"\ud83d\ude00"`,
	"composed":          "\"v\":\"\u00e9\",\"w\":\"e\u0301\"",
	"nested id":         `"o":{"_id":"x","_rev":"1-a","_deleted":true}`,
	"several megabytes": `"v":"` + strings.Repeat("m", 4<<20) + `"`,
	"looks like a row":  `"v":"}},\r\n{\"seq\":\"1-x\",\"id\":\"y\"}\n],\n\"last_seq\":\"1\""`,
	"deleted as text":   `"v":"\"deleted\":true","deleted":true`,
}

// poisonIDs are ids as JSON strings.
var poisonIDs = []string{
	`"a/b"`, `"a%2Fb"`, `"é😀"`, `" lead"`, `"a\nb"`, `"A"`, `"a"`, `"i\u0000d"`, `"a+b?c#d&e"`, `"\"quoted\"\\"`,
	"\"\u00e9\"", "\"e\u0301\"", `"` + strings.Repeat("long", 25000) + `"`,
}

// TestPoisonComesThroughUnharmed takes the corpus through archive, proof, drop
// and restore, and compares the bytes that CouchDB sends before and after.
func TestPoisonComesThroughUnharmed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.draining(40)
	var docs [][]byte
	for name, members := range poison {
		docs = append(docs, []byte(fmt.Sprintf(`{"_id":"%s","type":"order","status":"closed",%s}`, name, members)))
	}
	for _, id := range poisonIDs {
		docs = append(docs, []byte(fmt.Sprintf(`{"_id":%s,"type":"order","status":"closed"}`, id)))
	}
	for _, doc := range docs {
		w.postRaw(d.Name, doc)
	}
	before := w.bodies(d.Name)
	if len(before) != len(docs) {
		t.Fatalf("%d documents of %d arrived", len(before), len(docs))
	}
	g := w.guard(parts{})
	w.nights(g, d.Name, daydb.Dropped)
	if proof := w.day(d.Name).Proof; proof.Documents != int64(len(docs)) {
		t.Errorf("the proof is of %d documents, not %d", proof.Documents, len(docs))
	}

	log := slog.New(slog.DiscardHandler)
	archiver := archive.New(archive.Options{
		Pool: w.pool, Couch: w.couch, Leases: fence.New(w.pool, "test", time.Minute), Log: log, Env: w.env,
	})
	restored, err := archiver.Restore(t.Context(), w.day(d.Name), "a test", "test")
	if err != nil {
		t.Fatal(err)
	}
	after := w.bodies(restored.DBName)
	for id, body := range before {
		if !bytes.Equal(after[id], body) {
			t.Errorf("%.40q came back as %.200q, was %.200q", id, after[id], body)
		}
	}
	if len(after) != len(before) {
		t.Errorf("%d documents came back, of %d", len(after), len(before))
	}
}

// postRaw writes one document of exactly these bytes.
func (w *world) postRaw(db string, doc []byte) {
	w.t.Helper()
	body := append(append([]byte(`{"docs":[`), doc...), `]}`...)
	status, answer := w.requestRaw("POST", db+"/_bulk_docs", body)
	if status != 201 || !bytes.Contains(answer, []byte(`"ok":true`)) {
		w.t.Fatalf("%.80q: %d %s", doc, status, answer)
	}
}

// bodies returns the winning revision of every document as CouchDB sends it.
func (w *world) bodies(db string) map[string][]byte {
	w.t.Helper()
	feed, err := w.couch.Changes(w.t.Context(), db, couch.ChangesOptions{Since: couch.SeqStart, Docs: true})
	if err != nil {
		w.t.Fatal(err)
	}
	defer feed.Close()
	all := make(map[string][]byte)
	for feed.Next() {
		ch := feed.Change()
		if !strings.HasPrefix(ch.ID, "_design/") {
			all[ch.ID] = bytes.Clone(ch.Doc)
		}
	}
	if err := feed.Err(); err != nil {
		w.t.Fatal(err)
	}
	return all
}
