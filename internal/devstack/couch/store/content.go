package store

import (
	"encoding/binary"
	"fmt"
)

// chunkSize is how much of an attachment is one value of the file. Longer
// attachments are never in memory as a whole.
const chunkSize = 256 << 10

// NewContent returns the reference of an attachment that is to be stored. Its
// bytes may be written over several transactions; until a document refers to
// them they are garbage, which Compact collects.
func (tx *Tx) NewContent() (uint64, error) {
	tx.meta.Contents++
	tx.dirty = true
	return tx.meta.Contents, nil
}

// AppendContent writes data from chunk number first on, and must be given
// whole chunks except at the end.
func (tx *Tx) AppendContent(content uint64, first int, data []byte) error {
	chunks := tx.btx.Bucket(chunksBucket)
	chunks.FillPercent = 1
	for n := first; len(data) > 0; n++ {
		size := min(len(data), chunkSize)
		if err := chunks.Put(chunkKey(content, n), data[:size]); err != nil {
			return err
		}
		data = data[size:]
	}
	return nil
}

// Chunk returns a chunk of an attachment, nil behind the last. It returns
// ErrMissing if the attachment has bytes but none are stored.
func (tx *Tx) Chunk(a Attachment, n int) ([]byte, error) {
	chunk := tx.btx.Bucket(chunksBucket).Get(chunkKey(a.Content, n))
	if chunk == nil && int64(n)*chunkSize < a.Stored {
		return nil, fmt.Errorf("attachment %q: %w", a.Name, ErrMissing)
	}
	return chunk, nil
}

// Content returns all stored bytes of an attachment.
func (tx *Tx) Content(a Attachment) ([]byte, error) {
	data := make([]byte, 0, a.Stored)
	for n := 0; ; n++ {
		chunk, err := tx.Chunk(a, n)
		if chunk == nil || err != nil {
			return data, err
		}
		data = append(data, chunk...)
	}
}

func chunkKey(content uint64, n int) []byte {
	return binary.BigEndian.AppendUint32(seqKey(content), uint32(n))
}

// ContentWriter stores an attachment of unknown length as it arrives, a chunk
// per transaction.
type ContentWriter struct {
	dir     *Dir
	name    string
	content uint64
	buf     []byte
	next    int
}

// WriteContent begins an attachment in a database.
func (d *Dir) WriteContent(name string) (*ContentWriter, error) {
	w := &ContentWriter{dir: d, name: name, buf: make([]byte, 0, chunkSize)}
	err := d.Update(name, func(tx *Tx) (err error) {
		w.content, err = tx.NewContent()
		return err
	})
	return w, err
}

// Ref returns the reference for Attachment.Content.
func (w *ContentWriter) Ref() uint64 { return w.content }

func (w *ContentWriter) Write(p []byte) (int, error) {
	written := 0
	for len(p) > 0 {
		n := copy(w.buf[len(w.buf):chunkSize], p)
		w.buf = w.buf[:len(w.buf)+n]
		p = p[n:]
		written += n
		if len(w.buf) == chunkSize {
			if err := w.Flush(); err != nil {
				return written, err
			}
		}
	}
	return written, nil
}

// Flush stores what is left. Call it once, after the last Write.
func (w *ContentWriter) Flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	err := w.dir.Update(w.name, func(tx *Tx) error { return tx.AppendContent(w.content, w.next, w.buf) })
	w.next++
	w.buf = w.buf[:0]
	return err
}
