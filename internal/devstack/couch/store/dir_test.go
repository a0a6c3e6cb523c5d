package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rollingd/rollingd/internal/devstack/couch/revtree"
)

func openDir(t *testing.T, path string, maxOpen int) *Dir {
	t.Helper()
	d, err := OpenDir(path, Options{NoSync: true, MaxOpen: maxOpen})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// put stores a document, over its winner if it exists.
func put(tx *Tx, id, body string) (revtree.Rev, error) {
	e := &Edit{ID: id, Body: []byte(body)}
	if r, err := tx.Record(id); err == nil && r.Live() {
		e.Revs = []revtree.Rev{r.Tree[r.Tree.Winner()].Rev}
	}
	return tx.Put(e, nil)
}

func TestManyDatabasesFewFiles(t *testing.T) {
	path := t.TempDir()
	d := openDir(t, path, 4)
	const databases = 40
	for i := range databases {
		must(t, d.Create(fmt.Sprintf("db%02d", i), 1))
	}
	for i := range databases {
		must(t, d.Update(fmt.Sprintf("db%02d", i), func(tx *Tx) error {
			_, err := put(tx, "doc", fmt.Sprintf(`"n":%d`, i))
			return err
		}))
	}
	if d.open > 4 {
		t.Errorf("%d files are open", d.open)
	}
	// Nested use keeps more open than the limit, for as long as it lasts.
	var nest func(i int) error
	nest = func(i int) error {
		if i == 10 {
			return nil
		}
		return d.View(fmt.Sprintf("db%02d", i), func(tx *Tx) error {
			if _, err := tx.Record("doc"); err != nil {
				return err
			}
			return nest(i + 1)
		})
	}
	must(t, nest(0))
	must(t, d.View("db11", func(*Tx) error { return nil }))
	if d.open > 4 {
		t.Errorf("%d files are open after they were released", d.open)
	}
}

func TestReopen(t *testing.T) {
	path := t.TempDir()
	d, err := OpenDir(path, Options{NoSync: true})
	must(t, err)
	must(t, d.Create("a/b", 2))
	must(t, d.Create("plain", 2))
	var before Meta
	must(t, d.Update("a/b", func(tx *Tx) error {
		_, err := put(tx, "doc", `"n":1`)
		return err
	}))
	must(t, d.View("a/b", func(tx *Tx) error { before = tx.Meta(); return nil }))
	must(t, d.Close())

	d = openDir(t, path, 0)
	if got := fmt.Sprint(d.Names()); got != "[a/b plain]" {
		t.Errorf("names %s", got)
	}
	must(t, d.View("a/b", func(tx *Tx) error {
		if tx.Meta() != before {
			t.Errorf("meta %+v, was %+v", tx.Meta(), before)
		}
		return nil
	}))
	if err := d.Create("plain", 2); !errors.Is(err, ErrDatabaseExists) {
		t.Errorf("create again: %v", err)
	}
}

// A database that was deleted with keep comes back when its file does.
func TestDeleteAndRestore(t *testing.T) {
	path := t.TempDir()
	d := openDir(t, path, 0)
	for range 2 {
		must(t, d.Create("day", 1))
		must(t, d.Update("day", func(tx *Tx) error {
			_, err := put(tx, "doc", `"n":1`)
			return err
		}))
		must(t, d.Delete("day", true))
	}
	if d.Exists("day") {
		t.Fatal("the database is still there")
	}
	kept, err := filepath.Glob(filepath.Join(path, "day.*.deleted.couch"))
	must(t, err)
	if len(kept) != 2 {
		t.Fatalf("kept files %v", kept)
	}
	must(t, os.Rename(kept[0], filepath.Join(path, "day.couch")))
	must(t, d.View("day", func(tx *Tx) error {
		_, err := tx.Record("doc")
		return err
	}))
	must(t, d.Delete("day", false))
	if _, err := os.Stat(filepath.Join(path, "day.couch")); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
	if err := d.Delete("day", false); !errors.Is(err, ErrNoDatabase) {
		t.Errorf("delete again: %v", err)
	}
}

// Deleting a database under its readers and writers fails them, one way or
// the other, and never resurrects it.
func TestDeleteUnderUse(t *testing.T) {
	d := openDir(t, t.TempDir(), 2)
	for round := range 20 {
		name := fmt.Sprintf("db%d", round)
		must(t, d.Create(name, 1))
		changed, err := d.Watch(name)
		must(t, err)
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for i := 0; ; i++ {
					err := d.Update(name, func(tx *Tx) error {
						_, err := put(tx, fmt.Sprintf("w%d-%d", w, i), "")
						return err
					})
					if errors.Is(err, ErrNoDatabase) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		<-changed
		must(t, d.Delete(name, false))
		wg.Wait()
		if d.Exists(name) {
			t.Fatal("a writer resurrected the database")
		}
	}
}

func TestLongIDs(t *testing.T) {
	d := openDir(t, t.TempDir(), 0)
	must(t, d.Create("db", 1))
	ids := []string{strings.Repeat("x", 100_000), strings.Repeat("x", 100_001), strings.Repeat("x", 1024), "\x00", "y"}
	must(t, d.Update("db", func(tx *Tx) error {
		for i, id := range ids {
			if _, err := put(tx, id, fmt.Sprintf(`"n":%d`, i)); err != nil {
				return err
			}
		}
		return nil
	}))
	must(t, d.View("db", func(tx *Tx) error {
		for i, id := range ids {
			r, err := tx.Record(id)
			if err != nil {
				return err
			}
			doc, err := tx.Load(r, r.Tree.Winner())
			if err != nil {
				return err
			}
			if want := fmt.Sprintf(`"n":%d`, i); string(doc.Body) != want || r.ID != id {
				t.Errorf("document %d has %s", i, doc.Body)
			}
		}
		return nil
	}))
}
