package store

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/rollingd/rollingd/internal/devstack/couch/revtree"
)

// TestCounters plays random edits and holds counters, feed and pending against
// a count of what is there.
func TestCounters(t *testing.T) {
	d := openDir(t, t.TempDir(), 0)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		name := fmt.Sprintf("db%d", n)
		must(t, d.Create(name, 1))
		for range rapid.IntRange(1, 6).Draw(rt, "transactions") {
			err := d.Update(name, func(tx *Tx) error {
				// Skip ahead, so that sequences reach several counting blocks.
				tx.meta.UpdateSeq += rapid.Uint64Range(0, 2*countBlock).Draw(rt, "gap")
				for range rapid.IntRange(1, 8).Draw(rt, "edits") {
					if err := randomEdit(rt, tx); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				rt.Fatal(err)
			}
		}
		must(t, d.View(name, func(tx *Tx) error { return checkCounters(rt, tx) }))
		must(t, d.Delete(name, false))
	})
}

func randomEdit(rt *rapid.T, tx *Tx) error {
	id := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "id")
	rev := revtree.Rev{Gen: rapid.IntRange(1, 3).Draw(rt, "gen"), ID: rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "rev")}
	deleted := rapid.Bool().Draw(rt, "deleted")
	switch rapid.SampledFrom([]string{"put", "replicate", "purge"}).Draw(rt, "kind") {
	case "put":
		_, err := put(tx, id, "")
		return err
	case "replicate":
		return tx.Replicate(&Edit{ID: id, Revs: []revtree.Rev{rev}, Deleted: deleted}, nil)
	}
	_, err := tx.Purge(id, []revtree.Rev{rev})
	return err
}

func checkCounters(rt *rapid.T, tx *Tx) error {
	live, deleted := 0, 0
	err := tx.Docs("", false, true, func(r *Record) (bool, error) {
		if r.Live() {
			live++
		} else {
			deleted++
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	if m := tx.Meta(); m.Live != live || m.Deleted != deleted {
		rt.Fatalf("counted %d live and %d deleted, the database says %d and %d", live, deleted, m.Live, m.Deleted)
	}
	var seqs []uint64
	err = tx.Changes(0, false, func(r *Record) (bool, error) {
		seqs = append(seqs, r.Seq)
		return true, nil
	})
	if err != nil {
		return err
	}
	if len(seqs) != live+deleted {
		rt.Fatalf("the feed has %d rows for %d documents", len(seqs), live+deleted)
	}
	for i, seq := range seqs {
		if got, want := tx.Pending(seq), len(seqs)-i-1; got != want {
			rt.Fatalf("pending after %d is %d, want %d of %v", seq, got, want, seqs)
		}
	}
	if got := tx.Pending(tx.Meta().UpdateSeq); got != 0 {
		rt.Fatalf("%d are pending after everything", got)
	}
	return nil
}

func TestStemming(t *testing.T) {
	d := openDir(t, t.TempDir(), 0)
	must(t, d.Create("db", 1))
	must(t, d.Update("db", func(tx *Tx) error {
		tx.SetRevsLimit(3)
		for i := range 10 {
			if _, err := put(tx, "doc", fmt.Sprintf(`"n":%d`, i)); err != nil {
				return err
			}
		}
		r, err := tx.Record("doc")
		if err != nil {
			return err
		}
		if path := r.Tree.Path(r.Tree.Winner()); len(path) != 3 || path[0].Gen != 10 {
			t.Errorf("path %v", path)
		}
		return nil
	}))
}

func TestCompact(t *testing.T) {
	d := openDir(t, t.TempDir(), 0)
	must(t, d.Create("db", 1))
	var first revtree.Rev
	must(t, d.Update("db", func(tx *Tx) (err error) {
		old := AttachmentEdit{Data: []byte("old"), Attachment: Attachment{Name: "a", Stored: 3, Length: 3}}
		if first, err = tx.Put(&Edit{ID: "doc", Body: []byte(`"n":1`), Atts: []AttachmentEdit{old}}, nil); err != nil {
			return err
		}
		fresh := AttachmentEdit{Data: []byte("new"), Attachment: Attachment{Name: "a", Stored: 3, Length: 3}}
		_, err = tx.Put(&Edit{ID: "doc", Revs: []revtree.Rev{first}, Body: []byte(`"n":2`), Atts: []AttachmentEdit{fresh}}, nil)
		return err
	}))
	w, err := d.WriteContent("db")
	must(t, err)
	long := bytes.Repeat([]byte("0123456789"), chunkSize/4)
	_, err = w.Write(long)
	must(t, err)
	must(t, w.Flush())

	must(t, d.Update("db", (*Tx).Compact))
	must(t, d.View("db", func(tx *Tx) error {
		r, err := tx.Record("doc")
		if err != nil {
			return err
		}
		if _, err := tx.Load(r, r.Tree.Find(first)); !errors.Is(err, ErrMissing) {
			t.Errorf("the old body: %v", err)
		}
		doc, err := tx.Load(r, r.Tree.Winner())
		if err != nil {
			return err
		}
		if got, err := tx.Content(doc.Atts[0]); string(got) != "new" || err != nil {
			t.Errorf("the attachment that is in use: %q, %v", got, err)
		}
		got, err := tx.Content(Attachment{Content: w.Ref(), Stored: int64(len(long))})
		if !bytes.Equal(got, long) || err != nil {
			t.Errorf("the attachment that is being received: %d bytes, %v", len(got), err)
		}
		return nil
	}))
	// Nobody claims it until the next time.
	must(t, d.Update("db", (*Tx).Compact))
	must(t, d.View("db", func(tx *Tx) error {
		if _, err := tx.Content(Attachment{Content: w.Ref(), Stored: int64(len(long))}); !errors.Is(err, ErrMissing) {
			t.Errorf("the attachment that nobody claimed: %v", err)
		}
		return nil
	}))
}

// A transaction that fails leaves nothing behind.
func TestFailedUpdate(t *testing.T) {
	d := openDir(t, t.TempDir(), 0)
	must(t, d.Create("db", 1))
	failure := errors.New("failure")
	err := d.Update("db", func(tx *Tx) error {
		if _, err := put(tx, "doc", ""); err != nil {
			return err
		}
		return failure
	})
	if !errors.Is(err, failure) {
		t.Fatal(err)
	}
	must(t, d.View("db", func(tx *Tx) error {
		if m := tx.Meta(); m.Live != 0 || m.UpdateSeq != 0 {
			t.Errorf("meta %+v", m)
		}
		return nil
	}))
}

func FuzzDecodeRecord(f *testing.F) {
	r := &Record{ID: "doc", Seq: 7, Tree: revtree.Tree{{Rev: revtree.Rev{Gen: 1, ID: "a"}, Parent: -1, Body: 3}}}
	f.Add(r.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRecord(b)
		if err != nil || len(r.Tree.Leaves()) == 0 {
			return // Only a damaged file can hold a circle.
		}
		again, err := decodeRecord(r.encode())
		if err != nil || again.ID != r.ID || len(again.Tree) != len(r.Tree) {
			t.Fatalf("%+v comes back as %+v, %v", r, again, err)
		}
	})
}
