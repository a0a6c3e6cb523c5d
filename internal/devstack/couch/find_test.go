package couch_test

import (
	"strings"
	"testing"
)

func TestFind(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		docs := `{"docs":[
			{"_id":"1","n":1,"a":{"b":1},"tags":["x","y"],"s":"abc"},
			{"_id":"2","n":2,"a":{"b":1,"c":2},"tags":[],"s":"b"},
			{"_id":"3","n":"x","a":1},
			{"_id":"4","n":null,"a":null}]}`
		expect(t, "load", c.post(db+"/_bulk_docs", docs), 201)
		for selector, want := range map[string]string{
			`{}`:                                        "1 2 3 4",
			`{"n":1}`:                                   "1",
			`{"n":{"$gt":0,"$lt":9}}`:                   "1 2",
			`{"n":{"$gte":null}}`:                       "1 2 3 4",
			`{"n":{"$ne":1}}`:                           "2 3 4",
			`{"none":{"$ne":1}}`:                        "",
			`{"none":{"$exists":false},"n":1}`:          "1",
			`{"none":null}`:                             "",
			`{"a":{"b":1}}`:                             "1 2",
			`{"a.b":1}`:                                 "1 2",
			`{"a":{"$eq":{"b":1}}}`:                     "1",
			`{"a":{"$not":{"$eq":1}}}`:                  "1 2 4",
			`{"$or":[{"n":1},{"n":"x"}]}`:               "1 3",
			`{"$nor":[{"n":1}]}`:                        "2 3 4",
			`{"$not":{"n":1}}`:                          "2 3 4",
			`{"$and":[{"n":{"$gt":0}},{"s":"b"}]}`:      "2",
			`{"n":{"$in":[1,"x"]}}`:                     "1 3",
			`{"n":{"$nin":[1]}}`:                        "2 3 4",
			`{"n":{"$type":"number"}}`:                  "1 2",
			`{"n":{"$mod":[2,0]}}`:                      "2",
			`{"s":{"$regex":"^a"}}`:                     "1",
			`{"tags":{"$elemMatch":{"$eq":"x"}}}`:       "1",
			`{"tags":{"$allMatch":{"$gt":""}}}`:         "1",
			`{"tags":{"$all":["x"]}}`:                   "1",
			`{"tags":{"$size":2}}`:                      "1",
			`{"tags":["x","y"]}`:                        "1",
			`{"tags.0":"x"}`:                            "1",
			`{"_id":{"$gt":"1","$lte":"3"}}`:            "2 3",
			`{"n":{"$not":{"$in":[1]}},"s":{"$gt":""}}`: "2",
		} {
			a := c.post(db+"/_find", `{"selector":`+selector+`,"fields":["_id"]}`)
			var ids []string
			for _, doc := range a.json(t)["docs"].([]any) {
				ids = append(ids, doc.(map[string]any)["_id"].(string))
			}
			if got := strings.Join(ids, " "); got != want {
				t.Errorf("%s: %s, want %s", selector, got, want)
			}
		}
		expect(t, "fields", c.post(db+"/_find", `{"selector":{"_id":"2"},"fields":["n","a.c","none"]}`), 200, `{"n":2,"a":{"c":2}}`)
		first := c.post(db+"/_find", `{"selector":{},"limit":2}`)
		next := c.post(db+"/_find", `{"selector":{},"limit":2,"bookmark":"`+first.str(t, "bookmark")+`"}`)
		expect(t, "the next page", next, 200, `"_id":"3"`, `"_id":"4"`)
		expect(t, "unknown operator", c.post(db+"/_find", `{"selector":{"n":{"$bad":1}}}`), 400, "invalid_operator")
		expect(t, "no selector", c.post(db+"/_find", `{}`), 400, "missing_required_key")
		expect(t, "index", c.post(db+"/_index", `{"index":{"fields":["n"]},"name":"by-n","ddoc":"idx"}`), 200, `"result":"created"`)
		expect(t, "the same index", c.post(db+"/_index", `{"index":{"fields":["n"]},"name":"by-n","ddoc":"idx"}`), 200, `"result":"exists"`)
		expect(t, "indexes", c.get(db+"/_index"), 200, `"name":"by-n"`)
		sorted := c.post(db+"/_find", `{"selector":{"n":{"$gt":0}},"sort":[{"n":"desc"}],"fields":["_id"]}`)
		if x, y := strings.Index(sorted.body, `"3"`), strings.Index(sorted.body, `"1"`); x < 0 || y < x {
			t.Errorf("sorted: %s", sorted)
		}
		expect(t, "drop the index", c.do("DELETE", db+"/_index/idx/json/by-n", ""), 200)
	})
}
