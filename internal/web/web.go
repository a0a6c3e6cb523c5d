// Package web is what the HTTP APIs have in common.
package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"unicode"

	"github.com/labstack/echo/v4"
)

// PlainJSON leaves <, > and & as they are: no browser takes these answers for a
// page.
type PlainJSON struct{ echo.DefaultJSONSerializer }

// Serialize writes a value as JSON.
func (PlainJSON) Serialize(c echo.Context, value any, indent string) error {
	enc := json.NewEncoder(c.Response())
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	return enc.Encode(value)
}

// Recover makes a panic of a handler an internal error. What identifies a request
// is a pair for the log.
func Recover(log *slog.Logger, identify func(echo.Context) slog.Attr) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) (err error) {
			defer func() {
				p := recover()
				if p == nil {
					return
				}
				if e, ok := p.(error); ok && errors.Is(e, http.ErrAbortHandler) {
					panic(p)
				}
				log.ErrorContext(c.Request().Context(), "handler panicked",
					"route", c.Path(), identify(c), "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				err = fmt.Errorf("panic: %v", p)
			}()
			return next(c)
		}
	}
}

// noRoute stands for requests that match no route, so that a scanner's paths do
// not become labels.
const noRoute = "none"

// Labels are the method and the route of a request, without what a client makes
// up.
func Labels(c echo.Context) (method, route string) {
	known := []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete}
	method, route = c.Request().Method, c.Path()
	if !slices.Contains(known, method) {
		method = "other"
	}
	if route == "" {
		route = noRoute
	}
	return method, route
}

// OnlyReads reports whether a method changes nothing.
func OnlyReads(method string) bool { return method == http.MethodGet || method == http.MethodHead }

// Printable cuts what a client sent to what an answer may repeat.
func Printable(s string) string {
	const most = 64
	runes := []rune(s)
	if len(runes) > most {
		runes = append(runes[:most], '…')
	}
	for i, r := range runes {
		if !unicode.IsPrint(r) {
			runes[i] = unicode.ReplacementChar
		}
	}
	return string(runes)
}
