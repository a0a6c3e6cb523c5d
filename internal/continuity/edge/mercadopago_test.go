package edge

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// FuzzMercadoPago: what is not signed with the secret is never authentic, and no
// body breaks anything.
func FuzzMercadoPago(f *testing.F) {
	const secret = "secret-of-the-tests"
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte("id:123;request-id:r;ts:1;"))
	good := "ts=1,v1=" + hex.EncodeToString(mac.Sum(nil))
	f.Add(good, "r", "123", []byte(`{"type":"payment","data":{"id":123,"status":"approved"}}`))
	f.Add("ts=,v1=", "", "", []byte(`{"data":{"id":"1","total_paid_amount":1e400}}`))
	f.Add("v1=00,ts=1,ts=2", "r;ts:1", "123;request-id:r", []byte(`{"data":[]}`))
	f.Fuzz(func(t *testing.T, signature, requestID, id string, body []byte) {
		m := NewMercadoPago(MercadoPagoOptions{Secret: secret})
		header := http.Header{"X-Signature": {signature}, "X-Request-Id": {requestID}}
		signed := strings.EqualFold(id, "123") && requestID == "r" && strings.Contains(strings.ToLower(signature), good[len("ts=1,v1="):])
		if m.authentic(header, id) && !signed {
			t.Errorf("%q of %q and %q is taken for signed", signature, id, requestID)
		}
		var n notification
		_ = json.Unmarshal(body, &n)
	})
}
