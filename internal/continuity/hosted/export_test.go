package hosted

// IntakeCalls is how many calls an intake has under way.
const IntakeCalls = intakeCalls

// Waiting is how many commands wait for a call.
func (in *Intake) Waiting() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.waiting)
}
