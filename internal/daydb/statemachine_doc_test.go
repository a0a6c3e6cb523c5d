package daydb_test

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/rollingd/rollingd/internal/daydb"
)

var update = flag.Bool("update", false, "write docs/state-machine.md instead of comparing it")

const stateMachineDocument = "../../docs/state-machine.md"

// TestStateMachineDocument holds the document equal to the transition table, so
// that what an operator reads is what the code does. `make generate` writes it.
func TestStateMachineDocument(t *testing.T) {
	want := renderStateMachine(t)
	if *update {
		if err := os.WriteFile(stateMachineDocument, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(stateMachineDocument)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("docs/state-machine.md is not what the transition table says: run make generate")
	}
}

func renderStateMachine(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }

	line("<!-- Generated from internal/daydb/state.go by `make generate`; do not edit. -->")
	line("# The life of a day database\n")
	line("```mermaid\nstateDiagram-v2")
	line("  [*] --> %s: %s", daydb.Prewarmed, daydb.Prewarm)
	for _, tr := range daydb.Transitions() {
		line("  %s --> %s: %s", tr.From, tr.To, tr.Event)
	}
	line("  %s --> [*]\n```\n", daydb.Dropped)

	line("## States\n")
	line("| state | meaning |\n| --- | --- |")
	meanings := stateMeanings(t)
	for _, state := range daydb.States() {
		if meanings[state] == "" {
			t.Fatalf("state.go has no comment on %s", state)
		}
		line("| %s | %s |", state, meanings[state])
	}

	line("\n## Moves\n")
	line("A row is entered %s by the event `%s`, before its database is created. Each other move is one", daydb.Prewarmed, daydb.Prewarm)
	line("transaction under a lease: it locks the row, checks this table and the fencing token, and writes the row")
	line("and its line in the history. The trigger `day_databases_check` holds the same moves and what they need, so")
	line("that an `update` typed by hand cannot skip a lock.\n")
	line("| from | event | to | who, and what it needs |\n| --- | --- | --- | --- |")
	for _, tr := range daydb.Transitions() {
		line("| %s | `%s` | %s | %s |", tr.From, tr.Event, tr.To, tr.Needs)
	}

	line("\n## Every pair\n")
	line("`·` is refused with `ErrIllegalMove`.\n")
	events := []daydb.Event{daydb.Prewarm, daydb.Activate, daydb.Drain, daydb.Archive, daydb.Seal, daydb.Drop, daydb.Reopen}
	head, rule := "| |", "| --- |"
	for _, event := range events {
		head += fmt.Sprintf(" `%s` |", event)
		rule += " --- |"
	}
	line("%s\n%s", head, rule)
	for _, state := range daydb.States() {
		row := fmt.Sprintf("| **%s** |", state)
		for _, event := range events {
			to, err := daydb.Next(state, event)
			if err != nil {
				to = "·"
			}
			row += fmt.Sprintf(" %s |", to)
		}
		line("%s", row)
	}
	return b.Bytes()
}

// stateMeanings reads what state.go says of each state.
func stateMeanings(t *testing.T) map[daydb.State]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "state.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	meanings := make(map[daydb.State]string)
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || spec.Doc == nil || len(spec.Values) != 1 {
			return true
		}
		if value, ok := spec.Values[0].(*ast.BasicLit); ok && value.Kind == token.STRING {
			state, err := strconv.Unquote(value.Value)
			if err != nil {
				t.Fatal(err)
			}
			_, meaning, _ := strings.Cut(strings.Join(strings.Fields(spec.Doc.Text()), " "), ": ")
			meanings[daydb.State(state)] = meaning
		}
		return true
	})
	return meanings
}
