package router

import "github.com/rollingd/rollingd/contracts"

// EssentialPolicy lists the types of command that may be queued. Whatever is not
// on it is refused out loud while the primary cannot take it: a queue that took
// everything would hold what nobody has thought through.
type EssentialPolicy map[string]bool

// DefaultPolicy allows the essential types of the contract.
func DefaultPolicy() EssentialPolicy {
	policy := make(EssentialPolicy)
	for _, t := range contracts.EssentialCommandTypes() {
		policy[t] = true
	}
	return policy
}

// Allows reports whether a command of this type may be queued.
func (p EssentialPolicy) Allows(commandType string) bool { return p[commandType] }
