package archive_test

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"testing"
)

func TestScratchGzipAttachment(t *testing.T) {
	w := newWorld(t)
	d := w.newDay("20261130")
	var z bytes.Buffer
	g := gzip.NewWriter(&z); g.Write(bytes.Repeat([]byte("a"), 5000)); g.Close()
	w.put(d.Name, `{"_id":"a","type":"order","status":"closed"}`)
	req, _ := http.NewRequest("PUT", w.url+"/"+d.Name+"/a/x.txt?rev="+w.rev(d.Name, "a"), &z)
	req.Header.Set("Content-Type", "text/plain"); req.Header.Set("Content-Encoding", "gzip")
	res, err := http.DefaultClient.Do(req)
	if err != nil || res.StatusCode != 201 { t.Fatal(err, res.Status) }
	t.Logf("%s", w.do("GET", "/"+d.Name+"/a", ""))
	pos := w.catchUp(d)
	w.checkEqual(d, pos)
}
