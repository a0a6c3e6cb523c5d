package scripts_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const queueMigration = "migrations/hosted/046_continuity_transport.sql"

// tree is a copy of what the parity script reads, for a test to damage.
type tree struct {
	t    *testing.T
	root string
}

// newTree copies the repository's contracts and primary migrations, with a
// hosted migration that agrees with them.
func newTree(t *testing.T) *tree {
	t.Helper()
	needTools(t)
	tr := &tree{t: t, root: t.TempDir()}
	for _, pattern := range []string{
		"go.mod",
		"contracts/*.go", "contracts/*.ts", "contracts/*.mjs", "contracts/*.json", "contracts/vectors/*.json",
		"sdk/src/contracts/*.ts",
		"migrations/primary/*.sql",
	} {
		paths, err := filepath.Glob(filepath.Join("..", pattern))
		if err != nil || len(paths) == 0 {
			t.Fatalf("nothing matches %s (%v)", pattern, err)
		}
		for _, path := range paths {
			relative, err := filepath.Rel("..", path)
			if err != nil {
				t.Fatal(err)
			}
			tr.copyFrom(path, relative)
		}
	}
	tr.copyFrom("testdata/046_continuity_transport.sql", queueMigration)
	modules, err := filepath.Abs("../contracts/node_modules")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(modules, tr.path("contracts/node_modules")); err != nil {
		t.Fatal(err)
	}
	return tr
}

// needTools skips the test where what the script runs on is not installed.
func needTools(t *testing.T) {
	t.Helper()
	for _, tool := range []string{"bash", "node"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	if _, err := os.Stat("../contracts/node_modules/typescript"); err != nil {
		t.Skipf("typescript is not installed, run npm ci in contracts: %v", err)
	}
}

func (tr *tree) path(name string) string {
	return filepath.Join(tr.root, filepath.FromSlash(name))
}

func (tr *tree) write(name, content string) {
	tr.t.Helper()
	if err := os.MkdirAll(filepath.Dir(tr.path(name)), 0o755); err != nil {
		tr.t.Fatal(err)
	}
	if err := os.WriteFile(tr.path(name), []byte(content), 0o644); err != nil {
		tr.t.Fatal(err)
	}
}

func (tr *tree) copyFrom(path, name string) {
	tr.t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		tr.t.Fatal(err)
	}
	tr.write(name, string(content))
}

func (tr *tree) remove(name string) {
	tr.t.Helper()
	if err := os.Remove(tr.path(name)); err != nil {
		tr.t.Fatal(err)
	}
}

// replace changes the first occurrence of old, which must be there: a damage
// that damages nothing would prove nothing.
func (tr *tree) replace(name, old, new string) {
	tr.t.Helper()
	content, err := os.ReadFile(tr.path(name))
	if err != nil {
		tr.t.Fatal(err)
	}
	if !strings.Contains(string(content), old) {
		tr.t.Fatalf("%s does not hold %q", name, old)
	}
	tr.write(name, strings.Replace(string(content), old, new, 1))
}

// replaceContract changes a contract and the SDK's copy of it alike.
func (tr *tree) replaceContract(name, old, new string) {
	tr.t.Helper()
	tr.replace("contracts/"+name, old, new)
	tr.replace("sdk/src/contracts/"+name, old, new)
}

// archiveMigration is the primary migration that holds the named text.
func (tr *tree) archiveMigration(text string) string {
	tr.t.Helper()
	paths, err := filepath.Glob(tr.path("migrations/primary/*.sql"))
	if err != nil {
		tr.t.Fatal(err)
	}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			tr.t.Fatal(err)
		}
		if strings.Contains(string(content), text) {
			return "migrations/primary/" + filepath.Base(path)
		}
	}
	tr.t.Fatalf("no primary migration holds %q", text)
	return ""
}

// verify runs the script on the tree at root, or on the repository when root is
// empty, and returns its standard output, its standard error and exit status.
func verify(t *testing.T, root string, folders ...string) (stdout, stderr string, status int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", append([]string{"verify-contracts-parity.sh"}, folders...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if root != "" {
		cmd.Env = append(os.Environ(), "ROLLINGD_PARITY_ROOT="+root)
	}
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// TestRepositoryIsInParity is the check itself, on this repository.
func TestRepositoryIsInParity(t *testing.T) {
	needTools(t)
	t.Parallel()
	if stdout, stderr, status := verify(t, ""); status != 0 || stdout != "" {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
}

func TestEveryDifferenceIsOneLine(t *testing.T) {
	tests := map[string]struct {
		damage func(*tree)
		want   []string
	}{
		"one byte of a copy": {
			damage: func(tr *tree) { tr.replace("sdk/src/contracts/day-manifest.ts", "clock", "Clock") },
			want:   []string{"copy: sdk/src/contracts/day-manifest.ts differs from contracts/day-manifest.ts"},
		},
		"a file missing from a copy and one too many": {
			damage: func(tr *tree) {
				tr.remove("sdk/src/contracts/feature-flags.ts")
				tr.write("sdk/src/contracts/flags.ts", "")
			},
			want: []string{
				"copy: sdk/src/contracts/feature-flags.ts is missing",
				"copy: sdk/src/contracts/flags.ts is not a contract",
			},
		},
		"a type that rotates but is not archived": {
			damage: func(tr *tree) {
				tr.replaceContract("doc-types.ts", "'order',\n", "'order',\n  'tip',\n")
			},
			want: []string{
				"rotated set: tip is in DYNAMIC_DOC_TYPES of contracts/doc-types.ts but not in its TERMINAL_STATUSES",
				"archived set: tip is in contracts/doc-types.ts but not in contracts/doctypes.go",
				"archived set: tip is in contracts/doc-types.ts but not in constraint archived_docs_type_dynamic",
			},
		},
		"a status missing from the migration": {
			damage: func(tr *tree) {
				tr.replace(tr.archiveMigration("function is_terminal"), "'refunded', 'voided')", "'refunded')")
			},
			want: []string{"terminal statuses: payment voided is in contracts/doc-types.ts but not in function is_terminal"},
		},
		"a vector that Go fails": {
			damage: func(tr *tree) { tr.replace("contracts/continuity.go", `= "degraded"`, `= "offline"`) },
			want: []string{
				`vectors: go: continuity-queue.json: modes: replicationModes gives ["primary","offline","recovering"], want ["primary","degraded","recovering"]`,
			},
		},
		"a vector that TypeScript fails": {
			damage: func(tr *tree) {
				tr.replaceContract("day-db-naming.ts", " || year % 400 === 0", "")
			},
			want: []string{
				"vectors: typescript: business-days.json: leap by 400: isBusinessDay gives false, want true",
				"vectors: typescript: business-days.json: year 400: isBusinessDay gives false, want true",
				`vectors: typescript: day-db-naming.json: suffix daily: leap by 400: parseSuffix gives null, want {"kind":"daily","businessDay":"20000229"}`,
				`vectors: typescript: day-db-naming.json: suffix daily: year 400: parseSuffix gives null, want {"kind":"daily","businessDay":"04000229"}`,
			},
		},
		"sides that do not compile": {
			damage: func(tr *tree) {
				tr.replace("contracts/day.go", "contracts\n", "contracts\nvar _ int = true\n")
				tr.replaceContract("doc-types.ts", "// Which", "const one: number = '1'; // Which")
			},
			want: []string{
				"vectors: go: no verdict: contracts/day.go:2:13: cannot use true (untyped bool constant) as int value in variable declaration",
				"typescript: contracts/doc-types.ts(1,7): error TS2322: Type 'string' is not assignable to type 'number'.",
			},
		},
		"TypeScript that does not load": {
			damage: func(tr *tree) { tr.replaceContract("doc-types.ts", "// Which", "throw new Error('on load'); // Which") },
			want: []string{
				"vectors: typescript: no verdict: test failed",
				"sets: no verdict: on load",
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := newTree(t)
			test.damage(tr)
			stdout, stderr, status := verify(t, tr.root)
			expectLines(t, stdout, stderr, test.want)
			if status != 1 {
				t.Errorf("status %d, want 1", status)
			}
		})
	}
}

func TestFurtherCopiesAreCompared(t *testing.T) {
	t.Parallel()
	tr := newTree(t)
	same, other := filepath.Join(tr.root, "same"), filepath.Join(tr.root, "other")
	for _, folder := range []string{same, other} {
		if err := os.CopyFS(folder, os.DirFS("../sdk/src/contracts")); err != nil {
			t.Fatal(err)
		}
	}
	tr.replace("other/day-db-naming.ts", "{0,31}", "{0,63}")
	absent := filepath.Join(tr.root, "absent")

	stdout, stderr, status := verify(t, tr.root, same, other+"/", absent)
	expectLines(t, stdout, stderr, []string{
		"copy: " + other + "/day-db-naming.ts differs from contracts/day-db-naming.ts",
		"copy: " + absent + "/continuity-queue.ts is missing",
		"copy: " + absent + "/day-db-naming.ts is missing",
		"copy: " + absent + "/day-manifest.ts is missing",
		"copy: " + absent + "/doc-types.ts is missing",
		"copy: " + absent + "/feature-flags.ts is missing",
	})
	if status != 1 {
		t.Errorf("status %d", status)
	}
}

func TestWithoutTypeScriptThereIsNoVerdict(t *testing.T) {
	t.Parallel()
	tr := newTree(t)
	tr.remove("contracts/node_modules")
	stdout, stderr, status := verify(t, tr.root)
	if want := "run npm ci in contracts"; status != 2 || stdout != "" || !strings.Contains(stderr, want) {
		t.Errorf("status %d, output %q, error %q: want status 2 and %q", status, stdout, stderr, want)
	}
}

// expectLines compares lines without regard to their order.
func expectLines(t *testing.T, stdout, stderr string, want []string) {
	t.Helper()
	missing := map[string]int{}
	for _, line := range want {
		missing[line]++
	}
	for line := range strings.Lines(stdout) {
		line = strings.TrimSuffix(line, "\n")
		if missing[line] == 0 {
			t.Errorf("unexpected: %s", line)
			continue
		}
		missing[line]--
	}
	for line, n := range missing {
		if n > 0 {
			t.Errorf("missing: %s", line)
		}
	}
	if t.Failed() {
		t.Logf("standard error: %s", stderr)
	}
}
