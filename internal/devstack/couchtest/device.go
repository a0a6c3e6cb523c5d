package couchtest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"testing"
)

// Device returns the URL without credentials, and the headers with which the
// device proxy speaks for a device of this role, so that CouchDB's own checks
// apply to it.
func Device(t testing.TB, couchURL, role string) (base string, headers http.Header) {
	t.Helper()
	u, err := url.Parse(couchURL)
	if err != nil {
		t.Fatalf("couchtest: %v", err)
	}
	u.User = nil
	const name = "device"
	mac := hmac.New(sha256.New, []byte(ProxySecret))
	mac.Write([]byte(name))
	return u.String(), http.Header{
		"X-Auth-Couchdb-Username": {name},
		"X-Auth-Couchdb-Roles":    {role},
		"X-Auth-Couchdb-Token":    {hex.EncodeToString(mac.Sum(nil))},
	}
}
