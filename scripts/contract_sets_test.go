package scripts_test

import (
	"os/exec"
	"testing"
)

// The comparison of sets by itself: it takes a tenth of the whole script's time,
// so that every form that it does not know can have its case.
func TestSetsAndLimits(t *testing.T) {
	const (
		typesTS = "contracts/doc-types.ts"
		queueTS = "contracts/continuity-queue.ts"
	)
	build := buildContracts(t)
	tests := map[string]struct {
		damage func(*tree)
		want   []string
	}{
		"nothing": {
			damage: func(*tree) {},
		},
		"a type missing from the constraint": {
			damage: func(tr *tree) {
				tr.replace(tr.archiveMigration("archived_docs_type_dynamic"), "'payment', 'cashflow',", "'payment',")
			},
			want: []string{"archived set: cashflow is in " + typesTS + " but not in constraint archived_docs_type_dynamic"},
		},
		"a type that the constraint admits without rotating": {
			damage: func(tr *tree) {
				tr.replace(tr.archiveMigration("archived_docs_type_dynamic"), "'payment', 'cashflow',", "'payment', 'cashflow', 'tip',")
			},
			want: []string{"archived set: tip is in constraint archived_docs_type_dynamic but not in " + typesTS},
		},
		"a type missing from Go": {
			damage: func(tr *tree) { tr.replace("contracts/doctypes.go", "\t\"cashflow\":           {\"closed\"},\n", "") },
			want:   []string{"archived set: cashflow is in " + typesTS + " but not in contracts/doctypes.go"},
		},
		"a status that only Go ends with": {
			damage: func(tr *tree) {
				tr.replace("contracts/doctypes.go", `{"closed", "cancelled"`, `{"closed", "lost", "cancelled"`)
			},
			want: []string{"terminal statuses: order lost is in contracts/doctypes.go but not in " + typesTS},
		},
		"a fact that Go gives a status": {
			damage: func(tr *tree) {
				tr.replace("contracts/doctypes.go", `"inventory_movement": nil`, `"inventory_movement": {"posted"}`)
			},
			want: []string{
				"terminal statuses: inventory_movement always is in " + typesTS + " but not in contracts/doctypes.go",
				"terminal statuses: inventory_movement posted is in contracts/doctypes.go but not in " + typesTS,
			},
		},
		"a type without a case in is_terminal": {
			damage: func(tr *tree) {
				tr.replace(tr.archiveMigration("function is_terminal"), "when 'cashflow' then status in ('closed')", "")
			},
			want: []string{"terminal statuses: cashflow closed is in " + typesTS + " but not in function is_terminal"},
		},
		"a later migration that redefines both": {
			damage: func(tr *tree) {
				tr.write("migrations/primary/900_later.sql", `
					alter table archived_docs drop constraint archived_docs_type_dynamic;
					alter table archived_docs add constraint archived_docs_type_dynamic check
						(doc_type is null or doc_type in ('order', 'payment', 'inventory_movement'));
					create or replace function is_terminal(doc_type text, status text) returns boolean
					language sql immutable as $$
						select case doc_type
							when 'order' then status in ('closed', 'cancelled', 'refunded')
							when 'payment' then status = 'approved'
							when 'inventory_movement' then true
							else false
						end
					$$;`)
			},
			want: []string{
				"archived set: cashflow is in " + typesTS + " but not in constraint archived_docs_type_dynamic",
				"terminal statuses: payment rejected is in " + typesTS + " but not in function is_terminal",
				"terminal statuses: payment refunded is in " + typesTS + " but not in function is_terminal",
				"terminal statuses: payment voided is in " + typesTS + " but not in function is_terminal",
			},
		},
		"a later migration that drops the constraint": {
			damage: func(tr *tree) {
				tr.write("migrations/primary/900_later.sql", "alter table archived_docs drop constraint archived_docs_type_dynamic;")
			},
			want: []string{"archived set: migrations/primary has no constraint archived_docs_type_dynamic of the known form"},
		},
		"a constraint of another form": {
			damage: func(tr *tree) {
				tr.replace(tr.archiveMigration("archived_docs_type_dynamic"), "(doc_type in (", "(true or doc_type in (")
			},
			want: []string{"archived set: migrations/primary has no constraint archived_docs_type_dynamic of the known form"},
		},
		"a constraint in a comment": {
			damage: func(tr *tree) {
				tr.replace(tr.archiveMigration("archived_docs_type_dynamic"), "  constraint archived_docs_type_dynamic check\n    (", "  -- constraint archived_docs_type_dynamic check\n    -- (")
			},
			want: []string{"archived set: migrations/primary has no constraint archived_docs_type_dynamic of the known form"},
		},
		"a function of another form": {
			damage: func(tr *tree) { tr.replace(tr.archiveMigration("function is_terminal"), "else false", "else true") },
			want:   []string{"terminal statuses: migrations/primary has no function is_terminal of the known form"},
		},
		"a case of another form": {
			damage: func(tr *tree) {
				tr.replace(tr.archiveMigration("function is_terminal"), "then status in ('closed')", "then status not in ('open')")
			},
			want: []string{"terminal statuses: migrations/primary has no function is_terminal of the known form"},
		},
		"a Go map of another form": {
			damage: func(tr *tree) { tr.replace("contracts/doctypes.go", `{"closed"}`, `closed`) },
			want:   []string{"archived set: contracts/doctypes.go has no var terminalStatuses of the known form"},
		},

		"no hosted migration": {
			damage: func(tr *tree) { tr.remove(queueMigration) },
		},
		"a status that the queue lacks": {
			damage: func(tr *tree) {
				tr.replace(queueMigration, "'pending', 'claimed', 'acked', 'dead'", "'pending', 'claimed', 'acked'")
			},
			want: []string{"continuity: continuity_commands.status: dead is in " + queueTS + " but not in " + queueMigration},
		},
		"a status of the outbox with another name": {
			damage: func(tr *tree) { tr.replace(queueMigration, "'delivered'", "'acked'") },
			want: []string{
				"continuity: continuity_outbox.status: delivered is in " + queueTS + " but not in " + queueMigration,
				"continuity: continuity_outbox.status: acked is in " + queueMigration + " but not in " + queueTS,
			},
		},
		"a mode too many": {
			damage: func(tr *tree) { tr.replace(queueMigration, "'recovering')", "'recovering', 'off')") },
			want:   []string{"continuity: continuity_replication_state.mode: off is in " + queueMigration + " but not in " + queueTS},
		},
		"other limits": {
			damage: func(tr *tree) {
				tr.replace(queueMigration, "default 8", "default 5")
				tr.replace(queueMigration, "<= 65536", "<= 65535")
				tr.replace(queueMigration, "<= 64 * 1024", "<= 64 * 1000")
				tr.replace(queueMigration, "<= 262144", "<= 65536")
				tr.replace(queueMigration, "least(3600, 15 *", "least(600, 30 *")
			},
			want: []string{
				"continuity: continuity_commands.max_attempts: 8 in " + queueTS + " but 5 in " + queueMigration,
				"continuity: continuity_commands.payload: 65536 in " + queueTS + " but 65535 in " + queueMigration,
				"continuity: continuity_outbox.payload: 65536 in " + queueTS + " but 64000 in " + queueMigration,
				"continuity: continuity_snapshots.payload: 262144 in " + queueTS + " but 65536 in " + queueMigration,
				"continuity: continuity_fail_command.cap: 3600 in " + queueTS + " but 600 in " + queueMigration,
				"continuity: continuity_fail_command.base: 15 in " + queueTS + " but 30 in " + queueMigration,
			},
		},
		"a table and a function that are not there": {
			damage: func(tr *tree) {
				tr.replace(queueMigration, "table public.continuity_outbox", "table public.outbox")
				tr.replace(queueMigration, "function public.continuity_fail_command", "function public.fail_command")
			},
			want: []string{
				"continuity: " + queueMigration + " has no continuity_outbox.status of the known form",
				"continuity: " + queueMigration + " has no continuity_outbox.payload of the known form",
				"continuity: " + queueMigration + " has no continuity_fail_command.cap of the known form",
				"continuity: " + queueMigration + " has no continuity_fail_command.base of the known form",
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := newTree(t)
			test.damage(tr)
			cmd := exec.CommandContext(t.Context(), "node", "contract-sets.mjs", tr.root, build)
			stdout, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			expectLines(t, string(stdout), "", test.want)
		})
	}
}

// buildContracts compiles the repository's TypeScript, once for all cases: they
// damage the other sides.
func buildContracts(t *testing.T) string {
	t.Helper()
	needTools(t)
	tr := &tree{t: t, root: t.TempDir()}
	tr.write("package.json", `{"type": "module"}`)
	cmd := exec.CommandContext(t.Context(), "node", "../contracts/node_modules/typescript/bin/tsc", "-p", "../contracts", "--outDir", tr.root)
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return tr.root
}
