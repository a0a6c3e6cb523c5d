package primary

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rollingd/rollingd/internal/continuity"
)

// FuzzReadCommand reads anything, and takes nothing that it would not give back.
func FuzzReadCommand(f *testing.F) {
	f.Add(createBody, "00000000-0000-4000-8000-000000000001", "2")
	f.Add(cancelBody, "", "-1")
	f.Add(`{"commandId":"00000000-0000-4000-8000-000000000001","occurredAt":"2026-11-30T00:00:00Z"}`, "00000000-0000-4000-8000-000000000001", "0")
	f.Fuzz(func(t *testing.T, body, id, epoch string) {
		req := httptest.NewRequestWithContext(t.Context(), "POST", "/internal/commands", strings.NewReader(body))
		req.Header.Set(HeaderCommandID, id)
		req.Header.Set(HeaderEpoch, epoch)
		c, e, err := readCommand(httptest.NewRecorder(), req)
		if err != nil {
			if !errors.Is(err, continuity.ErrInvalid) && !errors.Is(err, continuity.ErrPayloadTooLarge) {
				t.Errorf("another error: %v", err)
			}
			return
		}
		if e < 0 || e > maxEpoch || !strings.EqualFold(c.CommandID.String(), strings.Trim(strings.TrimPrefix(id, "urn:uuid:"), "{}")) && len(id) != 32 {
			t.Errorf("epoch %d, id %s of %q", e, c.CommandID, id)
		}
		if len(c.Payload) > 0 && !json.Valid(c.Payload) {
			t.Errorf("payload %q", c.Payload)
		}
	})
}

// FuzzAmount takes decimals alone, exactly as they were written.
func FuzzAmount(f *testing.F) {
	for _, seed := range []string{`1`, `"12.30"`, `-1`, `1e3`, `null`, `""`, `"01"`, `1.`, `"1,5"`, `999999999999999.999999`, `"NaN"`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var a amount
		if json.Unmarshal([]byte(text), &a) != nil || a == "" {
			return
		}
		if !decimal.MatchString(string(a)) || strings.Trim(strings.TrimSpace(text), `"`) != string(a) && !strings.Contains(text, `\`) {
			t.Errorf("%q of %q", a, text)
		}
	})
}
