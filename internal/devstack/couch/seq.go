package couch

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"strconv"
	"strings"

	"github.com/rollingd/rollingd/internal/devstack/couch/store"
)

// Sequences are opaque outside: "<number>-<text>", where the text alone
// counts when one comes back. It carries the incarnation of the database, so
// that a sequence of another one, dropped or foreign, starts from zero instead
// of skipping what it never counted. The same state has another text in
// different answers, as in CouchDB, which keeps clients from comparing them.
const (
	seqMagic = "g1"

	seqInInfo    = 'i' // update_seq of the database information
	seqInChanges = 'c' // rows and last_seq of the changes feed
)

var errMalformedSeq = badRequest("Malformed sequence supplied in 'since' parameter.")

func appendSeq(dst []byte, incarnation [8]byte, n uint64, variant byte) []byte {
	raw := make([]byte, 0, 24)
	raw = append(raw, variant)
	raw = append(raw, incarnation[:]...)
	raw = binary.BigEndian.AppendUint64(raw, n)
	raw = binary.BigEndian.AppendUint32(raw, crc32.ChecksumIEEE(raw))
	dst = append(strconv.AppendUint(dst, n, 10), '-')
	dst = append(dst, seqMagic...)
	return base64.RawURLEncoding.AppendEncode(dst, raw)
}

// parseSeq reads a sequence that was given to a client. One that belongs to
// another incarnation is 0; text that was never a sequence is refused.
func parseSeq(text string, meta store.Meta) (uint64, error) {
	switch text {
	case "0":
		return 0, nil
	case "now":
		return meta.UpdateSeq, nil
	}
	_, opaque, _ := strings.Cut(text, "-")
	encoded, ok := strings.CutPrefix(opaque, seqMagic)
	if !ok {
		return 0, errMalformedSeq
	}
	raw, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil || len(raw) != 21 || crc32.ChecksumIEEE(raw[:17]) != binary.BigEndian.Uint32(raw[17:]) {
		return 0, errMalformedSeq
	}
	if [8]byte(raw[1:9]) != meta.Incarnation {
		return 0, nil
	}
	return binary.BigEndian.Uint64(raw[9:17]), nil
}
