package edge

import (
	"log/slog"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/rollingd/rollingd/internal/web"
)

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

// identify is a request's id for the log.
func identify(c echo.Context) slog.Attr { return slog.String("command_id", commandID(c).String()) }

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
		method, route := web.Labels(c)
		e.metrics.requests.WithLabelValues(method, route, strconv.Itoa(status)).Inc()
		e.metrics.duration.WithLabelValues(method, route).Observe(elapsed.Seconds())
		level := slog.LevelInfo
		if web.OnlyReads(method) {
			level = slog.LevelDebug
		}
		e.log.Log(c.Request().Context(), level, "request", "method", method, "route", route, "status", status,
			"caller", callerOf(c), "command_id", commandID(c), "elapsed", elapsed)
		return nil
	}
}
