package couch_test

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// ids returns the document ids of a changes answer in its order.
func changedIDs(t *testing.T, a answer) string {
	t.Helper()
	var ids []string
	for _, row := range a.json(t)["results"].([]any) {
		ids = append(ids, row.(map[string]any)["id"].(string))
	}
	return strings.Join(ids, " ")
}

func TestChanges(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		// One shard, so that the order of rows is that of the writes.
		db := strings.TrimSuffix(c.newDB(t, "x?q=1"), "?q=1")
		for i := range 4 {
			c.put(fmt.Sprintf("%s/d%d", db, i), fmt.Sprintf(`{"n":%d}`, i))
		}
		rev := c.get(db+"/d1").str(t, "_rev")
		c.do("DELETE", db+"/d1?rev="+rev, "")

		all := c.get(db + "/_changes?include_docs=true")
		if got := changedIDs(t, all); got != "d0 d2 d3 d1" {
			t.Errorf("order: %s", got)
		}
		expect(t, "rows", all, 200, `"id":"d0","changes":[{"rev":"1-`, `"deleted":true,"doc":{"_id":"d1"`, `"_deleted":true}`, `"pending":0`)
		last := all.str(t, "last_seq")

		two := c.get(db + "/_changes?limit=2")
		expect(t, "limit", two, 200, `"pending":2`)
		rest := c.get(db + "/_changes?since=" + two.str(t, "last_seq"))
		if got := changedIDs(t, rest); got != "d3 d1" {
			t.Errorf("after the first page: %s", got)
		}
		expect(t, "limit 0 counts", c.get(db+"/_changes?limit=0"), 200, `"results":[`, `"pending":4`)
		expect(t, "nothing new", c.get(db+"/_changes?limit=0&since="+last), 200, `"pending":0`)
		expect(t, "since now", c.get(db+"/_changes?since=now"), 200, `"pending":0`)
		if got := changedIDs(t, c.get(db+"/_changes?descending=true&limit=2")); got != "d1 d3" {
			t.Errorf("descending: %s", got)
		}
		c.put(db+"/new", "{}")
		expect(t, "one new", c.get(db+"/_changes?limit=0&since="+last), 200, `"pending":1`)
		expect(t, "a local document is none", c.put(db+"/_local/x", "{}"), 201)
		expect(t, "a known revision is none", c.post(db+"/_bulk_docs", `{"new_edits":false,"docs":[{"_id":"d0","_rev":"`+c.get(db+"/d0").str(t, "_rev")+`"}]}`), 201, "[]")
		expect(t, "compaction is none", c.do("POST", db+"/_compact", "", "Content-Type: application/json"), 202)
		expect(t, "still one", c.get(db+"/_changes?limit=0&since="+last), 200, `"pending":1`)

		intervals := c.get(db + "/_changes?seq_interval=3&limit=3")
		if n := strings.Count(intervals.body, `"seq":null`); n != 2 {
			t.Errorf("seq_interval=3 of three rows: %d without sequence", n)
		}
		expect(t, "doc_ids", c.post(db+"/_changes?filter=_doc_ids", `{"doc_ids":["d2","none"]}`), 200, `"id":"d2"`)
		byValue := c.post(db+"/_changes?filter=_selector&include_docs=true", `{"selector":{"n":{"$gte":2,"$lt":9}}}`)
		if got := changedIDs(t, byValue); got != "d2 d3" {
			t.Errorf("selector: %s", got)
		}
		expect(t, "bad selector", c.post(db+"/_changes?filter=_selector", `{"selector":{"$bad":1}}`), 400)
		expect(t, "bad feed", c.get(db+"/_changes?feed=bad"), 400)
	})
}

// Sequences are opaque. With more than one shard the same state has another
// text in the database's information than in its feed.
func TestSequencesDoNotCompare(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		for i := range 5 {
			c.put(fmt.Sprintf("%s/d%d", db, i), "{}")
		}
		update, last := c.get(db).str(t, "update_seq"), c.get(db+"/_changes").str(t, "last_seq")
		if update == last || seqNumber(update) != seqNumber(last) {
			t.Errorf("update_seq %s, last_seq %s", update, last)
		}
	})
}

func TestMalformedSince(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		c.put(db+"/a", "{}")
		for _, since := range []string{"7", "7-abc", "abc", "", "99999", "0-xyz", "-", "1-g1AAAA"} {
			expect(t, "since "+since, c.get(db+"/_changes?since="+since), 400, "Malformed sequence supplied in 'since' parameter.")
		}
		expect(t, "since 0", c.get(db+"/_changes?since=0"), 200, `"id":"a"`)
	})
}

// A sequence of a database that is gone, or of another one, begins from the
// start in its successor, without an error. On an empty successor it looks
// like having read everything.
func TestSinceOfAnotherIncarnation(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		for i := range 10 {
			c.put(fmt.Sprintf("%s/d%d", db, i), "{}")
		}
		old := c.get(db+"/_changes").str(t, "last_seq")
		expect(t, "drop", c.do("DELETE", db, ""), 200)
		expect(t, "of a dropped database", c.get(db+"/_changes?since="+old), 404)
		// Right after the drop the name can be taken for a moment.
		for c.put(db, "").status != 201 {
		}
		expect(t, "on an empty successor", c.get(db+"/_changes?since="+old), 200, `"results":[`, `"pending":0`)
		expect(t, "limit 0 echoes it", c.get(db+"/_changes?limit=0&since="+old), 200, `"last_seq":"10-`)
		for i := range 3 {
			c.put(fmt.Sprintf("%s/n%d", db, i), "{}")
		}
		again := c.get(db + "/_changes?since=" + old)
		if n := len(again.json(t)["results"].([]any)); n != 3 {
			t.Errorf("rows after an old since: %d, want all 3", n)
		}
		expect(t, "limit 0", c.get(db+"/_changes?limit=0&since="+old), 200, `"pending":3`)
		other := c.newDB(t, "y")
		c.put(other+"/o", "{}")
		expect(t, "of another database", c.get(other+"/_changes?since="+old), 200, `"id":"o"`)
	})
}

func TestChangesShowLeaves(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := conflictedDB(t, c)
		row := func(a answer, id string) string {
			for line := range strings.Lines(a.body) {
				if strings.Contains(line, `"id":"`+id+`"`) {
					return line
				}
			}
			return ""
		}
		plain := c.get(db + "/_changes?include_docs=true")
		if got := row(plain, "o6"); !strings.Contains(got, `"status":"void","total":1,"_deleted":true}`) {
			t.Errorf("tombstone with a body: %s", got)
		}
		leaves := c.get(db + "/_changes?style=all_docs&include_docs=true&conflicts=true&deleted_conflicts=true")
		got := row(leaves, "o4")
		if !strings.Contains(got, `"changes":[{"rev":"2-l2"},{"rev":"2-l1"},{"rev":"5-d1"}]`) || !strings.Contains(got, `"_conflicts":["2-l1"]`) {
			t.Errorf("all leaves of o4: %s", got)
		}
		if strings.Contains(leaves.body, "_deleted_conflicts") {
			t.Error("the feed shows _deleted_conflicts")
		}
		if got := row(plain, "o4"); !strings.Contains(got, `"changes":[{"rev":"2-l2"}]`) {
			t.Errorf("winner of o4: %s", got)
		}
	})
}

// openFeed opens a changes feed and returns its lines as they come. The
// channel is closed when the feed ends.
func openFeed(t *testing.T, c target, path string) <-chan string {
	t.Helper()
	req, err := http.NewRequest("GET", c.base+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth(c.user, c.password)
	client := &http.Client{Transport: &http.Transport{}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != 200 {
		t.Fatalf("feed %s: %s", path, resp.Status)
	}
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		scanner := bufio.NewScanner(resp.Body)
		for scanner.Scan() {
			lines <- scanner.Text()
		}
	}()
	t.Cleanup(func() { _ = resp.Body.Close() })
	return lines
}

// waitLine returns the next line that has text, or "" at the end.
func waitLine(t *testing.T, lines <-chan string) string {
	t.Helper()
	for {
		select {
		case line, ok := <-lines:
			if !ok || strings.TrimSpace(line) != "" {
				return line
			}
		case <-time.After(time.Minute):
			t.Fatal("the feed is silent")
		}
	}
}

func TestContinuousFeed(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		c.put(db+"/_security", openToPos)
		c.put(db+"/a", `{"n":1}`)
		lines := openFeed(t, c.pos(t), db+"/_changes?feed=continuous&include_docs=true&heartbeat=200")
		if got := waitLine(t, lines); !strings.Contains(got, `"id":"a"`) || !strings.Contains(got, `"n":1`) {
			t.Errorf("first line %s", got)
		}
		if beat := <-lines; beat != "" {
			t.Errorf("heartbeat %q", beat)
		}
		c.put(db+"/b", `{}`)
		if got := waitLine(t, lines); !strings.Contains(got, `"id":"b"`) {
			t.Errorf("second line %s", got)
		}
		// Who reads already is not asked again.
		expect(t, "seal", c.put(db+"/_security", sealed), 200)
		c.put(db+"/c", `{}`)
		if got := waitLine(t, lines); !strings.Contains(got, `"id":"c"`) {
			t.Errorf("line after the seal %s", got)
		}
		// The end of the database looks like the end of a quiet feed.
		expect(t, "drop", c.do("DELETE", db, ""), 200)
		if got := waitLine(t, lines); !strings.HasPrefix(got, `{"last_seq":"`) || !strings.HasSuffix(got, `,"pending":0}`) {
			t.Errorf("line after the drop %q", got)
		}
		if got := waitLine(t, lines); got != "" {
			t.Errorf("line behind the end %q", got)
		}
	})
}

func TestLongpoll(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		c.put(db+"/a", "{}")
		expect(t, "returns what there is", c.get(db+"/_changes?feed=longpoll"), 200, `"id":"a"`, `"last_seq":"1-`)
		expect(t, "times out", c.get(db+"/_changes?feed=longpoll&since=now&timeout=50"), 200, `"pending":0`)
		lines := openFeed(t, c, db+"/_changes?feed=longpoll&since=now")
		if got := waitLine(t, lines); got != `{"results":[` {
			t.Errorf("first line %s", got)
		}
		c.put(db+"/b", "{}")
		if got := waitLine(t, lines); !strings.Contains(got, `"id":"b"`) {
			t.Errorf("change %s", got)
		}
		for range lines {
		}
		expect(t, "continuous times out", c.get(db+"/_changes?feed=continuous&timeout=50"), 200, `"id":"a"`, `{"last_seq":"2-`)
		expect(t, "continuous with limit", c.get(db+"/_changes?feed=continuous&limit=1"), 200, `,"pending":1}`)
	})
}

// Reading page by page while others write misses nothing.
func TestPagingUnderWriters(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		const writers, each = 4, 50
		done := make(chan struct{}, writers)
		for w := range writers {
			go func() {
				for i := range each {
					c.put(fmt.Sprintf("%s/w%d-%d", db, w, i), "{}")
				}
				done <- struct{}{}
			}()
		}
		seen := map[string]bool{}
		since, finished := "0", 0
		for {
			for drained := false; !drained; {
				select {
				case <-done:
					finished++
				default:
					drained = true
				}
			}
			page := c.get(db + "/_changes?limit=7&since=" + since).json(t)
			for _, row := range page["results"].([]any) {
				seen[row.(map[string]any)["id"].(string)] = true
			}
			since = page["last_seq"].(string)
			if finished == writers && fmt.Sprint(page["pending"]) == "0" && len(page["results"].([]any)) == 0 {
				break
			}
		}
		if len(seen) != writers*each {
			t.Errorf("saw %d of %d documents", len(seen), writers*each)
		}
	})
}
