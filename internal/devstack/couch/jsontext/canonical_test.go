package jsontext

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestCanonical(t *testing.T) {
	for in, want := range map[string]string{
		` { "a" : 1 , "b" : [ ] } `:        `{"a":1,"b":[]}`,
		`{"b":1,"a":{"y":1,"x":2}}`:        `{"b":1,"a":{"y":1,"x":2}}`,
		`{"a":1,"a":2}`:                    `{"a":2}`,
		`{"a":1,"b":2,"a":3}`:              `{"b":2,"a":3}`,
		`{"a":{"k":1,"k":[1,{"z":0}]}}`:    `{"a":{"k":[1,{"z":0}]}}`,
		`{"a":1,"\u0061":2,"b":3,"c":4}`:   `{"a":2,"b":3,"c":4}`,
		`[1.0,1,1.10,1e2,1E+2,1e22,-0]`:    `[1.0,1,1.1,100.0,100.0,1e+22,0]`,
		`[-0.0,1e-400,1e-7,0.000001,1e20]`: `[0.0,0.0,1e-7,0.000001,100000000000000000000.0]`,
		`0.1234567890123456789012345`:      `0.12345678901234568`,
		`9007199254740993`:                 `9007199254740993`,
		`123456789012345678901234567890`:   `123456789012345678901234567890`,
		`"a\u0000b\u001f\/\u2028<>&"`:      `"a\u0000b\u001F/` + "\u2028" + `<>&"`,
		`"\ud83d\ude00\uffff\b\f\n\r\t\""`: `"` + "\U0001F600\uffff" + `\b\f\n\r\t\""`,
		`true`:                             `true`,
		`""`:                               `""`,
	} {
		got, err := Canonical(nil, []byte(in))
		if err != nil || string(got) != want {
			t.Errorf("Canonical(%s) = %s, %v; want %s", in, got, err, want)
		}
	}
}

func TestCanonicalRefuses(t *testing.T) {
	for _, in := range []string{
		"", " ", "{", "[", "{]", "[}", `{"a"}`, `{"a":}`, `{"a":1,}`, "[1,]", "[,1]", `{,"a":1}`, "1 2", "{} x", "nul", "NaN", "Infinity",
		"01", "1.", ".5", "-", "1e", "1e+", "+1", "1e400", "-1e400", `"`, `"\x"`, `"\u12"`, `"\ud800"`, `"\udc00"`, `"\ud800\u0041"`, `"\ud800x"`,
		"\"\x01\"", "\"\xff\"", "\"\xed\xa0\x80\"", "\ufeff{}", "{\"a\":1}\x00", "'a'",
	} {
		if got, err := Canonical(nil, []byte(in)); err == nil {
			t.Errorf("Canonical(%q) = %s, want an error", in, got)
		}
	}
}

func TestCanonicalManyKeys(t *testing.T) {
	var in, want strings.Builder
	in.WriteString(`{"k0":"first"`)
	want.WriteString(`{`)
	for i := 1; i < 100; i++ {
		in.WriteString(`,"k` + strings.Repeat("x", i) + `":` + "1")
	}
	in.WriteString(`,"k0":"last"}`)
	for i := 1; i < 100; i++ {
		want.WriteString(`"k` + strings.Repeat("x", i) + `":` + "1,")
	}
	want.WriteString(`"k0":"last"}`)
	got, err := Canonical(nil, []byte(in.String()))
	if err != nil || string(got) != want.String() {
		t.Fatalf("got %s, %v", got, err)
	}
}

func TestDeepNesting(t *testing.T) {
	const depth = 20_000
	deep := `{"a":` + strings.Repeat(`[`, depth) + `{"b":1}` + strings.Repeat(`]`, depth) + `,"z":2}`
	got, err := Canonical(nil, []byte(deep))
	if err != nil || string(got) != deep {
		t.Fatalf("Canonical of %d levels: %v", depth, err)
	}
	if z := Get(got, "z"); string(z) != "2" {
		t.Fatalf("member behind the nesting = %s", z)
	}
}

func TestWalk(t *testing.T) {
	obj := []byte(`{"a":[1,"x,]}",{"b":{}}],"q\"\u0000":{"c":[]},"n":null,"s":"t"}`)
	var keys, values []string
	for m := range Members(obj) {
		keys = append(keys, Unquote(m.Key))
		values = append(values, string(m.Value))
	}
	if got := strings.Join(keys, "|"); got != "a|q\"\x00|n|s" {
		t.Errorf("keys = %q", got)
	}
	if got := strings.Join(values, "|"); got != `[1,"x,]}",{"b":{}}]|{"c":[]}|null|"t"` {
		t.Errorf("values = %q", got)
	}
	var elements []string
	for e := range Elements([]byte(values[0])) {
		elements = append(elements, string(e))
	}
	if len(elements) != 3 || elements[1] != `"x,]}"` || elements[2] != `{"b":{}}` {
		t.Errorf("elements = %q", elements)
	}
	if Get(obj, "missing") != nil {
		t.Error("a missing member has a value")
	}
	if got := string(AppendString(nil, "a\"\\\x00\n\x1f<é")); got != `"a\"\\\u0000\n\u001F<é"` {
		t.Errorf("AppendString = %s", got)
	}
}

// FuzzCanonical holds the scanner against encoding/json where both claim to
// understand the text, and checks that the normal form is its own normal form.
func FuzzCanonical(f *testing.F) {
	for _, seed := range []string{`{"a":[1,2.50,"\u00e9\ud83d\ude00"],"a":null}`, `[[[{}]]]`, `-0.0`, `"\ud800"`, ` 1e5 `} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := Canonical(nil, in)
		if err != nil {
			return
		}
		if !json.Valid(in) && strings.Count(string(in), "[")+strings.Count(string(in), "{") < 10_000 {
			t.Fatalf("accepted %q", in)
		}
		again, err := Canonical(nil, got)
		if err != nil || string(again) != string(got) {
			t.Fatalf("Canonical(%q) = %q, and of that %q, %v", in, got, again, err)
		}
		for m := range Members(got) {
			if !json.Valid(m.Value) {
				t.Fatalf("member %q of %q", m.Value, got)
			}
		}
		for e := range Elements(got) {
			if !json.Valid(e) {
				t.Fatalf("element %q of %q", e, got)
			}
		}
		if IsString(got) {
			if s := string(AppendString(nil, Unquote(got))); s != string(got) {
				t.Fatalf("string %q comes back as %q", got, s)
			}
		}
	})
}
