package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/web"
)

const (
	// maxBody bounds the body of a request.
	maxBody = 64 << 10
	// maxReason bounds a reason, in characters.
	maxReason = 500
)

// fields says where each field of a request's JSON object goes: a pointer to a
// pointer, which stays nil if the field is absent.
type fields map[string]any

// decode reads the body, one JSON object and nothing else. Names count exactly,
// and none may be unknown or there twice: what is misspelt would otherwise be
// what is left out.
func decode(c echo.Context, into fields) error {
	body, err := readBody(c)
	if err != nil {
		return err
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	mediaType, _, err := mime.ParseMediaType(c.Request().Header.Get(echo.HeaderContentType))
	if err != nil || mediaType != echo.MIMEApplicationJSON {
		return &refusal{
			status: http.StatusUnsupportedMediaType,
			code:   "unsupported_media_type",
			detail: "send the body as JSON, with \"Content-Type: application/json\"",
		}
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return invalid("invalid_json", "", "the body must be a JSON object")
	}
	seen := make(map[string]bool)
	for dec.More() {
		if err := decodeField(dec, into, seen); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return notJSON(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return invalid("invalid_json", "", "something follows the JSON object in the body")
	}
	return nil
}

func readBody(c echo.Context) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(c.Response(), c.Request().Body, maxBody))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return nil, &refusal{
			status: http.StatusRequestEntityTooLarge,
			code:   "body_too_large",
			detail: fmt.Sprintf("the body is larger than %d bytes", maxBody),
		}
	}
	if err != nil {
		return nil, invalid("unreadable_body", "", "the body ended early")
	}
	return body, nil
}

func decodeField(dec *json.Decoder, into fields, seen map[string]bool) error {
	t, err := dec.Token()
	if err != nil {
		return notJSON(err)
	}
	name, _ := t.(string)
	target, ok := into[name]
	if !ok {
		return invalid("unknown_field", web.Printable(name), "there is no field %q here; the fields are: %s", web.Printable(name), into.names())
	}
	if seen[name] {
		return invalid("duplicate_field", name, "the field is there twice")
	}
	seen[name] = true
	var raw json.RawMessage
	if err := dec.Decode(&raw); err != nil {
		return notJSON(err)
	}
	if string(raw) == "null" || json.Unmarshal(raw, target) != nil {
		return invalid("invalid_field", name, "the field must be %s", wanted(target))
	}
	return nil
}

func notJSON(err error) error {
	return invalid("invalid_json", "", "the body is not JSON: %v", err)
}

func wanted(target any) string {
	switch target.(type) {
	case **bool:
		return "true or false"
	case **int64:
		return "a whole number"
	}
	return "a string"
}

func (f fields) names() string {
	return listed(slices.Sorted(maps.Keys(f)))
}

func listed(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// query reads the parameters of the query, of which none may be unknown or
// there twice.
func query(c echo.Context, names ...string) (map[string]string, error) {
	values := make(map[string]string)
	for name, all := range c.QueryParams() {
		switch {
		case !slices.Contains(names, name):
			return nil, invalid("unknown_parameter", web.Printable(name), "there is no parameter %q here; the parameters are: %s", web.Printable(name), listed(names))
		case len(all) > 1:
			return nil, invalid("duplicate_parameter", name, "the parameter is there twice")
		}
		values[name] = all[0]
	}
	return values, nil
}

// limitOf reads a limit from 1 to most.
func limitOf(text string, standard, most int) (int, error) {
	if text == "" {
		return standard, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, invalid("invalid_limit", "limit", "limit must be a number from 1 to %d", most)
	}
	return n, nil
}

// checkID refuses an id that cannot name a company or a restaurant.
func checkID(field, id string) error {
	if !contracts.ValidID(id) {
		return invalid("invalid_id", field, "%s must be 1 to 64 of the characters a-z, 0-9 and -", field)
	}
	return nil
}

// dayOf reads a business day; empty is the zero day.
func dayOf(field, text string) (daydb.Day, error) {
	if text == "" {
		return daydb.Day{}, nil
	}
	day, err := daydb.ParseDay(text)
	if err != nil {
		return daydb.Day{}, invalid("invalid_day", field, "%s must be a calendar day as YYYYMMDD", field)
	}
	return day, nil
}

// reasonOf checks a reason that people will read.
func reasonOf(reason *string) (string, error) {
	if reason == nil || strings.TrimSpace(*reason) == "" {
		return "", invalid("reason_required", "reason", "say why, in the field reason")
	}
	text := strings.TrimSpace(*reason)
	if utf8.RuneCountInString(text) > maxReason {
		return "", invalid("invalid_reason", "reason", "the reason is longer than %d characters", maxReason)
	}
	if strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) && r != '\n' }) {
		return "", invalid("invalid_reason", "reason", "the reason holds a control character")
	}
	return text, nil
}

// optionalReason reads a body that may give a reason.
func optionalReason(c echo.Context) (string, error) {
	var given *string
	if err := decode(c, fields{"reason": &given}); err != nil || given == nil {
		return "", err
	}
	return reasonOf(given)
}

// requiredReason reads a body that gives a reason.
func requiredReason(c echo.Context) (string, error) {
	var given *string
	if err := decode(c, fields{"reason": &given}); err != nil {
		return "", err
	}
	return reasonOf(given)
}

func orZero[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
