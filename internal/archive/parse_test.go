package archive

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/tidwall/gjson"
)

// FuzzLegacyDay reads the day of any document without panicking: it is zero, or
// one that Postgres and the names of partitions can hold.
func FuzzLegacyDay(f *testing.F) {
	for _, body := range []string{
		`{"businessDay":"20261130"}`,
		`{"createdAt":"2026-09-06T00:30:00-03:00"}`,
		`{"createdAt":1795161600000}`,
		`{"createdAt":-9e99}`,
		`{"createdAt":"0001-01-01T00:00:00+23:59"}`,
		`{"createdAt":253402300799999}`,
		`{"businessDay":{},"createdAt":[`,
	} {
		f.Add(body)
	}
	zone, err := time.LoadLocation("Pacific/Easter")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body string) {
		day := legacyDay([]byte(body), zone)
		if s := day.String(); !day.IsZero() && (len(s) != 8 || len(monthOf(day)) != 6 || s < "00010101") {
			t.Errorf("%q is archived under %s", body, s)
		}
	})
}

// FuzzStubs reads the attachments of any document without panicking.
func FuzzStubs(f *testing.F) {
	f.Add(`{"_attachments":{"a":{"content_type":"text/plain","revpos":2,"digest":"md5-x","length":5,"stub":true}}}`)
	f.Add(`{"v":{"_attachments":{"a":{}}}}`)
	f.Add(`{"_attachments":{`)
	f.Fuzz(func(t *testing.T, body string) {
		if named := stubs([]byte(body)); len(named) > 0 && !gjson.Get(body, "_attachments").Exists() {
			t.Errorf("%q has no attachments, yet %v", body, named)
		}
	})
}

// FuzzPrintable makes anything fit for a column of type text, whole or cut.
func FuzzPrintable(f *testing.F) {
	f.Add("order:1")
	f.Add("nul\x00 \xff é" + strings.Repeat("é", idBytes))
	f.Fuzz(func(t *testing.T, id string) {
		p := printable(id)
		if !utf8.ValidString(p) || strings.ContainsAny(p, "\x00\n") || len(p) > 10*idBytes {
			t.Errorf("%q is shown as %q", id, p)
		}
	})
}
