package couch_test

import (
	"bytes"
	"compress/gzip"
	"strings"
	"testing"
)

func TestJSONFidelity(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		for in, want := range map[string]string{
			`[1.0,1,1.10,1e2,1E+2,1e22]`:                `[1.0,1,1.1,100.0,100.0,1e+22]`,
			`[-0,-0.0,1e-400,0.1234567890123456789012]`: `[0,0.0,0.0,0.12345678901234568]`,
			`[9007199254740993,1e20,1e21,1e-6,1e-7]`:    `[9007199254740993,100000000000000000000.0,1e+21,0.000001,1e-7]`,
			`123456789012345678901234567890`:            `123456789012345678901234567890`,
			`1e308`:                                     `1e+308`,
			`{"a":1,"a":2}`:                             `{"a":2}`,
			`{"z":1,"y":{"b":1,"a":2},"x":0}`:           `{"z":1,"y":{"b":1,"a":2},"x":0}`,
			`{"a":1,"b":2,"a":3,"c":4}`:                 `{"b":2,"a":3,"c":4}`,
			`"a\u0000b"`:                                `"a\u0000b"`,
			`{"k\u0000":1,"":2}`:                        `{"k\u0000":1,"":2}`,
			`"\u001f\u007f\u0080\/\b\f\n\r\t\"\\"`:      "\"\\u001F\u007f\u0080/\\b\\f\\n\\r\\t\\\"\\\\\"",
			`"\ud83d\ude00\uffff\u2028<>&é"`:            "\"😀\uffff\u2028<>&é\"",
			` { "x" : [ ] , "y" : { } } `:               `{"x":[],"y":{}}`,
		} {
			created := c.post(db, `{"v":`+in+`}`)
			expect(t, "put "+in, created, 201)
			expect(t, "get "+in, c.get(db+"/"+created.str(t, "id")), 200, `"v":`+want+`}`)
		}
		for _, in := range []string{
			"1e400", "NaN", "Infinity", "01", "1.", "-", "tru", `"\ud800"`, `"\udc00"`, `"\ud800\u0041"`, "\"\x01\"", "\"\xff\"", "\"\xed\xa0\x80\"",
			`{"a":1,}`, "[1,]", "1 2", "'a'", `"\x"`,
		} {
			expect(t, "refuse "+in, c.put(db+"/bad", `{"v":`+in+`}`), 400, "invalid UTF-8 JSON")
		}
		expect(t, "byte order mark", c.put(db+"/bad", "\ufeff{}"), 400, "invalid UTF-8 JSON")
		expect(t, "one bad document refuses them all", c.post(db+"/_bulk_docs", `{"docs":[{"_id":"good"},{"_id":"bad","v":"\ud800"}]}`), 400, "invalid UTF-8 JSON")
		expect(t, "so the good one is not there", c.get(db+"/good"), 404)
	})
}

func TestDeepNesting(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		deep := `"v":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + "}"
		expect(t, "put", c.put(db+"/deep", "{"+deep), 201)
		for _, path := range []string{"/deep", "/_changes?include_docs=true", "/_all_docs?include_docs=true"} {
			if a := c.get(db + path); !strings.Contains(a.body, deep) {
				t.Errorf("%s does not hold the nesting: %d bytes, status %d", path, len(a.body), a.status)
			}
		}
	})
}

// The bytes of a document are the same in every answer, which is what makes a
// hash over them worth something.
func TestSameBytesEverywhere(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		rev := c.put(db+"/d", `{"z":1.0,"a":"\u0000é","n":[1e3,{}]}`).str(t, "rev")
		want := `{"_id":"d","_rev":"` + rev + `","z":1.0,"a":"\u0000é","n":[1000.0,{}]}`
		check := func(when string) {
			expect(t, when+" GET", c.get(db+"/d"), 200, want)
			expect(t, when+" GET of the revision", c.get(db+"/d?rev="+rev), 200, want)
			expect(t, when+" open_revs", c.get(db+"/d?open_revs=all"), 200, `{"ok":`+want+`}`)
			expect(t, when+" changes", c.get(db+"/_changes?include_docs=true"), 200, `"doc":`+want+`}`)
			expect(t, when+" all_docs", c.get(db+"/_all_docs?include_docs=true"), 200, `"doc":`+want+`}`)
			expect(t, when+" bulk_get", c.post(db+"/_bulk_get", `{"docs":[{"id":"d","rev":"`+rev+`"}]}`), 200, `{"ok":`+want+`}`)
			expect(t, when+" find", c.post(db+"/_find", `{"selector":{"_id":"d"}}`), 200, want)
		}
		check("before compaction")
		expect(t, "compact", c.do("POST", db+"/_compact", "", "Content-Type: application/json"), 202)
		check("after compaction")
	})
}

func TestDocumentSize(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		expect(t, "7.9 MB", c.put(db+"/fits", `{"v":"`+strings.Repeat("x", 7_900_000)+`"}`), 201)
		big := `"v":"` + strings.Repeat("x", 8_100_000) + `"}`
		expect(t, "8.1 MB", c.put(db+"/big", "{"+big), 413, "document_too_large")
		expect(t, "8.1 MB among others", c.post(db+"/_bulk_docs", `{"docs":[{"_id":"good"},{"_id":"big",`+big+`]}`), 413, `"error":"document_too_large","reason":"big"`)
		expect(t, "none of them is there", c.get(db+"/good"), 404)
	})
}

func TestCompressedRequest(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		var body bytes.Buffer
		z := gzip.NewWriter(&body)
		_, _ = z.Write([]byte(`{"docs":[{"_id":"zipped"}]}`))
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		expect(t, "gzip", c.do("POST", db+"/_bulk_docs", body.String(), "Content-Encoding: gzip"), 201, `"id":"zipped"`)
		expect(t, "not gzip", c.do("POST", db+"/_bulk_docs", `{"docs":[]}`, "Content-Encoding: gzip"), 400, "Request body is not properly gzipped.")
	})
}
