package jsontext

import (
	"bytes"
	"iter"
	"unicode/utf8"
)

// Member is one member of an object: the key as a string token, quotes
// included, and the text of the value. Both alias the walked bytes.
type Member struct{ Key, Value []byte }

// IsObject reports whether a value in normal form is an object.
func IsObject(v []byte) bool { return len(v) > 0 && v[0] == '{' }

// IsArray reports whether a value in normal form is an array.
func IsArray(v []byte) bool { return len(v) > 0 && v[0] == '[' }

// IsString reports whether a value in normal form is a string.
func IsString(v []byte) bool { return len(v) > 0 && v[0] == '"' }

// Members walks the members of an object in normal form. Anything else has
// no members.
func Members(obj []byte) iter.Seq[Member] {
	return func(yield func(Member) bool) {
		if !IsObject(obj) {
			return
		}
		for i := 1; i < len(obj) && obj[i] != '}'; i++ {
			keyEnd := skipString(obj, i)
			end := skipValue(obj, keyEnd+1)
			if !yield(Member{Key: obj[i:keyEnd], Value: obj[keyEnd+1 : end]}) {
				return
			}
			i = end
			if obj[i] == '}' {
				return
			}
		}
	}
}

// Elements walks the elements of an array in normal form. Anything else has
// no elements.
func Elements(arr []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		if !IsArray(arr) {
			return
		}
		for i := 1; i < len(arr) && arr[i] != ']'; i++ {
			end := skipValue(arr, i)
			if !yield(arr[i:end]) {
				return
			}
			i = end
			if arr[i] == ']' {
				return
			}
		}
	}
}

// Get returns the value of an object's member, nil if there is none.
func Get(obj []byte, key string) []byte {
	for m := range Members(obj) {
		if Unquote(m.Key) == key {
			return m.Value
		}
	}
	return nil
}

// Unquote decodes a string token in normal form.
func Unquote(token []byte) string {
	inner := token[1 : len(token)-1]
	i := bytes.IndexByte(inner, '\\')
	if i < 0 {
		return string(inner)
	}
	out := make([]byte, 0, len(inner))
	for {
		out = append(out, inner[:i]...)
		r, size := unescape(inner[i:])
		out = utf8.AppendRune(out, r)
		inner = inner[i+size:]
		if i = bytes.IndexByte(inner, '\\'); i < 0 {
			return string(append(out, inner...))
		}
	}
}

// AppendString appends s as a string token in normal form. Bytes that are not
// UTF-8 become U+FFFD.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for _, r := range s {
		dst = appendRune(dst, r)
	}
	return append(dst, '"')
}

// skipString returns the offset behind the string token that starts at i.
func skipString(b []byte, i int) int {
	for i++; b[i] != '"'; i++ {
		if b[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// skipValue returns the offset behind the value that starts at i.
func skipValue(b []byte, i int) int {
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			i = skipString(b, i)
			if depth == 0 {
				return i
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',':
			if depth == 0 {
				return i
			}
		}
		i++
	}
	return i
}
