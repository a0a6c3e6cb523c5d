package devstack

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/jackc/pgx/v5"
)

// hostedRoles are those that Supabase has, with the default privileges that it
// gives them by name: whatever is created in public is open to all three.
const hostedRoles = `
	create role anon nologin noinherit;
	create role authenticated nologin noinherit;
	create role service_role nologin noinherit bypassrls;
	grant usage on schema public to anon, authenticated, service_role;
	alter default privileges in schema public grant all on tables to anon, authenticated, service_role;
	alter default privileges in schema public grant all on functions to anon, authenticated, service_role;
	alter default privileges in schema public grant all on sequences to anon, authenticated, service_role`

// StartHosted starts a private Postgres that stands in for the hosted one: with
// Supabase's three roles, and a login that is service_role and no more. DSN is
// that of the owner; the second result is that of the login.
func StartHosted(ctx context.Context, opts PostgresOptions, password string) (_ *Postgres, service string, err error) {
	p, err := StartPostgres(ctx, opts)
	if err != nil {
		return nil, "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Stop())
		}
	}()
	conn, err := pgx.Connect(ctx, p.DSN())
	if err != nil {
		return nil, "", fmt.Errorf("connect to the hosted Postgres: %w", err)
	}
	defer conn.Close(ctx)
	var there bool
	if err := conn.QueryRow(ctx, `select exists (select from pg_roles where rolname = 'service_role')`).Scan(&there); err != nil {
		return nil, "", fmt.Errorf("look for the roles: %w", err)
	}
	if !there {
		if _, err := conn.Exec(ctx, hostedRoles+`; create role edge login inherit in role service_role`); err != nil {
			return nil, "", fmt.Errorf("make the roles: %w", err)
		}
	}
	quoted, err := conn.PgConn().EscapeString(password)
	if err != nil {
		return nil, "", err
	}
	if _, err := conn.Exec(ctx, `alter role edge password '`+quoted+`'`); err != nil {
		return nil, "", fmt.Errorf("give the login its password: %w", err)
	}
	u, err := url.Parse(p.DSN())
	if err != nil {
		return nil, "", err
	}
	u.User = url.UserPassword("edge", password)
	return p, u.String(), nil
}
