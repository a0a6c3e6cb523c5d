package main

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// TestDays plays two days that are short; all of them take minutes.
func TestDays(t *testing.T) {
	t.Parallel()
	var table, progress strings.Builder
	err := execute(t.Context(), []string{"-quick", "-only", "6,7"}, &table, &progress)
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, &table, &progress)
	}
	if got := strings.Count(table.String(), "kept"); got != 2 {
		t.Errorf("%d days were kept\n%s", got, &table)
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args string
		want string
	}{
		{"", "1 2 3 3r 3s 4 5 6 7 8 9 10a 10b 11a 11b 12"},
		{"-only 10", "10a 10b"},
		{"-only 3", "3 3r 3s"},
		{"-only 3r", "3r"},
		{"-only 1,11b,5", "1 11b 5"},
		{"-only 13", "error"},
		{"-only 1,,2", "error"},
		{"-only 1a", "error"},
	} {
		o, err := parse(strings.Fields(c.args), new(strings.Builder))
		var ids []string
		for _, d := range o.days {
			ids = append(ids, d.id)
		}
		got := strings.Join(ids, " ")
		if err != nil {
			got = "error"
		}
		if got != c.want {
			t.Errorf("%q: %s, want %s", c.args, got, c.want)
		}
	}
}

// TestCheckFails: every way of breaking a promise is seen.
func TestCheckFails(t *testing.T) {
	t.Parallel()
	s := &site{ledger: newLedger()}
	entry := s.cashflow()
	for _, c := range []command{s.create("o"), s.pix("o"), s.cancel("gone"), entry} {
		s.ledger.accept(c, answer{Status: 200, Applied: byPrimary})
	}
	kept := func() books {
		return books{
			inbox: map[string]effect{
				"create:o":           {Key: "create:o", Order: 1, Outcome: "applied"},
				"c6:pix:o":           {Key: "c6:pix:o", Order: 2, Outcome: "applied"},
				entry.IdempotencyKey: {Key: entry.IdempotencyKey, Order: 3, Outcome: "applied"},
			},
			queue:   map[string]queued{"cancel:gone": {Key: "cancel:gone", Status: "dead", Reason: "conflict"}},
			orders:  map[string]order{"o": {ID: "o", Status: "paid", Version: 2, Created: 1}},
			entries: map[string]int{entry.AggregateID: 1},
			records: []record{
				{Kind: "order", ID: "o", Status: "delivered", Version: 4, Restaurant: "north", Day: "yesterday", DayOf: "north"},
				{Kind: "payment", ID: "p", Status: "approved", Version: 1, Restaurant: "north", Day: "today", DayOf: "north"},
			},
			documents: map[string]map[string]document{
				"yesterday": {"order:o": documentOf("order", 4, "delivered", "closed")},
				"today":     {"payment:p": documentOf("payment", 1, "approved", "approved")},
			},
		}
	}
	for _, c := range []struct {
		what   string
		do     func(*books)
		broken string
	}{
		{"nothing", func(*books) {}, ""},
		{"an effect is lost", func(b *books) { delete(b.inbox, entry.IdempotencyKey) }, "is lost"},
		{"a queued one is lost", func(b *books) { delete(b.queue, "cancel:gone") }, "is lost"},
		{"one waits for ever", func(b *books) { b.queue["cancel:gone"] = queued{Status: "pending"} }, "is lost"},
		{"dead without a reason", func(b *books) { b.queue["cancel:gone"] = queued{Status: "dead"} }, "nobody knows why"},
		{"dead with an effect", func(b *books) { b.queue["create:o"] = queued{Status: "dead", Reason: "failed"} }, "has an effect, and is dead"},
		{"two entries", func(b *books) { b.entries[entry.AggregateID] = 2 }, "has 2 entries"},
		{"created twice", func(b *books) { b.orders["o"] = order{Version: 2, Created: 2} }, "was created 2 times"},
		{"changed twice", func(b *books) { b.orders["o"] = order{Version: 3, Created: 1} }, "is at version 3"},
		{"a change is lost", func(b *books) { b.orders["o"] = order{Version: 1, Created: 1} }, "is at version 1"},
		{"another order", func(b *books) {
			b.inbox["create:o"] = effect{Key: "create:o", Order: 9, Outcome: "applied"}
		}, "was applied before"},
		{"a document is missing", func(b *books) { delete(b.documents["today"], "payment:p") }, "payment:p is not in today"},
		{"a day is missing", func(b *books) { delete(b.documents, "yesterday") }, "order:o is not in yesterday"},
		{"a document in no day", func(b *books) { b.records[0].Day = "" }, "order:o is in no day"},
		{"an older document", func(b *books) {
			b.documents["yesterday"]["order:o"] = documentOf("order", 3, "preparing", "preparing")
		}, "is at version 4, and yesterday shows 3"},
		{"a document that is ahead", func(b *books) { b.records[0].Version = 3 }, "is at version 3, and yesterday shows 4"},
		{"another status", func(b *books) {
			b.documents["yesterday"]["order:o"] = documentOf("order", 4, "cancelled", "cancelled")
		}, "yesterday shows cancelled"},
		{"a status that tills do not see", func(b *books) {
			b.documents["yesterday"]["order:o"] = documentOf("order", 4, "delivered", "preparing")
		}, "which tills see as preparing"},
		{"in two days", func(b *books) { b.documents["today"]["order:o"] = b.documents["yesterday"]["order:o"] }, "order:o is in two days, yesterday and today"},
		{"in the wrong day", func(b *books) {
			b.documents["today"]["order:o"] = b.documents["yesterday"]["order:o"]
			delete(b.documents, "yesterday")
		}, "order:o is not in yesterday"},
		{"a document of nothing", func(b *books) {
			b.documents["tomorrow"] = map[string]document{"order:x": documentOf("order", 1, "pending", "pending")}
		}, "tomorrow has order:x, which the books do not know"},
		{"another restaurant's order", func(b *books) { b.records[0].Restaurant = "south" }, "order:o of south"},
		{"another restaurant's day", func(b *books) { b.records[0].DayOf = "south" }, "in a day of south"},
	} {
		b := kept()
		c.do(&b)
		var v verdict
		s.outcomes(&v, b)
		s.orders(&v, b)
		s.shown(&v, b)
		seen := slices.ContainsFunc(v.broken, func(text string) bool { return strings.Contains(text, c.broken) })
		if c.broken == "" && len(v.broken) > 0 || c.broken != "" && !seen {
			t.Errorf("%s: %q", c.what, v.broken)
		}
		if v.accepted != 4 {
			t.Errorf("%s: %d accepted", c.what, v.accepted)
		}
	}
}

func documentOf(kind string, version int64, status, seen string) document {
	d := document{Type: kind, Restaurant: "north", Status: seen}
	d.Continuity.Version, d.Continuity.Status = version, status
	return d
}

// TestTableFits: with numbers as long as they get.
func TestTableFits(t *testing.T) {
	t.Parallel()
	var results []result
	for _, d := range program {
		results = append(results, result{
			day: d, faults: 100, longest: 90 * time.Second, elapsed: dayLimit,
			found: verdict{accepted: 10_000, applied: 10_000, documents: 10_000, sealed: 1999, broken: []string{"x"}},
		})
	}
	var out strings.Builder
	if err := printTable(&out, results); err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(out.String(), "\n") {
		if n := utf8.RuneCountInString(line); n > 120 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}
