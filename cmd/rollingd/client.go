package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rollingd/rollingd/internal/api"
)

const (
	urlVariable   = "ROLLINGD_URL"
	tokenVariable = "ROLLINGD_TOKEN"
	standardURL   = "http://127.0.0.1:8080"
)

// access is how a command reaches the administration API.
type access struct {
	url       string
	tokenFile string
	json      bool
}

// reach gives a command the flags of a client of the API.
func reach(cmd *cobra.Command) *access {
	var a access
	cmd.Flags().StringVar(&a.url, "url", "", "the server; default "+urlVariable+", else "+standardURL)
	cmd.Flags().StringVar(&a.tokenFile, "token-file", "", "file that holds the token; default "+tokenVariable)
	cmd.Flags().BoolVar(&a.json, "json", false, "print the answer as JSON")
	return &a
}

// client speaks to the administration API.
type client struct {
	base  string
	token string
	// shown is base for messages: a URL that was meant for CouchDB has a password.
	shown string
}

// connect does not connect yet; it finds out where and with what.
func (c *cli) connect(a *access) (*client, error) {
	base := a.url
	if base == "" {
		base = c.getenv(urlVariable)
	}
	if base == "" {
		base = standardURL
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, usagef("%s: want http://host:port", urlVariable)
	}
	token := c.getenv(tokenVariable)
	if a.tokenFile != "" {
		content, err := os.ReadFile(a.tokenFile)
		if err != nil {
			return nil, usagef("--token-file: %w", err)
		}
		token = string(content)
	}
	if token = strings.TrimSpace(token); token == "" {
		return nil, usagef("%s: want a token of the server's ROLLINGD_ADMIN_TOKENS; or name a file with --token-file", tokenVariable)
	}
	return &client{
		base:  strings.TrimSuffix(base, "/") + "/admin",
		token: token,
		shown: strings.TrimSuffix(u.Redacted(), "/") + "/admin",
	}, nil
}

// refusedError is an answer of the API that is a problem.
type refusedError struct{ problem api.Problem }

func (e *refusedError) Error() string { return e.problem.Detail }

// do sends a request and returns the body of a successful answer.
func (cl *client) do(ctx context.Context, method string, body any, segments ...string) ([]byte, error) {
	return cl.send(ctx, method, cl.base+join(segments), body)
}

// get is do with a query, whose empty values are left out.
func (cl *client) get(ctx context.Context, query map[string]string, segments ...string) ([]byte, error) {
	values := make(url.Values)
	for name, value := range query {
		if value != "" {
			values.Set(name, value)
		}
	}
	target := cl.base + join(segments)
	if len(values) > 0 {
		target += "?" + values.Encode()
	}
	return cl.send(ctx, http.MethodGet, target, nil)
}

func join(segments []string) string {
	var b strings.Builder
	for _, s := range segments {
		b.WriteString("/" + url.PathEscape(s))
	}
	return b.String()
}

func (cl *client) send(ctx context.Context, method, target string, body any) ([]byte, error) {
	var payload io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		payload = bytes.NewReader(encoded)
	}
	req, err := http.NewRequestWithContext(ctx, method, target, payload)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+cl.token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, cl.unreachable(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, cl.unreachable(err)
	}
	if res.StatusCode >= http.StatusBadRequest {
		var p api.Problem
		if json.Unmarshal(answer, &p) != nil || p.Code == "" {
			return nil, fmt.Errorf("%s answered %s, and not as rollingd does; is %s right?", cl.shown, res.Status, urlVariable)
		}
		return nil, &refusedError{problem: p}
	}
	return answer, nil
}

func (cl *client) unreachable(err error) error {
	var detail *url.Error
	if errors.As(err, &detail) {
		err = detail.Err
	}
	return fmt.Errorf("cannot reach %s: %w; is the server running? %s or --url names another", cl.shown, err, urlVariable)
}

// decode reads an answer of the API.
func decode(answer []byte, into any) error {
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("the answer of the server cannot be read: %w", err)
	}
	return nil
}

// printJSON prints an answer as it came, indented.
func (c *cli) printJSON(answer []byte) error {
	var b bytes.Buffer
	if err := json.Indent(&b, bytes.TrimSpace(answer), "", "  "); err != nil {
		return fmt.Errorf("the answer of the server cannot be read: %w", err)
	}
	b.WriteByte('\n')
	_, err := c.out.Write(b.Bytes())
	return err
}
