// Package jsontext reads and rewrites JSON the way CouchDB does, without
// building values. CouchDB decodes a request into Erlang terms and encodes
// them again, so what it stores is not what was sent but a normal form of it:
// no white space, shortest floats with a fraction ("1e2" becomes "100.0"),
// integers of any size untouched, the last of several equal keys, the order
// of keys kept. This package produces that form from bytes to bytes.
//
// Nothing here recurses, since documents of 20,000 levels are legal in
// CouchDB and encoding/json gives up at 10,000.
package jsontext

import (
	"bytes"
	"errors"
)

// ErrInvalid reports text that is not one JSON value in valid UTF-8, has a
// lone surrogate, or a number beyond the range of a double. CouchDB answers
// 400 "invalid UTF-8 JSON" to all of them.
var ErrInvalid = errors.New("invalid UTF-8 JSON")

// quadraticMembers is the size up to which comparing all keys of an object
// with each other is cheaper than filling a map.
const quadraticMembers = 12

// Canonical appends the normal form of the single JSON value in src to dst.
// It returns ErrInvalid, and dst in an undefined state, if src holds anything
// else. The result is valid UTF-8 and the input of every other function here.
func Canonical(dst, src []byte) ([]byte, error) {
	c := canonicaliser{src: src, dst: dst}
	if err := c.run(); err != nil {
		return c.dst, err
	}
	return c.dst, nil
}

type canonicaliser struct {
	src     []byte
	pos     int
	dst     []byte
	stack   []frame
	members []member
}

// frame is one open array or object.
type frame struct {
	object bool
	first  int // index in members of the object's first member
}

// member is one "key":value of an open object, as offsets into dst.
type member struct{ start, keyEnd int }

func (c *canonicaliser) run() error {
	for {
		opened, err := c.value()
		if err != nil {
			return err
		}
		if opened {
			continue
		}
		done, err := c.afterValue()
		if done || err != nil {
			return err
		}
	}
}

// value reads one scalar, an empty container, or the opening of a container
// up to where its first value begins; the last case reports true.
func (c *canonicaliser) value() (opened bool, err error) {
	switch b := c.peek(); {
	case b == '{':
		c.pos++
		c.dst = append(c.dst, '{')
		if c.peek() == '}' {
			c.pos++
			c.dst = append(c.dst, '}')
			return false, nil
		}
		c.stack = append(c.stack, frame{object: true, first: len(c.members)})
		return true, c.key()
	case b == '[':
		c.pos++
		c.dst = append(c.dst, '[')
		if c.peek() == ']' {
			c.pos++
			c.dst = append(c.dst, ']')
			return false, nil
		}
		c.stack = append(c.stack, frame{})
		return true, nil
	case b == '"':
		return false, c.str()
	case b == '-' || isDigit(b):
		return false, c.number()
	default:
		return false, c.literal()
	}
}

// afterValue consumes closing brackets until another value is due (false) or
// the text is complete (true).
func (c *canonicaliser) afterValue() (done bool, err error) {
	for {
		b := c.peek()
		if len(c.stack) == 0 {
			if c.pos != len(c.src) {
				return false, ErrInvalid
			}
			return true, nil
		}
		top := c.stack[len(c.stack)-1]
		switch {
		case b == ',':
			c.pos++
			c.dst = append(c.dst, ',')
			if top.object {
				return false, c.key()
			}
			return false, nil
		case b == '}' && top.object:
			c.dropOverwritten(top.first)
			c.members = c.members[:top.first]
			c.dst = append(c.dst, '}')
		case b == ']' && !top.object:
			c.dst = append(c.dst, ']')
		default:
			return false, ErrInvalid
		}
		c.pos++
		c.stack = c.stack[:len(c.stack)-1]
	}
}

// key reads `"key":` and remembers where the member starts.
func (c *canonicaliser) key() error {
	if c.peek() != '"' {
		return ErrInvalid
	}
	start := len(c.dst)
	if err := c.str(); err != nil {
		return err
	}
	if c.peek() != ':' {
		return ErrInvalid
	}
	c.pos++
	c.members = append(c.members, member{start: start, keyEnd: len(c.dst)})
	c.dst = append(c.dst, ':')
	return nil
}

// dropOverwritten removes from dst each member of the innermost object that a
// later member with the same key replaces. Keys are in normal form already,
// where equal strings have equal bytes.
func (c *canonicaliser) dropOverwritten(first int) {
	ms := c.members[first:]
	overwritten := c.overwritten(ms)
	if overwritten == nil {
		return
	}
	end := len(c.dst)
	out := ms[0].start
	for i, m := range ms {
		if overwritten[i] {
			continue
		}
		stop := end
		if i+1 < len(ms) {
			stop = ms[i+1].start - 1 // without the comma
		}
		if out > ms[0].start {
			c.dst[out] = ','
			out++
		}
		out += copy(c.dst[out:], c.dst[m.start:stop])
	}
	c.dst = c.dst[:out]
}

func (c *canonicaliser) overwritten(ms []member) map[int]bool {
	var dup map[int]bool
	mark := func(i int) {
		if dup == nil {
			dup = map[int]bool{}
		}
		dup[i] = true
	}
	if len(ms) <= quadraticMembers {
		for i := range ms {
			key := c.dst[ms[i].start:ms[i].keyEnd]
			for _, later := range ms[i+1:] {
				if bytes.Equal(key, c.dst[later.start:later.keyEnd]) {
					mark(i)
					break
				}
			}
		}
		return dup
	}
	seen := make(map[string]int, len(ms))
	for i, m := range ms {
		key := c.dst[m.start:m.keyEnd]
		if earlier, ok := seen[string(key)]; ok {
			mark(earlier)
		}
		seen[string(key)] = i
	}
	return dup
}

// peek skips white space and returns the next byte, 0 at the end. A NUL byte
// in the text is no token, so callers refuse both alike.
func (c *canonicaliser) peek() byte {
	for c.pos < len(c.src) {
		switch b := c.src[c.pos]; b {
		case ' ', '\t', '\n', '\r':
			c.pos++
		default:
			return b
		}
	}
	return 0
}

func (c *canonicaliser) literal() error {
	for _, word := range []string{"true", "false", "null"} {
		if bytes.HasPrefix(c.src[c.pos:], []byte(word)) {
			c.dst = append(c.dst, word...)
			c.pos += len(word)
			return nil
		}
	}
	return ErrInvalid
}
