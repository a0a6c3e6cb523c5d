package devstack

import (
	"os"
	"strings"
	"testing"
)

func TestAbandonedFoldersAreRemoved(t *testing.T) {
	prefix := "rollingd-" + strings.ToLower(t.Name()) + "-"
	owned, err := newTemporary(prefix)
	if err != nil {
		t.Fatal(err)
	}
	defer owned.remove()
	abandoned, err := newTemporary(prefix)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(abandoned.dir+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	abandoned.lock.Close() // As the kernel does when the owner is killed.

	next, err := newTemporary(prefix)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(abandoned.dir); !os.IsNotExist(err) {
		t.Errorf("the abandoned folder: %v, want it removed", err)
	}
	for _, mine := range []*temporary{owned, next} {
		if _, err := os.Stat(mine.dir); err != nil {
			t.Errorf("a folder whose owner lives: %v", err)
		}
	}
	for range 2 {
		if err := next.remove(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(next.dir); !os.IsNotExist(err) {
		t.Errorf("the folder after remove: %v", err)
	}
}
