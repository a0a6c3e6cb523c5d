package edge

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
)

// noRoute stands for requests that match no route, so that a scanner's paths do
// not become labels.
const noRoute = "none"

const commandIDKey = "command_id"

// commandID is the id that a request's command has, or would have.
func commandID(c echo.Context) uuid.UUID {
	id, _ := c.Get(commandIDKey).(uuid.UUID)
	return id
}

// setCommandID changes it, in the answer, too.
func setCommandID(c echo.Context, id uuid.UUID) {
	c.Set(commandIDKey, id)
	c.Response().Header().Set(headerCommandID, id.String())
}

// observe gives every request a command id, or takes the caller's, counts it and
// logs it: by its route, never with its query or its headers. What only reads is
// logged at debug.
func (e *Edge) observe(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		began := time.Now()
		id, err := uuid.Parse(c.Request().Header.Get(headerCommandID))
		if err != nil || id == uuid.Nil {
			id = uuid.New()
		}
		setCommandID(c, id)
		if err := next(c); err != nil {
			c.Error(err)
		}
		elapsed, status := time.Since(began), c.Response().Status
		method, route := c.Request().Method, c.Path()
		if route == "" {
			route = noRoute
		}
		e.metrics.requests.WithLabelValues(knownMethod(method), route, strconv.Itoa(status)).Inc()
		e.metrics.duration.WithLabelValues(knownMethod(method), route).Observe(elapsed.Seconds())
		level := slog.LevelInfo
		if method == http.MethodGet || method == http.MethodHead {
			level = slog.LevelDebug
		}
		e.log.Log(c.Request().Context(), level, "request", "method", method, "route", route, "status", status,
			"caller", callerOf(c), "command_id", commandID(c), "elapsed", elapsed)
		return nil
	}
}

// knownMethod keeps what a client makes up out of the labels.
func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost:
		return method
	}
	return "other"
}

// recoverPanic makes a panic of a handler an internal error.
func (e *Edge) recoverPanic(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if e, ok := p.(error); ok && errors.Is(e, http.ErrAbortHandler) {
				panic(p)
			}
			e.log.ErrorContext(c.Request().Context(), "handler panicked",
				"route", c.Path(), "command_id", commandID(c), "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}()
		return next(c)
	}
}

// plainJSON leaves <, > and & as they are: programs read these answers, and no
// browser takes them for a page.
type plainJSON struct{ echo.DefaultJSONSerializer }

// Serialize writes a value as JSON.
func (plainJSON) Serialize(c echo.Context, value any, indent string) error {
	enc := json.NewEncoder(c.Response())
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	return enc.Encode(value)
}
