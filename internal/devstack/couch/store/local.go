package store

import "strconv"

// Local returns the members of a local document and its revision number. Local
// documents have no history, no sequence and do not replicate.
func (tx *Tx) Local(id string) (body []byte, rev int, err error) {
	stored := tx.btx.Bucket(localsBucket).Get(docKey(id))
	if stored == nil {
		return nil, 0, ErrMissing
	}
	d := decoder{b: stored}
	d.str() // The id, for listing.
	rev = int(d.uint())
	return d.b, rev, d.err()
}

// PutLocal replaces a local document. The new revision number follows the one
// the client gave, whatever is stored: there are no conflicts.
func (tx *Tx) PutLocal(id string, body []byte, given string) (rev int, err error) {
	n, err := strconv.Atoi(given)
	if err != nil {
		n = 0
	}
	e := encoder{b: make([]byte, 0, len(body)+len(id)+16)}
	e.str(id)
	e.uint(uint64(n + 1))
	return n + 1, tx.btx.Bucket(localsBucket).Put(docKey(id), append(e.b, body...))
}

// DeleteLocal removes a local document, or returns ErrMissing.
func (tx *Tx) DeleteLocal(id string) error {
	locals := tx.btx.Bucket(localsBucket)
	if locals.Get(docKey(id)) == nil {
		return ErrMissing
	}
	return locals.Delete(docKey(id))
}

// Locals walks the local documents in the order of their ids.
func (tx *Tx) Locals(fn func(id string, rev int, body []byte) bool) error {
	cursor := tx.btx.Bucket(localsBucket).Cursor()
	for key, stored := cursor.First(); key != nil; key, stored = cursor.Next() {
		d := decoder{b: stored}
		id, rev := d.str(), int(d.uint())
		if err := d.err(); err != nil {
			return err
		}
		if !fn(id, rev, d.b) {
			return nil
		}
	}
	return nil
}
