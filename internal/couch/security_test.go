package couch

import (
	"testing"

	"github.com/google/uuid"
)

// TestIsSealed: whoever is let in by any list breaks the seal.
func TestIsSealed(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*Security)
		sealed bool
	}{
		"as put":                   {func(*Security) {}, true},
		"a member role":            {func(s *Security) { s.Members.Roles = append(s.Members.Roles, "pos") }, false},
		"another role":             {func(s *Security) { s.Members.Roles = []string{"pos"} }, false},
		"no members, so everyone":  {func(s *Security) { s.Members.Roles = nil }, false},
		"a member by name":         {func(s *Security) { s.Members.Names = []string{"till"} }, false},
		"an administrator's role":  {func(s *Security) { s.Admins.Roles = append(s.Admins.Roles, "pos") }, false},
		"an administrator by name": {func(s *Security) { s.Admins.Names = []string{"till"} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := Sealed(uuid.New())
			tc.change(&s)
			if got := s.IsSealed(); got != tc.sealed {
				t.Errorf("IsSealed() = %t", got)
			}
		})
	}
}
