package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/internal/pg"
	postgresttest "github.com/rollingd/rollingd/test/postgrest"
)

// transport is how the primary and the edges reach the hosted database.
type transport string

const (
	overPostgres transport = "Postgres"
	overRPC      transport = "RPC"
)

// gatewayConns is how many connections PostgREST has, unless it is told otherwise.
const gatewayConns = 10

// gateway is PostgREST in front of the hosted database, as Supabase has it.
type gateway struct {
	pool   *pgxpool.Pool
	server *http.Server
	addr   string
}

// newGateway serves the functions of a database, whose owner's DSN it is given.
func newGateway(ctx context.Context, dsn string) (_ *gateway, err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	pool, err := pg.Open(ctx, dsn, pg.Options{MaxConns: gatewayConns})
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	g := &gateway{pool: pool, addr: listener.Addr().String(), server: &http.Server{
		Handler:           postgresttest.New(pool),
		ReadHeaderTimeout: time.Minute, // A link that swallows is to be felt by the clients.
	}}
	go func() { _ = g.server.Serve(listener) }() // It ends with its Close.
	return g, nil
}

func (g *gateway) close() error {
	err := g.server.Close()
	g.pool.Close()
	return err
}

// hostedEnd is where the programs' links to the hosted database lead.
func (s *site) hostedEnd() string {
	if s.gateway != nil {
		return s.gateway.addr
	}
	return s.hosted.addr()
}

// hostedEnv says to a program how it reaches the hosted database.
func (s *site) hostedEnv(through *link) []string {
	if s.day.transport == overRPC {
		return []string{"SUPABASE_URL=http://" + through.addr(), "SUPABASE_SERVICE_ROLE_KEY=" + postgresttest.SecretKey}
	}
	return []string{"ROLLINGD_HOSTED_DATABASE_URL=" + s.hosted.asService(through, s.database)}
}
