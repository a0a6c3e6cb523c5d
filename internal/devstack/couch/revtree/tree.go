package revtree

import (
	"cmp"
	"slices"
)

// Node is one revision in a Tree.
type Node struct {
	Rev     Rev
	Parent  int // index of the parent in the tree, -1 for a root
	Deleted bool
	Body    uint64 // the store's reference to the body, 0 if it holds none
}

// Tree is the set of known revisions of a document. The order of nodes has no
// meaning except that parents may follow their children.
type Tree []Node

// Leaves returns the indices of the revisions that nothing replaces, the
// winner first. A live revision beats a deleted one, then the higher
// generation wins, then the greater id.
func (t Tree) Leaves() []int {
	inner := make([]bool, len(t))
	for _, n := range t {
		if n.Parent >= 0 {
			inner[n.Parent] = true
		}
	}
	var leaves []int
	for i := range t {
		if !inner[i] {
			leaves = append(leaves, i)
		}
	}
	if len(leaves) > 1 {
		slices.SortFunc(leaves, func(a, b int) int {
			if t[a].Deleted != t[b].Deleted {
				if t[a].Deleted {
					return 1
				}
				return -1
			}
			return t[b].Rev.Compare(t[a].Rev)
		})
	}
	return leaves
}

// Winner returns the index of the winning revision. The tree is not empty.
func (t Tree) Winner() int { return t.Leaves()[0] }

// Find returns the index of a revision, -1 if the tree does not hold it.
func (t Tree) Find(r Rev) int {
	return slices.IndexFunc(t, func(n Node) bool { return n.Rev == r })
}

// IsLeaf reports whether no revision replaces the one at i.
func (t Tree) IsLeaf(i int) bool {
	return !slices.ContainsFunc(t, func(n Node) bool { return n.Parent == i })
}

// Path returns the revision at i and its known ancestors, newest first.
func (t Tree) Path(i int) []Rev {
	var path []Rev
	for ; i >= 0; i = t[i].Parent {
		path = append(path, t[i].Rev)
	}
	return path
}

// LeavesOf returns the leaves that descend from the revision at i, or i
// itself if it is one, the best first.
func (t Tree) LeavesOf(i int) []int {
	return slices.DeleteFunc(t.Leaves(), func(leaf int) bool {
		for ; leaf >= 0; leaf = t[leaf].Parent {
			if leaf == i {
				return false
			}
		}
		return true
	})
}

// Extend adds one edit as a child of the node at parent, -1 for a new root,
// and returns its index.
func (t *Tree) Extend(parent int, rev Rev, deleted bool, body uint64) int {
	*t = append(*t, Node{Rev: rev, Parent: parent, Deleted: deleted, Body: body})
	return len(*t) - 1
}

// Merge adds a replicated edit with its ancestry, newest revision first, and
// returns the index of the edit. Known revisions are shared; an ancestry that
// shares none becomes a branch of its own; one that reaches further back than
// the tree lengthens it. added is false if the edit was known already: the
// tree may still have learned older ancestors.
func (t *Tree) Merge(path []Rev, deleted bool, body uint64) (index int, added bool) {
	shared, depth := t.shared(path)
	parent := shared
	if shared < 0 {
		depth = len(path)
	} else {
		t.prepend(shared, path[depth+1:])
	}
	for i := depth - 1; i > 0; i-- {
		parent = t.Extend(parent, path[i], false, 0)
	}
	if depth == 0 {
		return shared, false
	}
	return t.Extend(parent, path[0], deleted, body), true
}

// shared finds the newest revision of path that the tree holds with the same
// ancestry, as far as both know it; depth is its index in path.
func (t *Tree) shared(path []Rev) (index, depth int) {
	for depth, rev := range path {
		for i, n := range *t {
			if n.Rev == rev && t.sameAncestry(i, path[depth:]) {
				return i, depth
			}
		}
	}
	return -1, 0
}

func (t *Tree) sameAncestry(i int, path []Rev) bool {
	for _, rev := range path {
		if i < 0 {
			return true
		}
		if (*t)[i].Rev != rev {
			return false
		}
		i = (*t)[i].Parent
	}
	return true
}

// prepend gives the root above the node at i the ancestors that older, the
// continuation of a path through that node, has beyond it.
func (t *Tree) prepend(i int, older []Rev) {
	for (*t)[i].Parent >= 0 {
		i = (*t)[i].Parent
		if len(older) > 0 {
			older = older[1:]
		}
	}
	for _, rev := range older {
		(*t)[i].Parent = len(*t)
		i = t.Extend(-1, rev, false, 0)
	}
}

// Stem forgets ancestors that are limit or more edits behind every leaf, as
// _revs_limit asks.
func (t *Tree) Stem(limit int) {
	if len(*t) <= limit {
		return
	}
	keep := make([]bool, len(*t))
	for _, leaf := range t.Leaves() {
		for i, n := leaf, 0; i >= 0 && n < limit; i, n = (*t)[i].Parent, n+1 {
			keep[i] = true
		}
	}
	t.retain(keep)
}

// Purge removes those of revs that are leaves, with the ancestors that only
// they had, and returns what it removed. Revisions that are unknown or have
// successors stay. An empty tree means that the document is gone.
func (t *Tree) Purge(revs []Rev) []Rev {
	var purged []Rev
	// Highest generation first, so that a whole branch can be named at once.
	revs = slices.SortedFunc(slices.Values(revs), func(a, b Rev) int { return cmp.Compare(b.Gen, a.Gen) })
	for _, rev := range revs {
		i := t.Find(rev)
		if i < 0 || !t.IsLeaf(i) {
			continue
		}
		purged = append(purged, rev)
		keep := make([]bool, len(*t))
		for _, leaf := range t.Leaves() {
			for j := leaf; leaf != i && j >= 0; j = (*t)[j].Parent {
				keep[j] = true
			}
		}
		t.retain(keep)
	}
	return purged
}

// retain drops the nodes that are not to be kept and renumbers parents.
func (t *Tree) retain(keep []bool) {
	index := make([]int, len(*t))
	var kept Tree
	for i, n := range *t {
		index[i] = -1
		if keep[i] {
			index[i] = len(kept)
			kept = append(kept, n)
		}
	}
	for i := range kept {
		if kept[i].Parent >= 0 {
			kept[i].Parent = index[kept[i].Parent]
		}
	}
	*t = kept
}
