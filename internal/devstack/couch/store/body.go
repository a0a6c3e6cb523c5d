package store

// Attachment describes one attachment of a revision.
type Attachment struct {
	Name, Type string
	RevPos     int      // generation that brought the content
	Digest     [16]byte // MD5 of the stored bytes
	Length     int64    // of the decoded content, in bytes
	Stored     int64    // of the stored bytes; differs from Length if Gzip
	Gzip       bool     // the stored bytes are compressed
	Content    uint64   // reference to the stored bytes
}

func encodeBody(atts []Attachment, body []byte) []byte {
	e := encoder{b: make([]byte, 0, len(body)+1+100*len(atts))}
	e.uint(uint64(len(atts)))
	for _, a := range atts {
		e.str(a.Name)
		e.str(a.Type)
		e.uint(uint64(a.RevPos))
		e.bytes(a.Digest[:])
		e.uint(uint64(a.Length))
		e.uint(uint64(a.Stored))
		flag := uint64(0)
		if a.Gzip {
			flag = 1
		}
		e.uint(flag)
		e.uint(a.Content)
	}
	return append(e.b, body...)
}

func decodeBody(b []byte) ([]Attachment, []byte, error) {
	d := decoder{b: b}
	var atts []Attachment
	for n := d.uint(); n > 0 && !d.bad; n-- {
		a := Attachment{Name: d.str(), Type: d.str(), RevPos: int(d.uint())}
		copy(a.Digest[:], d.bytes())
		a.Length, a.Stored = int64(d.uint()), int64(d.uint())
		a.Gzip = d.uint() == 1
		a.Content = d.uint()
		atts = append(atts, a)
	}
	return atts, d.b, d.err()
}
