package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
)

// emptyFile returns the bytes of a file with empty buckets. bbolt syncs a file
// that it makes, whatever the options say, and copying one is ten times faster.
func (d *Dir) emptyFile() ([]byte, error) {
	if d.empty != nil {
		return d.empty, nil
	}
	temporary := filepath.Join(d.path, "empty.tmp")
	defer func() { _ = os.Remove(temporary) }()
	b, err := bolt.Open(temporary, 0o600, &bolt.Options{Timeout: time.Second})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(b.Update(createBuckets), b.Close()); err != nil {
		return nil, err
	}
	d.empty, err = os.ReadFile(temporary)
	return d.empty, err
}

func (d *Dir) removeFile(db *db, keep bool) error {
	if !keep {
		return os.Remove(db.file)
	}
	base := strings.TrimSuffix(db.file, extension) + time.Now().UTC().Format(".20060102.150405")
	kept := base + deletedExtension
	for n := 1; ; n++ {
		if _, err := os.Lstat(kept); errors.Is(err, fs.ErrNotExist) {
			return os.Rename(db.file, kept)
		}
		kept = fmt.Sprintf("%s.%d%s", base, n, deletedExtension)
	}
}

func (d *Dir) openFile(db *db) error {
	// The timeout turns a folder that another process holds into an error.
	b, err := bolt.Open(db.file, 0o600, &bolt.Options{
		Timeout:      time.Second,
		NoSync:       d.opts.NoSync,
		NoGrowSync:   d.opts.NoSync,
		FreelistType: bolt.FreelistMapType,
	})
	if err != nil {
		return fmt.Errorf("open database file: %w", err)
	}
	db.bolt = b
	d.open++
	return nil
}

func (d *Dir) closeFile(db *db) error {
	if db.idle != nil {
		d.idle.Remove(db.idle)
		db.idle = nil
	}
	if db.bolt == nil {
		return nil
	}
	err := db.bolt.Close()
	db.bolt = nil
	d.open--
	return err
}

func (d *Dir) evict() error {
	for d.open > d.opts.MaxOpen && d.idle.Len() > 0 {
		if err := d.closeFile(d.idle.Back().Value.(*db)); err != nil {
			return err
		}
	}
	return nil
}

func databaseName(file string) (name string, ok bool) {
	if strings.HasSuffix(file, deletedExtension) {
		return "", false
	}
	name, ok = strings.CutSuffix(file, extension)
	return strings.ReplaceAll(name, "%", "/"), ok
}
