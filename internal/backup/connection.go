package backup

import (
	"context"
	"fmt"
	"net/url"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// connect opens a session without the time limits of ordinary work: a large table takes long to count.
func connect(ctx context.Context, address string) (*pgx.Conn, error) {
	// The pool's parser takes its own settings out of the address, which a server would refuse.
	cfg, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, fmt.Errorf("the address of the database: %w", err)
	}
	cfg.ConnConfig.RuntimeParams["application_name"] = "rollingd backup"
	cfg.ConnConfig.RuntimeParams["statement_timeout"] = "0"
	cfg.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "0"
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	return pgx.ConnectConfig(ctx, cfg.ConnConfig)
}

// sslVariables are the settings of an address that a program needs as well, by libpq's names.
var sslVariables = map[string]string{
	"sslmode":     "PGSSLMODE",
	"sslrootcert": "PGSSLROOTCERT",
	"sslcert":     "PGSSLCERT",
	"sslkey":      "PGSSLKEY",
	"sslsni":      "PGSSLSNI",
}

// variables are the address as a program takes it from its environment, for the database of this name, or the one of
// the address if it is empty.
func variables(address, database string) ([]string, error) {
	cfg, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, fmt.Errorf("the address of the database: %w", err)
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("the address of the database: %w", err)
	}
	c := cfg.ConnConfig
	if database == "" {
		database = c.Database
	}
	env := []string{
		"PGHOST=" + c.Host,
		"PGPORT=" + strconv.Itoa(int(c.Port)),
		"PGUSER=" + c.User,
		"PGPASSWORD=" + c.Password,
		"PGDATABASE=" + database,
		"PGAPPNAME=rollingd backup",
		"PGCONNECT_TIMEOUT=10",
	}
	for setting, variable := range sslVariables {
		if value := u.Query().Get(setting); value != "" {
			env = append(env, variable+"="+value)
		}
	}
	return env, nil
}

// onDatabase is the address of another database of the same server.
func onDatabase(address, database string) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", fmt.Errorf("the address of the database: %w", err)
	}
	u.Path = "/" + database
	query := u.Query()
	query.Del("dbname")
	query.Del("database")
	u.RawQuery = query.Encode()
	return u.String(), nil
}
