package devstack

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// scratchTimeout bounds the making and the dropping of a scratch database.
const scratchTimeout = 30 * time.Second

// Scratch makes a database of this name in the stack's Postgres and returns its DSN. Stop drops it again, whoever is
// still connected, so that nothing is left in a Postgres that was given.
func (s *Stack) Scratch(ctx context.Context, name string) (dsn string, err error) {
	if dsn, err = withDatabase(s.DatabaseURL, name); err != nil {
		return "", err
	}
	if err := execute(ctx, s.DatabaseURL, `create database `+pgx.Identifier{name}.Sanitize()); err != nil {
		return "", fmt.Errorf("create database %s: %w", name, err)
	}
	s.stops = append(s.stops, func() error {
		err := execute(context.Background(), s.DatabaseURL, `drop database if exists `+pgx.Identifier{name}.Sanitize()+` with (force)`)
		if err != nil {
			return fmt.Errorf("drop database %s: %w", name, err)
		}
		return nil
	})
	return dsn, nil
}

// withDatabase returns the DSN, of either form, with another database in it.
func withDatabase(dsn, name string) (string, error) {
	if !strings.HasPrefix(dsn, "postgres://") && !strings.HasPrefix(dsn, "postgresql://") {
		return dsn + " dbname=" + name, nil
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return "", errors.New("the URL of the database cannot be read") // Its error would repeat the password.
	}
	u.Path = "/" + name
	query := u.Query()
	query.Del("dbname")
	u.RawQuery = query.Encode()
	return u.String(), nil
}

func execute(ctx context.Context, dsn, sql string) error {
	ctx, cancel := context.WithTimeout(ctx, scratchTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, sql)
	return err
}
