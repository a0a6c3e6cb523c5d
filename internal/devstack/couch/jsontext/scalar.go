package jsontext

import (
	"math"
	"strconv"
	"unicode/utf8"
)

const upperHex = "0123456789ABCDEF"

// str reads one string and appends it with the escapes that CouchDB uses:
// everything raw but the quote, the backslash and control characters, which
// have their short form or upper-case hexadecimal.
func (c *canonicaliser) str() error {
	c.dst = append(c.dst, '"')
	i := c.pos + 1
	for {
		run := i
		for i < len(c.src) && c.src[i] >= 0x20 && c.src[i] < utf8.RuneSelf && c.src[i] != '"' && c.src[i] != '\\' {
			i++
		}
		c.dst = append(c.dst, c.src[run:i]...)
		if i >= len(c.src) {
			return ErrInvalid
		}
		switch b := c.src[i]; {
		case b == '"':
			c.dst = append(c.dst, '"')
			c.pos = i + 1
			return nil
		case b == '\\':
			r, size := unescape(c.src[i:])
			if size == 0 {
				return ErrInvalid
			}
			c.dst = appendRune(c.dst, r)
			i += size
		case b < 0x20:
			return ErrInvalid
		default:
			r, size := utf8.DecodeRune(c.src[i:])
			if r == utf8.RuneError && size <= 1 {
				return ErrInvalid
			}
			c.dst = append(c.dst, c.src[i:i+size]...)
			i += size
		}
	}
}

// unescape decodes the escape at the start of b, a surrogate pair as one
// rune. Its size is 0 if the escape is malformed or a lone surrogate.
func unescape(b []byte) (r rune, size int) {
	if len(b) < 2 {
		return 0, 0
	}
	switch b[1] {
	case '"', '\\', '/':
		return rune(b[1]), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
	default:
		return 0, 0
	}
	r, ok := hex4(b[2:])
	switch {
	case !ok || r >= 0xDC00 && r <= 0xDFFF:
		return 0, 0
	case r < 0xD800 || r > 0xDFFF:
		return r, 6
	}
	if len(b) < 12 || b[6] != '\\' || b[7] != 'u' {
		return 0, 0
	}
	low, ok := hex4(b[8:])
	if !ok || low < 0xDC00 || low > 0xDFFF {
		return 0, 0
	}
	return 0x10000 + (r-0xD800)<<10 + (low - 0xDC00), 12
}

func hex4(b []byte) (r rune, ok bool) {
	if len(b) < 4 {
		return 0, false
	}
	for _, d := range b[:4] {
		switch {
		case isDigit(d):
			d -= '0'
		case d >= 'a' && d <= 'f':
			d -= 'a' - 10
		case d >= 'A' && d <= 'F':
			d -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(d)
	}
	return r, true
}

func appendRune(dst []byte, r rune) []byte {
	switch r {
	case '"', '\\':
		return append(dst, '\\', byte(r))
	case '\b':
		return append(dst, `\b`...)
	case '\f':
		return append(dst, `\f`...)
	case '\n':
		return append(dst, `\n`...)
	case '\r':
		return append(dst, `\r`...)
	case '\t':
		return append(dst, `\t`...)
	}
	if r < 0x20 {
		return append(dst, '\\', 'u', '0', '0', upperHex[r>>4], upperHex[r&15])
	}
	return utf8.AppendRune(dst, r)
}

// number copies an integer digit by digit and rewrites a float as the
// shortest text that reads back as the same double.
func (c *canonicaliser) number() error {
	start := c.pos
	i := start
	at := func() byte {
		if i < len(c.src) {
			return c.src[i]
		}
		return 0
	}
	digits := func() bool {
		from := i
		for isDigit(at()) {
			i++
		}
		return i > from
	}
	if at() == '-' {
		i++
	}
	if at() == '0' {
		i++
	} else if !digits() {
		return ErrInvalid
	}
	if isDigit(at()) {
		return ErrInvalid
	}
	float := false
	if at() == '.' {
		float = true
		i++
		if !digits() {
			return ErrInvalid
		}
	}
	if at() == 'e' || at() == 'E' {
		float = true
		i++
		if at() == '+' || at() == '-' {
			i++
		}
		if !digits() {
			return ErrInvalid
		}
	}
	c.pos = i
	text := c.src[start:i]
	if !float {
		if string(text) == "-0" {
			text = text[1:]
		}
		c.dst = append(c.dst, text...)
		return nil
	}
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil && math.IsInf(f, 0) {
		return ErrInvalid
	}
	c.dst = appendFloat(c.dst, f)
	return nil
}

// appendFloat writes a double like CouchDB: positional between 1e-6 and 1e21
// and always with a fraction, else with an exponent; there is no minus zero.
func appendFloat(dst []byte, f float64) []byte {
	abs := math.Abs(f)
	switch {
	case abs == 0:
		return append(dst, "0.0"...)
	case abs >= 1e-6 && abs < 1e21:
		from := len(dst)
		dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
		for _, b := range dst[from:] {
			if b == '.' {
				return dst
			}
		}
		return append(dst, ".0"...)
	default:
		dst = strconv.AppendFloat(dst, f, 'e', -1, 64)
		if n := len(dst); dst[n-2] == '0' && (dst[n-3] == '-' || dst[n-3] == '+') {
			dst[n-2] = dst[n-1]
			dst = dst[:n-1]
		}
		return dst
	}
}

func isDigit(b byte) bool { return b >= '0' && b <= '9' }
