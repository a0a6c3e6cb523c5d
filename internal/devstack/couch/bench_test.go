package couch_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/rollingd/rollingd/internal/devstack/couch"
)

// benchTarget is an embedded store with an empty database.
func benchTarget(b *testing.B) (target, string) {
	s := startEmbedded(b, couch.Options{})
	c := target{base: "http://" + s.Addr(), user: "admin", password: "secret"}
	if a := c.put("/bench", ""); a.status != 201 {
		b.Fatal(a)
	}
	return c, "/bench"
}

func bulk(from, n, size int) string {
	docs := make([]string, n)
	for i := range docs {
		docs[i] = fmt.Sprintf(`{"_id":"order-%09d","type":"order","status":"closed","total":%d.5,"lines":"%s"}`, from+i, i, strings.Repeat("x", size))
	}
	return `{"docs":[` + strings.Join(docs, ",") + `]}`
}

func BenchmarkBulkDocs500(b *testing.B) {
	c, db := benchTarget(b)
	n := 0
	for b.Loop() {
		if a := c.post(db+"/_bulk_docs", bulk(n, 500, 400)); a.status != 201 {
			b.Fatal(a)
		}
		n += 500
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "docs/s")
}

func BenchmarkPut(b *testing.B) {
	c, db := benchTarget(b)
	n := 0
	for b.Loop() {
		if a := c.put(fmt.Sprintf("%s/d%d", db, n), `{"type":"order"}`); a.status != 201 {
			b.Fatal(a)
		}
		n++
	}
}

func BenchmarkChangesIncludeDocs(b *testing.B) {
	c, db := benchTarget(b)
	const docs = 50_000
	for n := 0; n < docs; n += 500 {
		c.post(db+"/_bulk_docs", bulk(n, 500, 400))
	}
	rows := 0
	for b.Loop() {
		req, err := http.NewRequest("GET", c.base+db+"/_changes?include_docs=true", nil)
		if err != nil {
			b.Fatal(err)
		}
		req.SetBasicAuth(c.user, c.password)
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, resp.Body); err != nil || n < docs*400 {
			b.Fatal(n, err)
		}
		_ = resp.Body.Close()
		rows += docs
	}
	b.ReportMetric(float64(rows)/b.Elapsed().Seconds(), "docs/s")
}

func BenchmarkCreateDatabase(b *testing.B) {
	c, _ := benchTarget(b)
	n := 0
	for b.Loop() {
		if a := c.put(fmt.Sprintf("/day%06d", n), ""); a.status != 201 {
			b.Fatal(a)
		}
		n++
	}
}
