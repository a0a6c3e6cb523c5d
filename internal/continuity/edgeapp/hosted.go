package edgeapp

import (
	"context"
	"errors"
	"time"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/edge"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/continuity/router"
	"github.com/rollingd/rollingd/internal/pg"
)

// hostedConns is how many connections an edge has to the hosted Postgres, whose
// pooler has few.
const hostedConns = 8

// hostedPlane is the hosted database as an edge uses it.
type hostedPlane struct {
	queue     *hosted.Queue
	intake    *hosted.Intake
	snapshots *hosted.Snapshots
	fence     *hosted.Fence
	nodes     *hosted.Nodes
	instance  string
}

// openHosted returns the plane over the transport that the options say, and what
// closes it. It connects to nothing yet: an edge starts without it.
func openHosted(ctx context.Context, opts Options) (*hostedPlane, func(), error) {
	if opts.SupabaseURL != "" {
		transport, err := hosted.NewPostgREST(opts.SupabaseURL, opts.SupabaseKey)
		if err != nil {
			return nil, nil, err
		}
		return newHostedPlane(transport, opts.Instance), transport.Close, nil
	}
	pool, err := pg.Open(ctx, opts.DatabaseURL, pg.Options{
		MaxConns:          hostedConns,
		ApplicationName:   "rollingd-edge",
		TransactionPooler: true,
	})
	if err != nil {
		return nil, nil, err
	}
	return newHostedPlane(hosted.NewPostgres(pool), opts.Instance), pool.Close, nil
}

func newHostedPlane(transport hosted.Transport, instance string) *hostedPlane {
	queue := hosted.NewQueue(transport)
	return &hostedPlane{
		queue:     queue,
		intake:    hosted.NewIntake(queue),
		snapshots: hosted.NewSnapshots(transport),
		fence:     hosted.NewFence(transport),
		nodes:     hosted.NewNodes(transport),
		instance:  instance,
	}
}

// Enqueue makes it a router.Queue.
func (h *hostedPlane) Enqueue(ctx context.Context, cmd continuity.Command, epoch continuity.Epoch) (continuity.Receipt, error) {
	return h.intake.Enqueue(ctx, cmd, epoch)
}

// ReadSnapshot makes it router.Snapshots.
func (h *hostedPlane) ReadSnapshot(ctx context.Context, key string) (*router.Snapshot, error) {
	s, err := h.snapshots.Read(ctx, key)
	if errors.Is(err, hosted.ErrNoSnapshot) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &router.Snapshot{Payload: s.Payload, PublishedAt: s.PublishedAt, Age: s.Age.Duration()}, nil
}

// State, OpenEpoch and Reopen make it a router.Fence.
func (h *hostedPlane) State(ctx context.Context) (continuity.Fence, error) {
	state, err := h.fence.State(ctx)
	return state.Fence, err
}

// OpenEpoch asks for the queue.
func (h *hostedPlane) OpenEpoch(ctx context.Context, expected continuity.Epoch, reason, instance string) (continuity.Fence, error) {
	state, err := h.fence.Open(ctx, expected, reason, instance)
	return state.Fence, err
}

// Reopen asks for a queue that has been sealed for too long.
func (h *hostedPlane) Reopen(ctx context.Context, epoch continuity.Epoch, instance string) (continuity.Fence, error) {
	state, err := h.fence.Reopen(ctx, epoch, instance)
	return state.Fence, err
}

// Stats and Beat make it an edge.Hosted.
func (h *hostedPlane) Stats(ctx context.Context) (edge.Stats, error) {
	s, err := h.queue.Stats(ctx)
	if err != nil {
		return edge.Stats{}, err
	}
	return edge.Stats{
		Depth:         s.Commands,
		OldestPending: s.OldestPending.Duration(),
		SnapshotAge:   (*time.Duration)(s.NewestSnapshotAge),
		Dead:          s.UnacknowledgedDead,
		Blocked:       s.BlockedAggregates,
		ExpiredLeases: s.ExpiredLeases,
		UnknownTypes:  s.UnknownTypes,
	}, nil
}

// Beat reports that this edge lives, under the name that it opens the queue with.
func (h *hostedPlane) Beat(ctx context.Context, mode contracts.ReplicationMode) error {
	_, err := h.nodes.Beat(ctx, hosted.Heartbeat{NodeID: h.instance, Role: hosted.RoleEdge, Mode: mode, Instance: h.instance})
	return err
}
