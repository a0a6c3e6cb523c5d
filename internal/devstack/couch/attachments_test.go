package couch_test

import (
	"crypto/md5"
	"encoding/base64"
	"io"
	"mime"
	"mime/multipart"
	"strings"
	"testing"
)

const png = "\x89PNG\r\n\x1a\n\x00binary"

func md5Base64(s string) string {
	sum := md5.Sum([]byte(s))
	return base64.StdEncoding.EncodeToString(sum[:])
}

func TestAttachments(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		text := strings.Repeat("receipt line\n", 200)
		first := c.do("PUT", db+"/r1/receipt.txt", text, "Content-Type: text/plain")
		expect(t, "put text", first, 201, `"id":"r1"`, `"rev":"1-`)
		rev1 := first.str(t, "rev")
		second := c.do("PUT", db+"/r1/sig.png?rev="+rev1, png, "Content-Type: image/png")
		expect(t, "put png", second, 201, `"rev":"2-`)
		rev2 := second.str(t, "rev")
		expect(t, "without rev", c.do("PUT", db+"/r1/x.png", png, "Content-Type: image/png"), 409, "conflict")

		doc := c.get(db + "/r1?att_encoding_info=true")
		expect(t, "stubs", doc, 200, `"sig.png":{"content_type":"image/png","revpos":2,"digest":"md5-`+md5Base64(png)+`","length":15,"stub":true}`,
			`"receipt.txt":{"content_type":"text/plain","revpos":1,"digest":"md5-`, `"length":2600,"stub":true,"encoding":"gzip","encoded_length":`)
		if strings.Contains(doc.body, md5Base64(text)) {
			t.Error("the digest of text is that of the text; CouchDB's is of the compressed bytes")
		}
		zipped := c.do("GET", db+"/r1/receipt.txt", "", "Accept-Encoding: gzip", "Accept: */*")
		if zipped.header.Get("Content-Encoding") != "gzip" || !strings.Contains(doc.body, md5Base64(zipped.body)) {
			t.Errorf("compressed text: encoding %q, digest %s", zipped.header.Get("Content-Encoding"), md5Base64(zipped.body))
		}
		if plain := c.do("GET", db+"/r1/receipt.txt", "", "Accept-Encoding: identity", "Accept: */*"); plain.body != text || plain.header.Get("Content-Type") != "text/plain" {
			t.Errorf("text comes back with %d bytes as %s", len(plain.body), plain.header.Get("Content-Type"))
		}
		if got := c.get(db + "/r1/sig.png"); got.body != png {
			t.Errorf("png comes back as %q", got.body)
		}
		inline := `"data":"` + base64.StdEncoding.EncodeToString([]byte(text)) + `"`
		for _, path := range []string{"/r1?attachments=true", "/_changes?include_docs=true&attachments=true", "/_all_docs?include_docs=true&attachments=true"} {
			expect(t, "inline in "+path, c.get(db+path), 200, inline)
		}
		expect(t, "inline in _bulk_get", c.post(db+"/_bulk_get?attachments=true", `{"docs":[{"id":"r1"}]}`), 200, inline)
		expect(t, "only the newer ones", c.get(db+`/r1?atts_since=["`+rev1+`"]`), 200, `"length":2600,"stub":true`, `"data":"`+base64.StdEncoding.EncodeToString([]byte(png)))
		expect(t, "missing attachment", c.get(db+"/r1/none"), 404, "Document is missing attachment")

		kept := c.put(db+"/r1", `{"_rev":"`+rev2+`","_attachments":{"sig.png":{"stub":true},"new":{"content_type":"text/html","data":"aGk="}}}`)
		expect(t, "keep by stub", kept, 201)
		expect(t, "the stub is the old attachment", c.get(db+"/r1"), 200, `"sig.png":{"content_type":"image/png","revpos":2`, `"new":{"content_type":"text/html","revpos":3`)
		expect(t, "stub of nothing", c.put(db+"/r1", `{"_rev":"`+kept.str(t, "rev")+`","_attachments":{"none":{"stub":true}}}`), 412, "missing_stub")
		removed := c.do("DELETE", db+"/r1/new?rev="+kept.str(t, "rev"), "")
		expect(t, "delete one", removed, 200)
		expect(t, "it is gone", c.get(db+"/r1/new"), 404)
		expect(t, "delete the document", c.do("DELETE", db+"/r1?rev="+removed.str(t, "rev"), ""), 200)
		expect(t, "the old revision has it", c.get(db+"/r1/sig.png?rev="+rev2), 200)
		tombstone := c.get(db + "/_changes?include_docs=true")
		if strings.Contains(tombstone.body, "_attachments") {
			t.Errorf("the tombstone has attachments: %s", tombstone.body)
		}
		expect(t, "slash in the name", c.do("PUT", db+"/s/dir/file", "x", "Content-Type: image/gif"), 201)
		expect(t, "is read with a slash", c.get(db+"/s/dir/file"), 200, "x")
		expect(t, "and escaped", c.get(db+"/s/dir%2Ffile"), 200, "x")
	})
}

func TestMultipart(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		body := "--b0\r\nContent-Type: application/json\r\n\r\n" +
			`{"_revisions":{"start":2,"ids":["x","y"]},"_rev":"2-x","n":1,"_attachments":{"a":{"follows":true,"content_type":"text/plain","length":5,"revpos":1},"b":{"follows":true,"content_type":"image/png","length":15,"revpos":2}}}` +
			"\r\n--b0\r\n\r\nhello\r\n--b0\r\n\r\n" + png + "\r\n--b0--"
		expect(t, "put", c.do("PUT", db+"/m?new_edits=false", body, `Content-Type: multipart/related; boundary="b0"`), 201, `"rev":"2-x"`)
		expect(t, "stored", c.get(db+"/m?revs=true"), 200, `"n":1`, `"ids":["x","y"]`, `"length":5,"stub":true`, `"length":15,"stub":true`)
		expect(t, "text", c.do("GET", db+"/m/a", "", "Accept-Encoding: identity"), 200, "hello")

		answer := c.do("GET", db+`/m?revs=true&open_revs=["2-x","9-none"]`, "", "Accept: multipart/mixed")
		mediaType, params, err := mime.ParseMediaType(answer.header.Get("Content-Type"))
		if err != nil || mediaType != "multipart/mixed" {
			t.Fatalf("content type %q: %v", answer.header.Get("Content-Type"), err)
		}
		var kinds []string
		outer := multipart.NewReader(strings.NewReader(answer.body), params["boundary"])
		for {
			part, err := outer.NextRawPart()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			kind, params, err := mime.ParseMediaType(part.Header.Get("Content-Type"))
			if err != nil {
				t.Fatal(err)
			}
			kinds = append(kinds, kind)
			if kind != "multipart/related" {
				continue
			}
			var bodies []string
			inner := multipart.NewReader(part, params["boundary"])
			for {
				p, err := inner.NextRawPart()
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				text, err := io.ReadAll(p)
				if err != nil {
					t.Fatal(err)
				}
				bodies = append(bodies, string(text))
			}
			if len(bodies) != 3 || !strings.Contains(bodies[0], `"follows":true`) || bodies[2] != png {
				t.Errorf("parts %q", bodies)
			}
		}
		if len(kinds) != 2 || !strings.Contains(answer.body, `{"missing":"9-none"}`) {
			t.Errorf("parts %v", kinds)
		}
	})
}

// An attachment that is longer than a page of anything comes back whole.
func TestLongAttachment(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		long := strings.Repeat("0123456789abcdef", 1<<16) + "end"
		expect(t, "put", c.do("PUT", db+"/d/long", long, "Content-Type: application/octet-stream"), 201)
		if got := c.get(db + "/d/long"); got.body != long {
			t.Errorf("%d bytes come back as %d", len(long), len(got.body))
		}
		expect(t, "digest", c.get(db+"/d"), 200, `"digest":"md5-`+md5Base64(long)+`"`, `"length":1048579`)
	})
}
