package devstack

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// temporary is a folder that is removed with its owner's last words, or, if the owner was killed, by the next one who
// makes such a folder: tests are interrupted often, and every cluster takes tens of megabytes. The kernel's lock on the
// folder tells the two apart; it ends with its owner however that ends.
type temporary struct {
	dir  string
	lock *os.File
}

// newTemporary makes a folder with a name that begins with prefix, and removes abandoned ones of that prefix.
func newTemporary(prefix string) (*temporary, error) {
	others, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	if err != nil {
		return nil, err
	}
	for _, dir := range others {
		if lock, err := lockFolder(dir); err == nil {
			_ = os.RemoveAll(dir) // What cannot be removed is not this owner's concern.
			_ = lock.Close()
		}
	}
	for attempt := 1; ; attempt++ {
		dir, err := os.MkdirTemp("", prefix)
		if err != nil {
			return nil, err
		}
		// Another owner may take the folder for an abandoned one until it is locked.
		lock, err := lockFolder(dir)
		if err == nil {
			return &temporary{dir: dir, lock: lock}, nil
		}
		if attempt == 3 {
			return nil, err
		}
	}
}

// remove is safe to call twice, and on nil.
func (t *temporary) remove() error {
	if t == nil {
		return nil
	}
	defer t.lock.Close()
	return os.RemoveAll(t.dir)
}

// lockFolder fails if another process holds the lock, or removed the folder before it let the lock go.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	locked, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	present, err := os.Stat(dir)
	if err != nil || !os.SameFile(locked, present) {
		return nil, errors.Join(os.ErrNotExist, err, f.Close())
	}
	return f, nil
}
