package archive

import (
	"encoding/binary"
	"io"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/daydb"
)

// rowColumns are the columns of archived_docs in the order of copyRows.
const rowColumns = `
  business_day,
  source_id,
  id_hash,
  doc_id,
  company_id,
  restaurant_id,
  rev,
  deleted,
  doc_type,
  status,
  body,
  body_rev,
  body_sha256,
  tombstone,
  attachments`

const rowColumnCount = 15

// copyRows is the payload of COPY in binary form, made row by row while Postgres
// takes it. pgx's own would box each field of each row.
type copyRows struct {
	source  int64
	entries []*entry
	buf     []byte
	rest    []byte
	begun   bool
	ended   bool
}

var copySignature = []byte("PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00")

// Read makes copyRows an io.Reader.
func (r *copyRows) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.ended {
			return 0, io.EOF
		}
		r.rest = r.fill()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (r *copyRows) fill() []byte {
	switch {
	case !r.begun:
		r.begun = true
		return copySignature
	case len(r.entries) == 0:
		r.ended = true
		return []byte{0xff, 0xff}
	default:
		r.buf = appendRow(r.buf[:0], r.source, r.entries[0])
		r.entries = r.entries[1:]
		return r.buf
	}
}

// postgresEpoch is the day from which Postgres counts dates.
var postgresEpoch = func() daydb.Day {
	day, err := daydb.ParseDay("20000101")
	if err != nil {
		panic(err)
	}
	return day
}()

func appendRow(b []byte, source int64, e *entry) []byte {
	b = binary.BigEndian.AppendUint16(b, rowColumnCount)
	b = binary.BigEndian.AppendUint32(b, 4)
	b = binary.BigEndian.AppendUint32(b, uint32(e.day.DaysSince(postgresEpoch)))
	b = binary.BigEndian.AppendUint32(b, 8)
	b = binary.BigEndian.AppendUint64(b, uint64(source))
	b = appendBytes(b, e.hash[:])
	b = appendText(b, e.id)
	b = appendOptional(b, e.owner.CompanyID)
	b = appendOptional(b, e.owner.RestaurantID)
	b = appendText(b, e.rev)
	b = binary.BigEndian.AppendUint32(b, 1)
	if e.deleted {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	b = appendType(b, e)
	if e.deleted {
		b = appendNull(appendNull(appendNull(b)))
		b = appendBytes(b, e.body)
	} else {
		b = appendBytes(b, e.body)
		b = appendText(b, e.rev)
		b = appendBytes(b, e.bodySHA[:])
		b = appendNull(b)
	}
	return appendIDs(b, e.attachments)
}

// appendType appends doc_type and status. They are derived from the body and
// only there to be asked for, so what their columns cannot hold is left out: the
// type of a deletion that is none of ours, a status of an inventory movement
// that has a NUL.
func appendType(b []byte, e *entry) []byte {
	if !contracts.IsDynamic(e.docType) {
		return appendNull(appendNull(b))
	}
	b = appendText(b, e.docType)
	if e.status == "" || strings.ContainsRune(e.status, 0) {
		return appendNull(b)
	}
	return appendText(b, e.status)
}

func appendNull(b []byte) []byte { return append(b, 0xff, 0xff, 0xff, 0xff) }

func appendBytes(b, v []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(v)))
	return append(b, v...)
}

func appendText(b []byte, v string) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(v)))
	return append(b, v...)
}

// appendOptional appends text, and null for none.
func appendOptional(b []byte, v string) []byte {
	if v == "" {
		return appendNull(b)
	}
	return appendText(b, v)
}

// appendIDs appends a bigint[], and null when there are none.
func appendIDs(b []byte, ids []int64) []byte {
	if len(ids) == 0 {
		return appendNull(b)
	}
	const head, element = 20, 12
	b = binary.BigEndian.AppendUint32(b, uint32(head+element*len(ids)))
	b = binary.BigEndian.AppendUint32(b, 1) // dimensions
	b = binary.BigEndian.AppendUint32(b, 0) // no nulls
	b = binary.BigEndian.AppendUint32(b, pgtype.Int8OID)
	b = binary.BigEndian.AppendUint32(b, uint32(len(ids)))
	b = binary.BigEndian.AppendUint32(b, 1) // lower bound
	for _, id := range ids {
		b = binary.BigEndian.AppendUint32(b, 8)
		b = binary.BigEndian.AppendUint64(b, uint64(id))
	}
	return b
}
