package hosted

import (
	"context"
	"time"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
)

// Role is what a node is for.
type Role string

// Roles of a node. The fence listens to both: to whether the primary is heard, and to edges that do not reach it.
const (
	RolePrimary Role = "primary"
	RoleEdge    Role = "edge"
)

// Nodes is what every node reports about itself.
type Nodes struct {
	transport Transport
}

// NewNodes returns the client over the transport.
func NewNodes(transport Transport) *Nodes {
	return &Nodes{transport: transport}
}

// Heartbeat is one report.
type Heartbeat struct {
	// NodeID stays the same when the node starts again. An edge uses the name that it gives to Fence.Open.
	NodeID string
	Role   Role
	Mode   contracts.ReplicationMode
	// LastCommand is the last command that a primary has applied.
	LastCommand continuity.Sequence
	// Instance is one process.
	Instance string
	// Lease is what a primary asks for that writes under a lease alone: how long from now its last write may take to
	// end, in whole seconds. Zero asks for none.
	Lease time.Duration
}

// Grant is the answer to a heartbeat.
type Grant struct {
	FenceState
	// Leased: the queue does not open before the lease that was asked for is over. It is not given while edges ask for the
	// queue, which opens when the last one is over.
	Leased bool `json:"leased"`
}

// Node is a node as it was heard last.
type Node struct {
	NodeID         string                    `json:"nodeId"`
	Role           Role                      `json:"role"`
	Mode           contracts.ReplicationMode `json:"mode"`
	Instance       string                    `json:"instance"`
	LastCommand    continuity.Sequence       `json:"lastCommandSeq"`
	LastSnapshotAt *time.Time                `json:"lastSnapshotAt"`
	LastDrainAt    *time.Time                `json:"lastDrainAt"`
	// Silent is the time since the last report.
	Silent Seconds `json:"silentSeconds"`
}

// Beat records that the node lives, and returns the fence.
func (n *Nodes) Beat(ctx context.Context, h Heartbeat) (Grant, error) {
	var grant Grant
	err := n.transport.Call(ctx, "continuity_heartbeat", map[string]any{
		"p_node_id":          h.NodeID,
		"p_role":             h.Role,
		"p_mode":             h.Mode,
		"p_last_command_seq": h.LastCommand,
		"p_instance":         h.Instance,
		"p_lease_seconds":    orNull(seconds(h.Lease)),
	}, &grant)
	return grant, err
}

// List returns every node that ever reported.
func (n *Nodes) List(ctx context.Context) ([]Node, error) {
	var nodes []Node
	err := n.transport.Call(ctx, "continuity_list_nodes", map[string]any{}, &nodes)
	return nodes, err
}
