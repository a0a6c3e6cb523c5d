package couch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
)

// Config returns a setting of the node, and the empty string for one that is
// not set.
func (c *Client) Config(ctx context.Context, section, key string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	value, err := c.kivik.ConfigValue(ctx, "_local", section, key)
	err = fromKivik(err)
	if errors.Is(err, ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("setting %s/%s: %w", section, key, err)
	}
	return value, nil
}

// Welcome is what the server says of itself.
type Welcome struct {
	Version string `json:"version"`
	Vendor  struct {
		Name string `json:"name"`
	} `json:"vendor"`
}

// Welcome returns what the server says of itself.
func (c *Client) Welcome(ctx context.Context) (Welcome, error) {
	var w Welcome
	err := c.doJSON(ctx, http.MethodGet, "/", nil, &w)
	return w, err
}
