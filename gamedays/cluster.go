package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/devstack"
)

// cluster is a private Postgres that can be killed. Every game day has a
// database of its own in it.
type cluster struct {
	dir string
	// service is the password of the login that is service_role, of a cluster that
	// stands in for the hosted one; empty for the primary's.
	service string
	pg      *devstack.Postgres
}

// start starts it, on data that a former start has left. What is left of a
// server that was killed lets go of the data after a moment.
func (c *cluster) start(ctx context.Context) error {
	// A commit that was answered is on the disk: what is killed here is Postgres.
	opts := devstack.PostgresOptions{Dir: c.dir, Durable: true}
	var last error
	err := until(ctx, "Postgres starts in "+c.dir, func(ctx context.Context) (bool, error) {
		if c.service == "" {
			c.pg, last = devstack.StartPostgres(ctx, opts)
		} else {
			c.pg, _, last = devstack.StartHosted(ctx, opts, c.service)
		}
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

func (c *cluster) stop() error {
	if c.pg == nil {
		return nil
	}
	return c.pg.Stop()
}

// kill kills the postmaster; its other processes end when they notice.
func (c *cluster) kill() error {
	content, err := os.ReadFile(filepath.Join(c.dir, "data", "postmaster.pid"))
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(string(content), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil {
		return fmt.Errorf("the pid of the postmaster: %w", err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill the postmaster: %w", err)
	}
	return c.pg.Stop() // Which waits for its end.
}

// addr is where it listens, another port after each start.
func (c *cluster) addr() string {
	u, err := url.Parse(c.pg.DSN())
	if err != nil {
		return ""
	}
	return u.Host
}

// owner is the DSN of a database through a link, as its owner; asService as the
// login of the edges and the primary.
func (c *cluster) owner(through *link, database string) string {
	return c.dsn(through.addr(), database, nil)
}

func (c *cluster) asService(through *link, database string) string {
	return c.dsn(through.addr(), database, url.UserPassword("edge", c.service))
}

func (c *cluster) dsn(host, database string, user *url.Userinfo) string {
	u, err := url.Parse(c.pg.DSN())
	if err != nil {
		return ""
	}
	u.Host, u.Path = host, "/"+database
	if user != nil {
		u.User = user
	}
	return u.String()
}

// create makes a database. The hosted one is a copy of that which has
// Supabase's default privileges.
func (c *cluster) create(ctx context.Context, database string) error {
	template := "template0"
	if c.service != "" {
		template = "postgres"
	}
	return c.exec(ctx, `create database `+pgx.Identifier{database}.Sanitize()+` template `+template)
}

func (c *cluster) exec(ctx context.Context, statements ...string) error {
	conn, err := pgx.Connect(ctx, c.dsn(c.addr(), "template1", nil))
	if err != nil {
		return fmt.Errorf("connect to Postgres: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// dump makes a backup of a database, as the cron does.
func (c *cluster) dump(ctx context.Context, database, file string) error {
	return run(ctx, "pg_dump", "--format=custom", "--file="+file, "--dbname="+c.dsn(c.addr(), database, nil))
}

// restore makes a database what a backup has of it.
func (c *cluster) restore(ctx context.Context, database, file string) error {
	name := pgx.Identifier{database}.Sanitize()
	if err := c.exec(ctx, `drop database `+name+` with (force)`, `create database `+name+` template template0`); err != nil {
		return err
	}
	return run(ctx, "pg_restore", "--exit-on-error", "--dbname="+c.dsn(c.addr(), database, nil), file)
}

func run(ctx context.Context, program string, args ...string) error {
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", program, err, out)
	}
	return nil
}
