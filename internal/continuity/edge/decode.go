package edge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/web"
)

const (
	// maxBody holds the largest payload, and the rest of a command beside it.
	maxBody = contracts.MaxCommandPayloadBytes + 8<<10
	// maxName bounds keys, types and ids, in bytes. The queue and the primary have
	// the same bound.
	maxName = 256
	// maxDepth bounds how deeply a payload is nested. Postgres refuses what is
	// nested some thousand times deep; nobody sells such an order.
	maxDepth = 64
	// maxExponent is that of the numbers that other programs can read. Postgres
	// writes exponents out, so that a few bytes become many.
	maxExponent = 308
)

// earliest and latest are the times that the queue takes.
var (
	earliest = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	latest   = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
)

// readBody reads a body of JSON.
func readBody(c echo.Context, limit int64) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(c.Response(), c.Request().Body, limit))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return nil, &refused{
			status: http.StatusRequestEntityTooLarge,
			code:   string(contracts.CodePayloadTooLarge),
			detail: fmt.Sprintf("the body is larger than %d bytes", limit),
		}
	}
	if err != nil {
		return nil, invalid("", "the body ended early")
	}
	return body, nil
}

func requireJSON(c echo.Context) error {
	mediaType, _, err := mime.ParseMediaType(c.Request().Header.Get(echo.HeaderContentType))
	if err != nil || mediaType != echo.MIMEApplicationJSON {
		return &refused{
			status: http.StatusUnsupportedMediaType,
			code:   codeUnsupportedMedia,
			detail: "send the body as JSON, with \"Content-Type: application/json\"",
		}
	}
	return nil
}

// decodeCommand reads the body of a command, one JSON object and nothing else.
// Names count exactly, and none may be unknown or there twice: what is misspelt
// would otherwise be what is left out.
func decodeCommand(body []byte) (continuity.Command, error) {
	var (
		cmd        continuity.Command
		occurredAt *string
	)
	fields := map[string]any{
		"idempotencyKey":  &cmd.IdempotencyKey,
		"commandType":     &cmd.CommandType,
		"aggregateType":   &cmd.AggregateType,
		"aggregateId":     &cmd.AggregateID,
		"payload":         &cmd.Payload,
		"occurredAt":      &occurredAt,
		"expectedVersion": &cmd.ExpectedVersion,
	}
	if !utf8.Valid(body) {
		return cmd, invalid("", "the body is not UTF-8")
	}
	if err := decodeFields(body, fields); err != nil {
		return cmd, err
	}
	for _, name := range []struct{ field, value string }{
		{"idempotencyKey", cmd.IdempotencyKey},
		{"commandType", cmd.CommandType},
		{"aggregateType", cmd.AggregateType},
		{"aggregateId", cmd.AggregateID},
	} {
		if err := checkName(name.field, name.value); err != nil {
			return cmd, err
		}
	}
	if cmd.ExpectedVersion != nil && *cmd.ExpectedVersion < 0 {
		return cmd, invalid("expectedVersion", "expectedVersion must not be negative")
	}
	if occurredAt != nil {
		// The client's clock may be off by however much: nothing goes by it.
		at, err := time.Parse(time.RFC3339Nano, *occurredAt)
		if at = at.UTC(); err != nil || at.Before(earliest) || at.After(latest) {
			return cmd, invalid("occurredAt", "occurredAt must be a time as in RFC 3339, such as 2026-11-30T12:00:00Z")
		}
		cmd.OccurredAt = &at
	}
	return cmd, checkPayload(cmd.Payload)
}

// decodeFields reads an object whose fields go where the map says. A field that
// is null is as wrong as one of another type.
func decodeFields(body []byte, into map[string]any) error {
	dec := json.NewDecoder(bytes.NewReader(body))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return invalid("", "the body must be a JSON object")
	}
	seen := make(map[string]bool)
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return notJSON(err)
		}
		name, _ := t.(string)
		target, ok := into[name]
		switch {
		case !ok:
			return invalid(web.Printable(name), "there is no field %q here", web.Printable(name))
		case seen[name]:
			return invalid(name, "the field is there twice")
		}
		seen[name] = true
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return notJSON(err)
		}
		if payload, ok := target.(*json.RawMessage); ok {
			*payload = raw
		} else if string(raw) == "null" || json.Unmarshal(raw, target) != nil {
			return invalid(name, "the field must be %s", wanted(target))
		}
	}
	if _, err := dec.Token(); err != nil {
		return notJSON(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return invalid("", "something follows the JSON object in the body")
	}
	return nil
}

func notJSON(err error) error { return invalid("", "the body is not JSON: %v", err) }

func wanted(target any) string {
	if _, ok := target.(**int64); ok {
		return "a whole number"
	}
	return "a string"
}

// checkName refuses what cannot name a thing.
func checkName(field, value string) error {
	switch {
	case value == "":
		return invalid(field, "the field is required")
	case len(value) > maxName:
		return invalid(field, "the field is longer than %d bytes", maxName)
	case strings.TrimSpace(value) != value || strings.ContainsFunc(value, unicode.IsControl):
		return invalid(field, "the field must have no control characters, and no space at its ends")
	case strings.ContainsRune(value, utf8.RuneError):
		// This is what half a surrogate pair becomes: two such keys would be one.
		return invalid(field, "the field must be whole characters")
	}
	return nil
}

// checkPayload refuses what neither the queue nor the primary can keep as it is.
func checkPayload(payload json.RawMessage) error {
	if payload == nil {
		return invalid("payload", "the field is required")
	}
	if len(payload) > contracts.MaxCommandPayloadBytes {
		return &refused{
			status: http.StatusRequestEntityTooLarge,
			code:   string(contracts.CodePayloadTooLarge),
			field:  "payload",
			detail: answers[contracts.CodePayloadTooLarge].detail,
		}
	}
	depth, inString := 0, false
	for i := 0; i < len(payload); i++ {
		switch b := payload[i]; {
		case b == '"':
			inString = !inString
		case inString && b == '\\':
			if bytes.HasPrefix(payload[i:], []byte(`\u0000`)) {
				return invalid("payload", "the payload holds \\u0000, which cannot be stored")
			}
			i++
		case inString:
		case b == '{' || b == '[':
			if depth++; depth > maxDepth {
				return invalid("payload", "the payload is nested more than %d deep", maxDepth)
			}
		case b == '}' || b == ']':
			depth--
		case (b == 'e' || b == 'E') && i > 0 && isDigit(payload[i-1]):
			if exponent(payload[i+1:]) > maxExponent {
				return invalid("payload", "the payload holds a number with an exponent beyond %d", maxExponent)
			}
		}
	}
	return nil
}

func isDigit(b byte) bool { return b >= '0' && b <= '9' }

// exponent is the absolute value of the exponent that text begins with, as far as
// it matters.
func exponent(text []byte) int {
	if len(text) > 0 && (text[0] == '+' || text[0] == '-') {
		text = text[1:]
	}
	n := 0
	for _, b := range text {
		if !isDigit(b) || n > maxExponent {
			break
		}
		n = n*10 + int(b-'0')
	}
	return n
}

// checkKey refuses what cannot be the key of a read. Its parts are divided by
// slashes; one that is empty, or leads up, is another path on the way.
func checkKey(key string) error {
	if err := checkName("key", key); err != nil {
		return err
	}
	for part := range strings.SplitSeq(key, "/") {
		if part == "" || part == "." || part == ".." {
			return invalid("key", "the key has a part that is empty, or that is . or ..")
		}
	}
	return nil
}
