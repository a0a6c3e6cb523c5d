package backup

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Manifest describes a dump.
type Manifest struct {
	// Kind is PrimaryKind or ContinuityKind.
	Kind string `json:"kind"`
	// File is the dump, in the folder of the manifest.
	File   string `json:"file"`
	SHA256 string `json:"sha256"`
	Bytes  int64  `json:"bytes"`
	// TakenAt is the database's time when its snapshot was taken.
	TakenAt time.Time `json:"takenAt"`
	// Server and Program are the major versions of Postgres and of pg_dump.
	Server  int `json:"server"`
	Program int `json:"program"`
	// Rows are the rows of each table in the snapshot that was dumped.
	Rows map[string]int64 `json:"rows"`
}

const (
	dumpSuffix     = ".dump"
	manifestSuffix = ".json"
	// partialSuffix is what files are named until they are whole.
	partialSuffix = ".partial"
	// stamp is the form of the time in a name, in UTC, so that names sort by it.
	stamp = "20060102T150405Z"
)

// nameOf is a backup's name without its suffix.
func nameOf(kind string, at time.Time) string {
	return kind + "-" + at.UTC().Format(stamp)
}

// List returns the manifests of a kind that the folder holds, the newest first. Those that are
// damaged are left out and named in the error, an ErrDamaged, beside which the others are returned.
func List(dir, kind string) ([]Manifest, error) {
	files, err := filesOf(dir, kind)
	if err != nil {
		return nil, err
	}
	var all []Manifest
	var problems []error
	for _, file := range files {
		if !strings.HasSuffix(file, manifestSuffix) {
			continue
		}
		m, err := read(dir, kind, file)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b Manifest) int { return b.TakenAt.Compare(a.TakenAt) })
	return all, errors.Join(problems...)
}

func read(dir, kind, file string) (Manifest, error) {
	var m Manifest
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("%w: %s: %w", ErrDamaged, file, err)
	}
	// What is removed or read by this name has to lie in the folder.
	if m.Kind != kind || m.File != nameOf(kind, m.TakenAt)+dumpSuffix || file != m.manifest() {
		return m, fmt.Errorf("%w: %s describes another backup", ErrDamaged, file)
	}
	return m, nil
}

// filesOf lists the files of a kind's backups, whole or not.
func filesOf(dir, kind string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var files []string
	for _, entry := range entries {
		at, found := strings.CutPrefix(entry.Name(), kind+"-")
		at, _, _ = strings.Cut(at, ".")
		if _, err := time.Parse(stamp, at); found && err == nil && entry.Type().IsRegular() {
			files = append(files, entry.Name())
		}
	}
	return files, nil
}

// manifest is the name of the manifest's own file.
func (m Manifest) manifest() string { return nameOf(m.Kind, m.TakenAt) + manifestSuffix }

// check reads the dump and compares it with the manifest.
func (m Manifest) check(dir string) error {
	sum, size, err := digest(filepath.Join(dir, m.File))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if sum != m.SHA256 || size != m.Bytes {
		return fmt.Errorf("%w: %s has %d bytes with SHA-256 %s, the manifest says %d with %s", ErrDamaged, m.File, size, sum, m.Bytes, m.SHA256)
	}
	return nil
}

// write puts the manifest in its place, which makes the backup one.
func (m Manifest) write(dir string) error {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, m.manifest())
	file, err := create(path + partialSuffix)
	if err != nil {
		return err
	}
	_, err = file.Write(append(text, '\n'))
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	return rename(path+partialSuffix, path)
}

// remove takes a backup away. The manifest goes first: a dump that is left alone is no backup.
func (m Manifest) remove(dir string) error {
	if err := os.Remove(filepath.Join(dir, m.manifest())); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(dir, m.File)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// create makes a file that nobody else can read.
func create(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
}

// rename moves a file that is on disk to its name, and has the name on disk as well.
func rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(to))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func digest(path string) (sum string, size int64, err error) {
	file, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer file.Close()
	hash := sha256.New()
	if size, err = io.Copy(hash, file); err != nil {
		return "", 0, err
	}
	return hex.EncodeToString(hash.Sum(nil)), size, nil
}
