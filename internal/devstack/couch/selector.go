package couch

import (
	"bytes"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-kivik/kivik/v4/x/collate"

	"github.com/rollingd/rollingd/internal/devstack/couch/jsontext"
	"github.com/rollingd/rollingd/internal/devstack/couch/store"
)

// selector is a compiled selector of _find and of filtered changes feeds. It
// judges a JSON value; nil stands for a field that is not there, which
// satisfies nothing but {"$exists":false}, not even a negation.
type selector func(value []byte) bool

func (s selector) matches(tx *store.Tx, r *store.Record) (bool, error) {
	doc, err := appendDoc(nil, tx, r, r.Tree.Winner(), view{})
	return err == nil && s(doc), err
}

func parseSelector(raw []byte) (selector, error) {
	if !jsontext.IsObject(raw) {
		return nil, badRequest("Selector error: expected a JSON object")
	}
	return compileSelector(raw, false)
}

func invalidOperator(name string) error {
	return &httpError{http.StatusBadRequest, "invalid_operator", "Invalid operator: " + name}
}

// compileSelector compiles an object of operators and fields, all of which
// have to hold. Negation is carried down to the leaves, as in CouchDB.
func compileSelector(obj []byte, negated bool) (selector, error) {
	var parts []selector
	for m := range jsontext.Members(obj) {
		part, err := compileMember(jsontext.Unquote(m.Key), m.Value, negated)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	if len(parts) == 1 {
		return parts[0], nil
	}
	return combine(parts, !negated), nil
}

func compileMember(key string, arg []byte, negated bool) (selector, error) {
	switch key {
	case "$and":
		return compileList(arg, negated, !negated)
	case "$or":
		return compileList(arg, negated, negated)
	case "$nor":
		return compileList(arg, !negated, !negated)
	case "$not":
		return compileCondition(arg, !negated)
	}
	if strings.HasPrefix(key, "$") {
		return compileOperator(key, arg, negated)
	}
	condition, err := compileCondition(arg, negated)
	if err != nil {
		return nil, err
	}
	path := fieldPath(key)
	return func(value []byte) bool { return condition(lookup(value, path)) }, nil
}

// compileCondition compiles what a field is held against: operators and
// sub-fields, or a value that it has to equal.
func compileCondition(arg []byte, negated bool) (selector, error) {
	if jsontext.IsObject(arg) && string(arg) != "{}" {
		return compileSelector(arg, negated)
	}
	return compileOperator("$eq", arg, negated)
}

func compileList(arg []byte, negated, all bool) (selector, error) {
	if !jsontext.IsArray(arg) {
		return nil, badRequest("Bad argument for operator: expected an array of selectors")
	}
	var parts []selector
	for element := range jsontext.Elements(arg) {
		part, err := compileCondition(element, negated)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	return combine(parts, all), nil
}

func combine(parts []selector, all bool) selector {
	return func(value []byte) bool {
		for _, part := range parts {
			if part(value) != all {
				return !all
			}
		}
		return all
	}
}

// compileOperator compiles an operator on a value.
func compileOperator(name string, arg []byte, negated bool) (selector, error) {
	if name == "$exists" {
		wanted := (string(arg) == "true") != negated
		return func(value []byte) bool { return (value != nil) == wanted }, nil
	}
	test, err := compileTest(name, arg)
	if err != nil {
		return nil, err
	}
	return func(value []byte) bool { return value != nil && test(value) != negated }, nil
}

func compileTest(name string, arg []byte) (func([]byte) bool, error) {
	compare := func(ok func(order int) bool) (func([]byte) bool, error) {
		return func(value []byte) bool { return ok(compareJSON(value, arg)) }, nil
	}
	switch name {
	case "$eq":
		return compare(func(order int) bool { return order == 0 })
	case "$ne":
		return compare(func(order int) bool { return order != 0 })
	case "$lt":
		return compare(func(order int) bool { return order < 0 })
	case "$lte":
		return compare(func(order int) bool { return order <= 0 })
	case "$gt":
		return compare(func(order int) bool { return order > 0 })
	case "$gte":
		return compare(func(order int) bool { return order >= 0 })
	case "$in":
		return func(value []byte) bool { return isAmong(value, arg) }, nil
	case "$nin":
		return func(value []byte) bool { return !isAmong(value, arg) }, nil
	case "$all":
		return func(value []byte) bool { return hasAll(value, arg) }, nil
	case "$type":
		return func(value []byte) bool { return string(arg) == `"`+typeName(value)+`"` }, nil
	case "$size":
		return func(value []byte) bool {
			return jsontext.IsArray(value) && strconv.Itoa(len(slices.Collect(jsontext.Elements(value)))) == string(arg)
		}, nil
	case "$mod":
		return compileMod(arg)
	case "$regex", "$beginsWith":
		return compileTextTest(name, arg)
	case "$elemMatch", "$allMatch", "$keyMapMatch":
		return compileElements(name, arg)
	}
	return nil, invalidOperator(name)
}

func compileMod(arg []byte) (func([]byte) bool, error) {
	var numbers []int64
	if json.Unmarshal(arg, &numbers) != nil || len(numbers) != 2 || numbers[0] == 0 {
		return nil, badRequest("Bad argument for operator $mod")
	}
	return func(value []byte) bool {
		n, err := strconv.ParseInt(string(value), 10, 64)
		return err == nil && n%numbers[0] == numbers[1]
	}, nil
}

func compileTextTest(name string, arg []byte) (func([]byte) bool, error) {
	if !jsontext.IsString(arg) {
		return nil, badRequest("Bad argument for operator " + name)
	}
	pattern := jsontext.Unquote(arg)
	if name == "$beginsWith" {
		return func(value []byte) bool {
			return jsontext.IsString(value) && strings.HasPrefix(jsontext.Unquote(value), pattern)
		}, nil
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, badRequest("Bad argument for operator $regex")
	}
	return func(value []byte) bool {
		return jsontext.IsString(value) && re.MatchString(jsontext.Unquote(value))
	}, nil
}

func compileElements(name string, arg []byte) (func([]byte) bool, error) {
	element, err := compileCondition(arg, false)
	if err != nil {
		return nil, err
	}
	switch name {
	case "$keyMapMatch":
		return func(value []byte) bool {
			for m := range jsontext.Members(value) {
				if element(m.Key) {
					return true
				}
			}
			return false
		}, nil
	case "$elemMatch":
		return func(value []byte) bool {
			for e := range jsontext.Elements(value) {
				if element(e) {
					return true
				}
			}
			return false
		}, nil
	}
	return func(value []byte) bool {
		some := false
		for e := range jsontext.Elements(value) {
			if some = true; !element(e) {
				return false
			}
		}
		return some
	}, nil
}

// compareJSON orders values by CouchDB's collation.
func compareJSON(a, b []byte) int {
	if bytes.Equal(a, b) {
		return 0
	}
	return collate.CompareJSON(a, b)
}

// isAmong reports whether a value, or an element of it, is in a list.
func isAmong(value, list []byte) bool {
	for e := range jsontext.Elements(list) {
		if compareJSON(value, e) == 0 {
			return true
		}
		for own := range jsontext.Elements(value) {
			if compareJSON(own, e) == 0 {
				return true
			}
		}
	}
	return false
}

func hasAll(value, list []byte) bool {
	for e := range jsontext.Elements(list) {
		if !slices.ContainsFunc(slices.Collect(jsontext.Elements(value)), func(own []byte) bool { return compareJSON(own, e) == 0 }) {
			return false
		}
	}
	return jsontext.IsArray(value)
}

func typeName(value []byte) string {
	switch value[0] {
	case '{':
		return "object"
	case '[':
		return "array"
	case '"':
		return "string"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	}
	return "number"
}

// fieldPath splits "a.b" at the dots that no backslash precedes.
func fieldPath(field string) []string {
	var path []string
	var part []byte
	for i := 0; i < len(field); i++ {
		switch {
		case field[i] == '\\' && i+1 < len(field):
			i++
			part = append(part, field[i])
		case field[i] == '.':
			path, part = append(path, string(part)), nil
		default:
			part = append(part, field[i])
		}
	}
	return append(path, string(part))
}

// lookup follows a path through objects, and through arrays by index. It
// returns nil where the path leads nowhere.
func lookup(value []byte, path []string) []byte {
	for _, key := range path {
		if jsontext.IsArray(value) {
			n, err := strconv.Atoi(key)
			elements := slices.Collect(jsontext.Elements(value))
			if err != nil || n < 0 || n >= len(elements) {
				return nil
			}
			value = elements[n]
			continue
		}
		if value = jsontext.Get(value, key); value == nil {
			return nil
		}
	}
	return value
}
