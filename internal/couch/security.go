package couch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/google/uuid"
)

// SealedRole is a role that nobody has: a database that admits only it is sealed.
const SealedRole = "rollingd_sealed"

// ErrSecurityDiffers is returned when _security, read back, is not what was put.
var ErrSecurityDiffers = errors.New("_security is not what was put")

// Security is a database's _security. CouchDB keeps fields that it does not
// know, only administrators write them and no replication carries them, which
// makes it the place for the marker that tells two incarnations apart.
type Security struct {
	Admins  Principals `json:"admins"`
	Members Principals `json:"members"`
	Marker  *Marker    `json:"rollingd,omitempty"`
}

// Principals are the names and roles of a side of _security.
type Principals struct {
	Names []string `json:"names"`
	Roles []string `json:"roles"`
}

// Marker identifies a database as one that this product created.
type Marker struct {
	Generation uuid.UUID `json:"generation"`
}

// OpenTo returns the security of a database for the devices of one role.
func OpenTo(role string, generation uuid.UUID) Security {
	return Security{
		Admins:  Principals{Names: []string{}, Roles: []string{"_admin"}},
		Members: Principals{Names: []string{}, Roles: []string{role}},
		Marker:  &Marker{Generation: generation},
	}
}

// Sealed returns the security of a sealed database.
func Sealed(generation uuid.UUID) Security { return OpenTo(SealedRole, generation) }

// IsSealed reports whether s admits nobody but administrators of the server. An
// administrator of the database is a member as well, and may take the sealing
// design document away.
func (s Security) IsSealed() bool {
	return len(s.Members.Names) == 0 && slices.Equal(s.Members.Roles, []string{SealedRole}) &&
		len(s.Admins.Names) == 0 && slices.Equal(s.Admins.Roles, []string{"_admin"})
}

// Marked reports whether s carries this marker.
func (s Security) Marked(generation uuid.UUID) bool {
	return s.Marker != nil && s.Marker.Generation == generation
}

func (s Security) equal(other Security) bool {
	return slices.Equal(s.Members.Names, other.Members.Names) &&
		slices.Equal(s.Members.Roles, other.Members.Roles) &&
		slices.Equal(s.Admins.Names, other.Admins.Names) &&
		slices.Equal(s.Admins.Roles, other.Admins.Roles) &&
		(s.Marker == nil) == (other.Marker == nil) &&
		(s.Marker == nil || *s.Marker == *other.Marker)
}

// Security returns the database's _security. A marker that is not of our form
// is reported as none.
func (c *Client) Security(ctx context.Context, db string) (Security, error) {
	var raw struct {
		Admins  Principals      `json:"admins"`
		Members Principals      `json:"members"`
		Marker  json.RawMessage `json:"rollingd"`
	}
	if err := c.doJSON(ctx, http.MethodGet, path(db)+"/_security", nil, &raw); err != nil {
		return Security{}, err
	}
	s := Security{Admins: raw.Admins, Members: raw.Members}
	var marker Marker
	if json.Unmarshal(raw.Marker, &marker) == nil && marker.Generation != uuid.Nil {
		s.Marker = &marker
	}
	return s, nil
}

// PutSecurity writes _security and reads it back. It refuses a member list that
// is empty, which would open the database to everybody.
func (c *Client) PutSecurity(ctx context.Context, db string, s Security) error {
	if len(s.Members.Names)+len(s.Members.Roles) == 0 {
		return fmt.Errorf("security of %s: an empty member list would make it public", db)
	}
	if err := c.doJSON(ctx, http.MethodPut, path(db)+"/_security", s, nil); err != nil {
		return err
	}
	got, err := c.Security(ctx, db)
	if err != nil {
		return err
	}
	if !got.equal(s) {
		return fmt.Errorf("security of %s: %w", db, ErrSecurityDiffers)
	}
	return nil
}
