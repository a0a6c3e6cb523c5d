package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// counter is a transport that counts requests by database.
type counter struct {
	http.RoundTripper
	mu   sync.Mutex
	byDB map[string]int
}

func newCounter() *counter {
	return &counter{RoundTripper: newTransport(), byDB: make(map[string]int)}
}

// RoundTrip makes counter an http.RoundTripper.
func (c *counter) RoundTrip(req *http.Request) (*http.Response, error) {
	db, _, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
	c.mu.Lock()
	c.byDB[db]++
	c.mu.Unlock()
	return c.RoundTripper.RoundTrip(req)
}

// take returns what was counted since the last call.
func (c *counter) take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	counted := c.byDB
	c.byDB = make(map[string]int)
	return counted
}

func total(counted map[string]int) int {
	n := 0
	for _, requests := range counted {
		n += requests
	}
	return n
}

// newTransport is like the product's own.
func newTransport() *http.Transport {
	const idle = 64
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost, t.MaxIdleConns = idle, idle
	t.DisableCompression = true
	return t
}

// bare sends requests with nothing around them.
type bare struct {
	base string
	http *http.Client
}

func (s *stores) bare() *bare {
	return &bare{base: s.couchURL, http: &http.Client{Transport: newTransport(), Timeout: time.Minute}}
}

func (c *bare) close() { c.http.CloseIdleConnections() }

// do sends a request and reads the answer to its end. Body is encoded to JSON.
func (c *bare) do(ctx context.Context, method, path string, body any) ([]byte, error) {
	var payload io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		payload = bytes.NewReader(encoded)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+"/"+path, payload)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return answerOf(c.http, req)
}

// answerOf sends a request and reads the answer, which is none of an error, to
// its end.
func answerOf(client *http.Client, req *http.Request) ([]byte, error) {
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("%s %s: %s %s", req.Method, req.URL.Path, res.Status, bytes.TrimSpace(answer))
	}
	return answer, err
}

func withoutUser(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return address // The client of package couch has parsed it before.
	}
	u.User = nil
	return u.String()
}

func escape(db string) string { return url.PathEscape(db) }
