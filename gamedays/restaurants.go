package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

const (
	company = "acme"
	zone    = "America/Santiago"
)

// restaurants are those of the company; each has day databases of its own.
var restaurants = []string{"north", "south"}

// restaurantOf is where an order or an entry is made: the same one whenever it is
// sent.
func restaurantOf(id string) string { return restaurants[int(id[len(id)-1])%len(restaurants)] }

// openRestaurants does what an operator does for a company that is to have day
// databases. Its ACTIVE day is yesterday's, so that a night can come.
func (s *site) openRestaurants(ctx context.Context) error {
	for _, name := range restaurants {
		err := s.admin(ctx, http.MethodPut, "/admin/restaurants/"+company+"/"+name, map[string]any{"timezone": zone}, nil)
		if err != nil {
			return err
		}
	}
	if err := s.admin(ctx, http.MethodPut, "/admin/flags/"+company, map[string]any{"rollingDb": true}, nil); err != nil {
		return err
	}
	var yesterday string
	// Business days begin at five.
	err := s.own.QueryRow(ctx, `select to_char((now() at time zone $1) - interval '29 hours', 'YYYYMMDD')`, zone).Scan(&yesterday)
	if err != nil {
		return err
	}
	return s.rotate(ctx, map[string]any{"wait": true, "businessDay": yesterday})
}

// night has the restaurants begin today: what is sold from now on belongs there,
// and what was sold before stays in yesterday's database.
func (s *site) night(ctx context.Context) error {
	return s.rotate(ctx, map[string]any{"wait": true})
}

func (s *site) rotate(ctx context.Context, request map[string]any) error {
	var run struct {
		State    string           `json:"state"`
		Failures []map[string]any `json:"failures"`
	}
	if err := s.admin(ctx, http.MethodPost, "/admin/crons/rolling-db-rotate/run", request, &run); err != nil {
		return err
	}
	if run.State != "succeeded" {
		return fmt.Errorf("rotate: %s: %v", run.State, run.Failures)
	}
	return nil
}

// admin asks the primary's admin API. Out may be nil.
func (s *site) admin(ctx context.Context, method, path string, in, out any) error {
	return ask(ctx, method, "http://"+s.serve.addr+path, map[string]string{"Authorization": "Bearer " + s.adminToken}, in, out)
}

// ask sends JSON to what is to answer with a success, and decodes the answer. In and
// out may be nil.
func ask(ctx context.Context, method, url string, headers map[string]string, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	for name, value := range headers {
		req.Header.Set(name, value)
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode >= http.StatusMultipleChoices {
		err = errors.New(res.Status + " " + string(text))
	}
	if err == nil && out != nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, req.URL.Path, err)
	}
	return nil
}
