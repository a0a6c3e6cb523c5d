package socket

import (
	"encoding/json"
	"testing"

	"github.com/rollingd/rollingd/contracts"
)

func TestSince(t *testing.T) {
	on := contracts.DeviceFlags{RollingDbEnabled: true}
	day := func(suffix string, generation int64, at string) *contracts.DayManifest {
		return &contracts.DayManifest{CurrentDayDB: &suffix, Generation: generation, UpdatedAt: at}
	}
	for _, c := range []struct {
		name     string
		old, now State
		want     []string
	}{
		{"nothing", State{Flags: on}, State{Flags: on}, nil},
		{"flags alone", State{}, State{Flags: on}, []string{"flags"}},
		{"the first manifest", State{}, State{Manifest: day("a", 1, "")}, []string{"manifest"}},
		{"the same manifest, read anew", State{Manifest: day("a", 1, "")}, State{Manifest: day("a", 1, "")}, nil},
		{"another time alone", State{Manifest: day("a", 1, "x")}, State{Manifest: day("a", 1, "y")}, nil},
		{"another day", State{Manifest: day("a", 1, "")}, State{Manifest: day("b", 1, "")}, []string{"manifest"}},
		{"another generation", State{Manifest: day("a", 1, "")}, State{Manifest: day("a", 2, "")}, []string{"manifest"}},
		{"no manifest any more", State{Manifest: day("a", 1, "")}, State{}, []string{"manifest"}},
		{"both", State{}, State{Flags: on, Manifest: day("a", 1, "")}, []string{"flags", "manifest"}},
	} {
		delta := c.now.since(c.old)
		if len(delta) != len(c.want) {
			t.Errorf("%s: %v", c.name, delta)
		}
		for _, key := range c.want {
			if _, ok := delta[key]; !ok {
				t.Errorf("%s: no %s in %v", c.name, key, delta)
			}
		}
	}
	text, err := json.Marshal(State{}.since(State{Manifest: day("a", 1, "")}))
	if err != nil || string(text) != `{"manifest":null}` {
		t.Errorf("a manifest that went: %s, %v", text, err)
	}
}
