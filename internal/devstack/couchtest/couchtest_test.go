package couchtest

import (
	"net/http"
	"regexp"
	"testing"
)

func status(t *testing.T, method, address string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	return res.StatusCode
}

// TestCleanUpKeepsToItsEnvironment runs against either CouchDB, since the real one is only cleaned as thoroughly as it
// understands the range of names.
func TestCleanUpKeepsToItsEnvironment(t *testing.T) {
	t.Parallel()
	base := New(t)
	env, neighbour := Env(t), Env(t)
	longer := env + "a_c1_r1_core"
	defer status(t, http.MethodDelete, base+"/"+longer)
	expected := map[string]int{
		env + "_c1_r1_core":           http.StatusNotFound,
		env + "_c1_r1_daily_20261130": http.StatusNotFound,
		"tables-" + env:               http.StatusNotFound,
		longer:                        http.StatusOK,
		neighbour + "_c1_r1_core":     http.StatusOK,
	}
	for name := range expected {
		if got := status(t, http.MethodPut, base+"/"+name); got != http.StatusCreated {
			t.Fatalf("PUT %s: %d", name, got)
		}
	}
	if err := deleteDatabases(t.Context(), base, env); err != nil {
		t.Fatal(err)
	}
	for name, want := range expected {
		if got := status(t, http.MethodGet, base+"/"+name); got != want {
			t.Errorf("GET %s after the clean-up: %d, want %d", name, got, want)
		}
	}
}

func TestEnvIsAValidEnvironment(t *testing.T) {
	t.Parallel()
	valid := regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	if a, b := Env(t), Env(t); !valid.MatchString(a) || !valid.MatchString(b) || a == b {
		t.Errorf("environments %q and %q", a, b)
	}
}
