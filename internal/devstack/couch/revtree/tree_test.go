package revtree

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func path(revs ...string) []Rev {
	var out []Rev
	for _, s := range revs {
		r, err := ParseRev(s)
		if err != nil {
			panic(err)
		}
		out = append(out, r)
	}
	return out
}

func leaves(t Tree) []string {
	var out []string
	for _, i := range t.Leaves() {
		s := t[i].Rev.String()
		if t[i].Deleted {
			s += "!"
		}
		out = append(out, s)
	}
	return out
}

func TestWinner(t *testing.T) {
	for _, c := range []struct {
		name  string
		edits []string // "!" marks a deletion
		want  []string
	}{
		{"greater id", []string{"1-aaa", "1-bbb"}, []string{"1-bbb", "1-aaa"}},
		{"live beats a higher deleted generation", []string{"1-aaa", "3-ccc!"}, []string{"1-aaa", "3-ccc!"}},
		{"deleted ones compare like live ones", []string{"2-xxx!", "2-yyy!"}, []string{"2-yyy!", "2-xxx!"}},
		{"generations are numbers", []string{"9-a", "10-a"}, []string{"10-a", "9-a"}},
		{"all together", []string{"2-l1", "5-d1!", "2-l2"}, []string{"2-l2", "2-l1", "5-d1!"}},
	} {
		var tree Tree
		for _, e := range c.edits {
			deleted := e[len(e)-1] == '!'
			if deleted {
				e = e[:len(e)-1]
			}
			tree.Merge(path(e), deleted, 1)
		}
		if got := leaves(tree); !slices.Equal(got, c.want) {
			t.Errorf("%s: leaves = %v, want %v", c.name, got, c.want)
		}
	}
}

func TestMerge(t *testing.T) {
	var tree Tree
	if _, added := tree.Merge(path("3-c", "2-b", "1-a"), false, 1); !added {
		t.Fatal("a new edit was not added")
	}
	if _, added := tree.Merge(path("3-c", "2-b", "1-a"), false, 2); added {
		t.Fatal("a known edit was added again")
	}
	if _, added := tree.Merge(path("2-b", "1-a"), false, 2); added {
		t.Fatal("a known ancestor was added again")
	}
	tree.Merge(path("4-x", "3-other", "2-b"), false, 3)
	tree.Merge(path("2-b", "1-z"), false, 4) // the same id with another ancestry
	if got, want := leaves(tree), []string{"4-x", "3-c", "2-b"}; !slices.Equal(got, want) {
		t.Fatalf("leaves = %v, want %v", got, want)
	}
	if got := fmt.Sprint(tree.Path(tree.Find(path("4-x")[0]))); got != "[4-x 3-other 2-b 1-a]" {
		t.Fatalf("path = %s", got)
	}
}

func TestMergeLengthensAStemmedPath(t *testing.T) {
	var tree Tree
	tree.Merge(path("4-d", "3-c"), false, 1)
	tree.Merge(path("5-e", "4-d", "3-c", "2-b", "1-a"), false, 2)
	if got := fmt.Sprint(tree.Path(tree.Winner())); got != "[5-e 4-d 3-c 2-b 1-a]" {
		t.Fatalf("path = %s", got)
	}
}

func TestStemAndPurge(t *testing.T) {
	var tree Tree
	tree.Merge(path("5-e", "4-d", "3-c", "2-b", "1-a"), false, 1)
	tree.Merge(path("3-x", "2-b"), false, 2)
	tree.Stem(2)
	if got := fmt.Sprint(tree.Path(tree.Winner())); got != "[5-e 4-d]" {
		t.Fatalf("stemmed path = %s", got)
	}
	if got := fmt.Sprint(tree.Path(tree.Find(path("3-x")[0]))); got != "[3-x 2-b]" {
		t.Fatalf("stemmed path of the other leaf = %s", got)
	}
	if purged := tree.Purge(path("4-d", "9-none")); purged != nil {
		t.Fatalf("purged %v, which are no leaves", purged)
	}
	if purged := tree.Purge(path("4-d", "5-e")); len(purged) != 1 {
		t.Fatalf("purged %v", purged)
	}
	if got := leaves(tree); !slices.Equal(got, []string{"3-x"}) {
		t.Fatalf("leaves after the purge = %v", got)
	}
	if tree.Purge(path("3-x")); len(tree) != 0 {
		t.Fatalf("tree after the last purge = %v", tree)
	}
}

func TestRev(t *testing.T) {
	upper, err := ParseRev("2-ABCDEF0123456789ABCDEF0123456789")
	if err != nil || upper.String() != "2-abcdef0123456789abcdef0123456789" {
		t.Errorf("hexadecimal id = %s, %v", upper, err)
	}
	for _, bad := range []string{"", "1", "x-1", "-1-a", "1.5-a"} {
		if r, err := ParseRev(bad); err == nil {
			t.Errorf("ParseRev(%q) = %v", bad, r)
		}
	}
}

// TestMergeCommutes plays the edits of one random history in two orders.
func TestMergeCommutes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var source Tree
		type edit struct {
			path    []Rev
			deleted bool
		}
		var edits []edit
		for range rapid.IntRange(1, 12).Draw(t, "edits") {
			parent := -1
			if len(source) > 0 {
				parent = rapid.IntRange(-1, len(source)-1).Draw(t, "parent")
			}
			gen := 1
			if parent >= 0 {
				gen = source[parent].Rev.Gen + 1
			}
			rev := Rev{Gen: gen, ID: rapid.StringMatching(`[a-z]{12}`).Draw(t, "id")}
			deleted := rapid.Bool().Draw(t, "deleted")
			i := source.Extend(parent, rev, deleted, 1)
			edits = append(edits, edit{source.Path(i), deleted})
		}
		var a, b Tree
		for _, e := range edits {
			a.Merge(e.path, e.deleted, 1)
		}
		for _, e := range rapid.Permutation(edits).Draw(t, "order") {
			b.Merge(e.path, e.deleted, 1)
		}
		// Only leaves count: an ancestor that arrives after its child keeps
		// no flag of its own in either store.
		if x, y := leaves(a), leaves(b); !slices.Equal(x, y) {
			t.Fatalf("leaves %v and %v", x, y)
		}
	})
}
