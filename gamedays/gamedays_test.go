package main

import (
	"slices"
	"strings"
	"testing"
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
		{"", "1 2 3 3r 4 5 6 7 8 9 10a 10b 11a 11b 12"},
		{"-only 10", "10a 10b"},
		{"-only 3", "3 3r"},
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
	} {
		b := kept()
		c.do(&b)
		var v verdict
		s.outcomes(&v, b)
		s.orders(&v, b)
		seen := slices.ContainsFunc(v.broken, func(text string) bool { return strings.Contains(text, c.broken) })
		if c.broken == "" && len(v.broken) > 0 || c.broken != "" && !seen {
			t.Errorf("%s: %q", c.what, v.broken)
		}
		if v.accepted != 4 {
			t.Errorf("%s: %d accepted", c.what, v.accepted)
		}
	}
}
