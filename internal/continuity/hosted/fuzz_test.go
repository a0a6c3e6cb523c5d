package hosted

import (
	"errors"
	"net/http"
	"testing"

	"github.com/rollingd/rollingd/internal/continuity"
)

// FuzzAnsweredError: whatever a gateway answers with, the error means one thing, and repeats nothing of it but our own
// functions' details.
func FuzzAnsweredError(f *testing.F) {
	for _, body := range []string{
		"", "null", "[]", `""`, "<html>", `{"code": "RC001", "details": "7"}`, `{"code": "RC001", "details": null}`,
		`{"code": "57014"}`, `{"code": "PGRST202"}`, `{"code": 7}`, `{"message": "m"}`, `{"code": "RC008", "details": {}}`,
	} {
		f.Add(http.StatusInternalServerError, []byte(body))
	}
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		err := answeredError("f", status, body)
		stale := (*continuity.StaleEpochError)(nil)
		if n := countSentinels(err); (n == 1) == errors.As(err, &stale) || n > 1 {
			t.Errorf("%d %q means %d things: %v", status, body, n, err)
		}
	})
}

// FuzzKeyRole: a key is never taken for a service key by accident.
func FuzzKeyRole(f *testing.F) {
	for _, key := range []string{"", "sb_secret_a", "sb_publishable_a", "a.b.c", "e30.e30.e30", "..", "a.eyJyb2xlIjoiYW5vbiJ9.c"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		p, err := NewPostgREST("https://x.supabase.co", key)
		if err != nil {
			return
		}
		if role := keyRole(key); role != roleSecret && role != roleService {
			t.Errorf("%q is of role %q", key, role)
		}
		p.Close()
	})
}
