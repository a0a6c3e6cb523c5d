package api

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/rollingd/rollingd/internal/pg"
)

// TestCursorWithoutPostgres: a cursor that cannot be looked up is not a wrong one.
func TestCursorWithoutPostgres(t *testing.T) {
	t.Parallel()
	pool, err := pg.Open(t.Context(), "postgres://127.0.0.1:1/nobody", pg.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	a := &API{Options: Options{Env: "prod", Pool: pool}}
	c := echo.New().NewContext(httptest.NewRequest(http.MethodGet, "/", nil), httptest.NewRecorder())
	_, err = a.readCursor(c, base64.RawURLEncoding.EncodeToString([]byte("prod_acme_centro_daily_20261101")))
	if p := problemOf(err); p.Code != "postgres_unavailable" {
		t.Errorf("the answer is %+v", p)
	}
}
