package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
)

// TestDeadListsAll: those that a person has decided about stay dead, so a list
// that ends with the oldest thousand would one day show no new one.
func TestDeadListsAll(t *testing.T) {
	t.Parallel()
	const dead = 2100
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
		after, _ := strconv.Atoi(r.URL.Query().Get("after"))
		var page []string
		for n := after + 1; n <= min(after+limit, dead); n++ {
			page = append(page, fmt.Sprintf(`{"commandId":"00000000-0000-4000-8000-%012d","sequence":%d,"commandType":"order.create","lastError":"out of luck"}`, n, n))
		}
		fmt.Fprintf(w, `{"commands":[%s]}`, strings.Join(page, ","))
	}))
	defer server.Close()
	env := map[string]string{urlVariable: server.URL, tokenVariable: "0123456789abcdef"}
	for _, flag := range []string{"", "--json"} {
		code, out, errOut := call(t.Context(), env, strings.Fields("continuity dead "+flag)...)
		if n := strings.Count(out, "out of luck"); code != exitOK || n != dead {
			t.Errorf("%q: exit code %d, %d of %d commands\n%s", flag, code, n, dead, errOut)
		}
	}
}

// TestContinuitySaysWhyNothingIsWritten: under the policy strict neither the mode nor
// the reason of the last flip tells.
func TestContinuitySaysWhyNothingIsWritten(t *testing.T) {
	t.Parallel()
	const state = `{"phase":6,"policy":"strict","direct":%t,"primary":{"epoch":3,"mode":"DIRECT","closed":%t,"seenEpoch":3,"leased":%t,"confirmedAt":"2026-11-30T12:00:03Z","reason":"the cutover"}}`
	for want, answer := range map[string]string{
		"direct writes are taken (the cutover).":                                                       fmt.Sprintf(state, true, false, true),
		"direct writes are refused (the cutover).":                                                     fmt.Sprintf(state, false, true, false),
		"direct writes are refused (the last lease began at 2026-11-30T12:00:03Z: the hosted database": fmt.Sprintf(state, false, false, false),
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) }))
		env := map[string]string{urlVariable: server.URL, tokenVariable: "0123456789abcdef"}
		code, out, errOut := call(t.Context(), env, "continuity")
		server.Close()
		if code != exitOK || !strings.Contains(out, want) {
			t.Errorf("exit code %d, want %q in\n%s%s", code, want, out, errOut)
		}
	}
}
