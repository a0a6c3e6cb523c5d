package archive_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

// pattern returns bytes that gzip makes much smaller or not at all.
func pattern(n int, compressible bool) []byte {
	out := make([]byte, n)
	state := uint32(1)
	for i := range out {
		if compressible {
			out[i] = byte('a' + i%7)
			continue
		}
		state = state*1664525 + 1013904223
		out[i] = byte(state >> 24)
	}
	return out
}

// TestAttachments archives attachments of all kinds, each version once, and
// restores them.
func TestAttachments(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.newDay("20261130")
	inline := func(contentType string, data []byte) string {
		return fmt.Sprintf(`{"content_type":%q,"data":%q}`, contentType, base64.StdEncoding.EncodeToString(data))
	}
	text, image := pattern(2400, true), pattern(3<<20+17, false)
	w.put(d.Name,
		fmt.Sprintf(`{"_id":"receipt/ 1","type":"order","status":"closed","_attachments":{"z a/b+c.txt":%s,"a.png":%s,"empty":%s}}`,
			inline("text/plain", text), inline("image/png", image), inline("image/png", nil)),
		fmt.Sprintf(`{"_id":"open","type":"order","status":"open","_attachments":{"not yet":%s}}`, inline("text/plain", text)),
		fmt.Sprintf(`{"_id":"gone","type":"order","status":"closed","_attachments":{"kept.txt":%s,"lost.txt":%s}}`, inline("text/plain", text), inline("text/plain", text)))
	w.replicate(d.Name,
		fmt.Sprintf(`{"_id":"leaf","_rev":"2-b","_deleted":true,"_attachments":{"of the leaf":%s}}`, inline("text/plain", text)),
		`{"_id":"leaf","_rev":"1-a","type":"order","status":"closed"}`)
	var fetched atomic.Int64
	w.connect(transport(func(req *http.Request) (*http.Response, error) {
		if strings.Contains(req.URL.RawQuery, "rev=") {
			fetched.Add(1)
		}
		return http.DefaultTransport.RoundTrip(req)
	}))
	w.catchUp(d)
	if fetched.Load() != 6 {
		t.Errorf("%d attachments were fetched, not 6", fetched.Load())
	}
	var stored []byte
	err := w.pool.QueryRow(t.Context(), `
		select string_agg(data, '' order by n)
		from archived_attachments
		join archived_attachment_chunks on attachment_id = id
		where name = 'a.png' and sha256 = $1 and length = $2`, sum(image), len(image)).Scan(&stored)
	if err != nil || !bytes.Equal(stored, image) {
		t.Errorf("the image was archived as %d bytes, %v", len(stored), err)
	}
	w.expect("true", `select sha256 = $1 and length = 2400 from archived_attachments where name = 'z a/b+c.txt'`, sum(text))

	// A new revision brings only what is new; a deletion may keep attachments.
	doc := func(id string) string { return string(w.do(http.MethodGet, "/"+d.Name+"/"+id, "")) }
	fetched.Store(0)
	w.put(d.Name, strings.Replace(doc("receipt%2F%201"), `"a.png":{`, fmt.Sprintf(`"new":%s,"a.png":{`, inline("text/plain", text)), 1))
	w.put(d.Name, strings.Replace(doc("open"), `"status":"open"`, `"status":"closed"`, 1))
	gone := doc("gone")
	start := strings.Index(gone, `"lost.txt"`)
	gone = strings.TrimSuffix(gone[:start], ",") + `}}`
	w.put(d.Name, strings.Replace(gone, `"type"`, `"_deleted":true,"type"`, 1))
	pos := w.catchUp(d)
	if fetched.Load() != 2 {
		t.Errorf("%d attachments were fetched, not 2", fetched.Load())
	}
	w.checkEqual(d, pos)
	proof := must(w.Prove(t.Context(), d, pos))(t)
	if proof.Documents != 4 || proof.Attachments != 7 {
		t.Errorf("%d documents and %d attachments are proven", proof.Documents, proof.Attachments)
	}

	restored := must(w.Restore(t.Context(), d, "a test", "tester"))(t)
	for _, path := range []string{"/receipt%2F%201/z%20a%2Fb%2Bc.txt", "/receipt%2F%201/a.png", "/receipt%2F%201/empty", "/open/not%20yet"} {
		if was, is := w.do(http.MethodGet, "/"+d.Name+path, ""), w.do(http.MethodGet, "/"+restored.DBName+path, ""); !bytes.Equal(was, is) {
			t.Errorf("%s was restored as %d bytes, not as %d", path, len(is), len(was))
		}
	}

	w.exec(`delete from archived_attachment_chunks where n = 2`)
	if rec := w.reconcile(d, pos); rec.Green() || rec.Attachments.Count != 1 || rec.Attachments.IDs[0] != "receipt/ 1" {
		t.Errorf("a piece of an attachment was lost: %+v", rec)
	}
}

// TestAttachmentThatWasSentCompressed: CouchDB states the length of what it was
// sent, and gives the attachment unpacked.
func TestAttachmentThatWasSentCompressed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.newDay("20261130")
	w.put(d.Name, `{"_id":"a","type":"order","status":"closed"}`)
	text := pattern(5000, true)
	var packed bytes.Buffer
	gz := must(gzip.NewWriterLevel(&packed, gzip.BestSpeed))(t)
	if _, err := gz.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := gz.Close(); err != nil {
		t.Fatal(err)
	}
	req := must(http.NewRequestWithContext(t.Context(), http.MethodPut, w.url+"/"+d.Name+"/a/x.txt?rev="+w.rev(d.Name, "a"), &packed))(t)
	req.Header.Set("Content-Type", "text/plain")
	req.Header.Set("Content-Encoding", "gzip")
	res := must(http.DefaultClient.Do(req))(t)
	_ = res.Body.Close()
	if res.StatusCode != http.StatusCreated {
		t.Fatal(res.Status)
	}
	w.checkEqual(d, w.catchUp(d))
	w.expect("true", `select length = 5000 and sha256 = $1 from archived_attachments`, sum(text))

	// It is stored in another way when it is restored; what it holds is the same.
	restored := must(w.Restore(t.Context(), d, "a test", "tester"))(t)
	if data := w.do(http.MethodGet, "/"+restored.DBName+"/a/x.txt", ""); !bytes.Equal(data, text) {
		t.Errorf("restored as %d bytes", len(data))
	}
}

// TestAttachmentThatIsCut is not archived as whole.
func TestAttachmentThatIsCut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.newDay("20261130")
	w.put(d.Name, fmt.Sprintf(`{"_id":"a","type":"order","status":"closed","_attachments":{"x":{"content_type":"image/png","data":%q}}}`,
		base64.StdEncoding.EncodeToString(pattern(2<<20, false))))
	w.connect(transport(func(req *http.Request) (*http.Response, error) {
		res, err := http.DefaultTransport.RoundTrip(req)
		if err == nil && strings.HasSuffix(req.URL.Path, "/a/x") {
			res.Body = cutBody(res.Body, 1<<20+5)
		}
		return res, err
	}))
	if _, err := w.tryCatchUp(d); err == nil {
		t.Error("a broken connection passed for an attachment")
	}
	w.expect("0", `select (select count(*) from archived_docs) + (select count(*) from archived_attachments) + (select count(*) from archive_rejects)`)
	w.connect(nil)
	w.checkEqual(d, w.catchUp(d))
}

func sum(b []byte) []byte {
	s := sha256.Sum256(b)
	return s[:]
}
