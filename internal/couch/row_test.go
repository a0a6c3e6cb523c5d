package couch

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func TestParseRow(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 20000) + `1` + strings.Repeat(`}`, 20000)
	for name, tc := range map[string]struct {
		line string
		want Change
	}{
		"plain": {
			`{"seq":"3-g1","id":"o1","changes":[{"rev":"1-a"}]}`,
			Change{Seq: "3-g1", ID: "o1", Revs: []string{"1-a"}},
		},
		"between intervals": {
			`{"seq":null,"id":"o1","changes":[{"rev":"1-a"}],"doc":{"_id":"o1","_rev":"1-a"}}`,
			Change{ID: "o1", Revs: []string{"1-a"}, Doc: []byte(`{"_id":"o1","_rev":"1-a"}`)},
		},
		"several leaves, deleted": {
			`{"seq":"9-x","id":"o4","changes":[{"rev":"2-l2"},{"rev":"5-d1"}],"deleted":true,"doc":{"_id":"o4","_rev":"2-l2","_deleted":true}}`,
			Change{Seq: "9-x", ID: "o4", Deleted: true, Revs: []string{"2-l2", "5-d1"}, Doc: []byte(`{"_id":"o4","_rev":"2-l2","_deleted":true}`)},
		},
		"escapes in the id": {
			`{"seq":"1-x","id":"caf\u00e9\"\n\\\u0000","changes":[{"rev":"1-a"}]}`,
			Change{Seq: "1-x", ID: "café\"\n\\\x00", Revs: []string{"1-a"}},
		},
		"numbers and escapes of the document are kept": {
			`{"seq":"1-x","id":"n","changes":[{"rev":"1-a"}],"doc":{"_id":"n","_rev":"1-a","v":1.0,"w":9007199254740993,"z":"\u0000<>"}}`,
			Change{Seq: "1-x", ID: "n", Revs: []string{"1-a"}, Doc: []byte(`{"_id":"n","_rev":"1-a","v":1.0,"w":9007199254740993,"z":"\u0000<>"}`)},
		},
		"twenty thousand levels": {
			`{"seq":"1-x","id":"d","changes":[{"rev":"1-a"}],"doc":` + deep + `}`,
			Change{Seq: "1-x", ID: "d", Revs: []string{"1-a"}, Doc: []byte(deep)},
		},
		"no document": {
			`{"seq":"1-x","id":"d","changes":[{"rev":"1-a"}],"doc":null}`,
			Change{Seq: "1-x", ID: "d", Revs: []string{"1-a"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got Change
			if err := got.parse([]byte(tc.line)); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %.200v, want %.200v", got, tc.want)
			}
		})
	}
}

func TestParseRowRefusesOtherForms(t *testing.T) {
	for _, line := range []string{
		``,
		`{`,
		`{"seq":"1-x"`,
		`{"id":"a","seq":"1-x","changes":[{"rev":"1-a"}]}`,
		`{"seq":"1-x","id":"a","changes":[]}`,
		`{"seq":"1-x","id":"a","changes":[{"rev":"1-a"}]`,
		`{"seq":"1-x","id":"a","changes":[{"rev":"1-a"}],"doc":{"_id":"a"`,
		`{"seq":"1-x","id":"a","changes":[{"rev":"1-a"}],"doc":`,
		`{"seq":"1-x","id":"a\`,
		`{"error":"timeout","reason":"The request could not be processed in a reasonable amount of time."}`,
	} {
		var ch Change
		if err := ch.parse([]byte(line)); err == nil && ch.Doc == nil {
			t.Errorf("%q was taken as %+v", line, ch)
		}
	}
}

// FuzzParseRow holds the reader against encoding/json: what the reader takes of
// a well-formed row, encoding/json reads the same.
func FuzzParseRow(f *testing.F) {
	f.Add("o1", "1-a", "2-b", true, `{"a":"}]"}`)
	f.Add("é\"\\\n\x00", "1-a", "", false, ``)
	f.Fuzz(func(t *testing.T, id, rev, second string, deleted bool, doc string) {
		type leaf struct {
			Rev string `json:"rev"`
		}
		row := struct {
			Seq     string          `json:"seq"`
			ID      string          `json:"id"`
			Changes []leaf          `json:"changes"`
			Deleted bool            `json:"deleted,omitempty"`
			Doc     json.RawMessage `json:"doc,omitempty"`
		}{Seq: "1-x", ID: id, Changes: []leaf{{rev}}, Deleted: deleted}
		if second != "" {
			row.Changes = append(row.Changes, leaf{second})
		}
		if len(doc) > 0 && doc[0] == '{' && json.Valid([]byte(doc)) {
			row.Doc = json.RawMessage(doc)
		}
		line, err := json.Marshal(row)
		if err != nil {
			t.Skip()
		}
		var got Change
		if err := got.parse(line); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		var want struct {
			ID      string
			Changes []leaf
			Doc     json.RawMessage
		}
		if err := json.Unmarshal(line, &want); err != nil {
			t.Fatal(err)
		}
		if got.ID != want.ID || len(got.Revs) != len(want.Changes) || got.Deleted != deleted || !bytes.Equal(got.Doc, want.Doc) {
			t.Errorf("%s: got %+v", line, got)
		}
		for i, l := range want.Changes {
			if got.Revs[i] != l.Rev {
				t.Errorf("%s: revision %d is %q", line, i, got.Revs[i])
			}
		}
	})
}
