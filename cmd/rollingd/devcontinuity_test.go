package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestOutage kills the primary of a server for development, sells through the
// edge meanwhile, brings it back, and has the books checked.
func TestOutage(t *testing.T) {
	t.Parallel()
	data := filepath.Join(reachable(t), "data")
	p := start(t, "dev --continuity --listen 127.0.0.1:0 --data "+data)
	url, token := accessOf(t, p.await(t, "export "))
	line := p.await(t, "export EDGE=")
	edge, edgeToken := valueOf(t, line, "EDGE"), valueOf(t, line, "EDGE_TOKEN")
	line = p.await(t, "export "+databaseVariable)
	books := []string{databaseVariable + "=" + valueOf(t, line, databaseVariable), hostedVariable + "=" + valueOf(t, line, hostedVariable)}
	control := strings.TrimSuffix(regexp.MustCompile(`http://\S+/kill`).FindString(p.await(t, "/kill")), "/kill")

	sold := 0
	sell := func() (applied string) {
		t.Helper()
		sold++
		id := fmt.Sprintf("order-%d", sold)
		body := fmt.Sprintf(`{"idempotencyKey":%q,"commandType":"order.create","aggregateType":"order","aggregateId":%q,`+
			`"payload":{"companyId":"demo","restaurantId":"centro","total":1990}}`, id, id)
		until(t, "an order is accepted", func() bool {
			var answer struct{ Applied string }
			if status := send(t, http.MethodPost, edge+"/v1/commands", edgeToken, body, &answer); status == 200 || status == 202 {
				applied = answer.Applied
				return true
			}
			return false
		})
		return applied
	}
	direct := func() bool {
		var state struct{ Direct bool }
		return send(t, http.MethodGet, url+"/admin/continuity", token, "", &state) == 200 && state.Direct
	}
	until(t, "direct writes are open", direct)
	// A machine that is busy is an outage, too.
	until(t, "orders go to the primary", func() bool { return sell() == "primary" })
	if status := send(t, http.MethodPost, control+"/kill", "", "", nil); status != 200 {
		t.Fatalf("kill: %d", status)
	}
	until(t, "orders are queued", func() bool { return sell() == "queued" })
	sell()
	if status := send(t, http.MethodPost, control+"/start", "", "", nil); status != 200 {
		t.Fatalf("start: %d", status)
	}
	until(t, "direct writes are open again", direct)
	until(t, "the edge goes to the primary again", func() bool { return sell() == "primary" })

	verify := start(t, "verify-history --settled", books...)
	if code := verify.end(t); code != exitOK || !strings.Contains(verify.out.String(), "Every promise was kept.") {
		t.Errorf("exit code %d:\n%s%s", code, verify.out.String(), verify.text())
	}
	p.signal(t, syscall.SIGKILL)
	p.end(t)
	expectNothingLeft(t, data)
}

func valueOf(t *testing.T, line, name string) string {
	t.Helper()
	found := regexp.MustCompile(`\b` + name + `='?([^ ']+)`).FindStringSubmatch(line)
	if found == nil {
		t.Fatalf("%q lacks %s", line, name)
	}
	return found[1]
}

// send makes a request and returns the status, 0 if there was no answer.
func send(t *testing.T, method, url, token, body string, into any) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	var answer bytes.Buffer
	if _, err := answer.ReadFrom(res.Body); err != nil {
		return 0
	}
	if into != nil {
		_ = json.Unmarshal(answer.Bytes(), into) // Of an error, nothing fits.
	}
	return res.StatusCode
}

// until looks again until there is what is waited for.
func until(t *testing.T, what string, met func() bool) {
	t.Helper()
	deadline := time.NewTimer(90 * time.Second)
	defer deadline.Stop()
	poll := time.NewTicker(100 * time.Millisecond)
	defer poll.Stop()
	for !met() {
		select {
		case <-deadline.C:
			t.Fatal("waited in vain: ", what)
		case <-poll.C:
		}
	}
}
