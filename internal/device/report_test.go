package device

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/daydb"
)

// sendReport has a till of north report, and returns the answer.
func (s *shop) sendReport(method, token, body string) (status int, answer map[string]any) {
	s.t.Helper()
	req, err := http.NewRequest(method, s.url+ReportPath, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		s.t.Fatalf("%d %s: %v", res.StatusCode, raw, err)
	}
	return res.StatusCode, answer
}

// held is what is known to be held of a day of north, by device.
func (s *shop) held(day string) map[string]int64 {
	s.t.Helper()
	d, err := daydb.Load(s.t.Context(), s.pool, s.db(north, "daily_"+day))
	if err != nil {
		s.t.Fatal(err)
	}
	all, err := daydb.UnsyncedOf(s.t.Context(), s.pool, []int64{d.ID}, time.Hour)
	if err != nil {
		s.t.Fatal(err)
	}
	held := make(map[string]int64)
	for _, u := range all[d.ID] {
		held[u.DeviceID] = u.Documents
	}
	return held
}

func TestReport(t *testing.T) {
	t.Parallel()
	s := newShop(t, shopOptions{})
	till, bar, foreign := s.token(north, "till-1"), s.token(north, "bar"), s.token(south, "till-1")
	send := func(token, body string, want int) map[string]any {
		t.Helper()
		status, answer := s.sendReport(http.MethodPut, token, body)
		if status != want {
			t.Fatalf("%s was answered %d %v", body, status, answer)
		}
		return answer
	}
	send(till, `{"sequence": 1, "unsynced": {"`+draining+`": 3, "`+today+`": 1}}`, http.StatusOK)
	send(bar, `{"sequence": 8, "unsynced": {"`+draining+`": 2}}`, http.StatusOK)
	send(foreign, `{"sequence": 1, "unsynced": {"`+draining+`": 9}}`, http.StatusOK)
	if held := s.held(draining); held["till-1"] != 3 || held["bar"] != 2 || len(held) != 2 {
		t.Errorf("held: %v", held)
	}

	// A report that comes late says nothing, and is told how far the count is.
	late := send(till, `{"sequence": 1, "unsynced": {}}`, http.StatusConflict)
	if late["code"] != refusedStale || late["sequence"] != 1.0 || s.held(draining)["till-1"] != 3 {
		t.Errorf("a late report: %v, held %v", late, s.held(draining))
	}
	send(till, `{"sequence": 2, "unsynced": {"`+today+`": 1, "`+draining+`": 0}}`, http.StatusOK)
	if held := s.held(draining); held["till-1"] != 0 || held["bar"] != 2 {
		t.Errorf("held after a delivery: %v", held)
	}

	for name, body := range map[string]string{
		"nothing":           ``,
		"not JSON":          `{`,
		"a list":            `[]`,
		"no sequence":       `{"unsynced": {}}`,
		"sequence 0":        `{"sequence": 0, "unsynced": {}}`,
		"no day":            `{"sequence": 9, "unsynced": {"": 1}}`,
		"not a day":         `{"sequence": 9, "unsynced": {"20260230": 1}}`,
		"less than nothing": `{"sequence": 9, "unsynced": {"20261130": -1}}`,
		"something else":    `{"sequence": 9, "unsynced": {}, "device": "bar"}`,
		"two":               `{"sequence": 9, "unsynced": {}} {}`,
		"too much":          `{"sequence": 9, "unsynced": {}` + strings.Repeat(" ", maxReport) + `}`,
	} {
		if answer := send(bar, body, http.StatusBadRequest); answer["code"] != refusedReport {
			t.Errorf("%s: %v", name, answer)
		}
	}
	if status, answer := s.sendReport(http.MethodGet, bar, ""); status != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d %v", status, answer)
	}
	if status, answer := s.sendReport(http.MethodPut, "", `{}`); status != http.StatusUnauthorized {
		t.Errorf("without a token: %d %v", status, answer)
	}
	if held := s.held(draining); held["bar"] != 2 {
		t.Errorf("held after what was refused: %v", held)
	}
}

// TestReportsEndAtTheirLimit, too.
func TestReportsEndAtTheirLimit(t *testing.T) {
	t.Parallel()
	s := newShop(t, shopOptions{limit: time.Second})
	conn := s.dial("PUT "+ReportPath+" HTTP/1.1\r\nContent-Length: 100", s.token(north, "till-1"))
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || res.StatusCode != http.StatusRequestTimeout {
		t.Errorf("%+v, %v; want 408", res, err)
	}
}
