package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rollingd/rollingd/contracts"
)

// TestRunbookNamesWhatIsReported holds the runbook equal to the code in what
// wakes people up: every reason of a lock, every step that a failure can name,
// and every variable that is read from the environment.
func TestRunbookNamesWhatIsReported(t *testing.T) {
	runbook := read(t, "runbook.md")
	reported := make(map[string]string)
	for _, dir := range []string{"archive", "cron", "guard", "rotation"} {
		inspect(t, "../internal/"+dir, func(path string, n ast.Node) {
			for _, word := range append(constants(n), stepOf(n)...) {
				reported[word] = path
			}
		})
	}
	if len(reported) < 20 {
		t.Fatalf("found only %d codes and steps; are they named differently now?", len(reported))
	}
	inspect(t, "../cmd", func(path string, n ast.Node) {
		if text, ok := literal(n); ok && variable.MatchString(text) {
			reported[text] = path
		}
	})
	for _, word := range slices.Sorted(maps.Keys(reported)) {
		if !strings.Contains(runbook, "`"+word+"`") {
			t.Errorf("runbook.md does not say what `%s` of %s means", word, reported[word])
		}
	}
}

// TestRunbookNamesTheCodes that edges and the primary refuse commands with.
func TestRunbookNamesTheCodes(t *testing.T) {
	runbook := read(t, "runbook.md")
	codes := make(map[string]bool)
	for _, code := range contracts.ErrorCodes() {
		codes[string(code)] = true
	}
	for _, dir := range []string{"edge", "primary"} {
		inspect(t, "../internal/continuity/"+dir, func(_ string, n ast.Node) {
			for _, word := range append(constants(n), codeOf(n)...) {
				if strings.ToLower(word) == word { // The others are Postgres'.
					codes[word] = true
				}
			}
		})
	}
	if len(codes) < 25 {
		t.Fatalf("found only %d codes; are they elsewhere now?", len(codes))
	}
	for _, word := range slices.Sorted(maps.Keys(codes)) {
		if !strings.Contains(runbook, "`"+word+"`") {
			t.Errorf("runbook.md does not say what `%s` means", word)
		}
	}
}

// codeOf returns the code of a Problem{Code: "code"}, and of a row of the
// primary's table {err, status, "code", retry}.
func codeOf(n ast.Node) []string {
	switch n := n.(type) {
	case *ast.CompositeLit:
		const columns, column = 4, 2
		if len(n.Elts) == columns {
			if text, ok := literal(n.Elts[column]); ok {
				return []string{text}
			}
		}
	case *ast.KeyValueExpr:
		if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Code" {
			if text, ok := literal(n.Value); ok {
				return []string{text}
			}
		}
	}
	return nil
}

var variable = regexp.MustCompile(`^(ROLLINGD|DAY_DB|LOCAL_CONTINUITY|SUPABASE)_[A-Z_]+$`)

// constants returns the values of constants that are named as codes or steps.
func constants(n ast.Node) (values []string) {
	spec, ok := n.(*ast.ValueSpec)
	if !ok {
		return nil
	}
	for i, name := range spec.Names {
		lower := strings.ToLower(name.Name)
		if i >= len(spec.Values) || !strings.HasPrefix(lower, "step") && !strings.HasPrefix(lower, "code") {
			continue
		}
		if text, ok := literal(spec.Values[i]); ok {
			values = append(values, text)
		}
	}
	return values
}

// stepOf returns the step of a call at("step", err) and of a Failure{Step: "step"}.
func stepOf(n ast.Node) []string {
	switch n := n.(type) {
	case *ast.CallExpr:
		if name, ok := n.Fun.(*ast.Ident); ok && name.Name == "at" && len(n.Args) > 0 {
			if text, ok := literal(n.Args[0]); ok {
				return []string{text}
			}
		}
	case *ast.KeyValueExpr:
		if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Step" {
			if text, ok := literal(n.Value); ok {
				return []string{text}
			}
		}
	}
	return nil
}

func literal(n ast.Node) (string, bool) {
	lit, ok := n.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}

// inspect calls fn for each node of the Go files under dir that are no tests.
func inspect(t *testing.T, dir string, fn func(path string, n ast.Node)) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			fn(path, n)
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)#]*)(?:#([^)]*))?\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	noise   = regexp.MustCompile(`[^a-z0-9 -]`)
)

// TestLinks follows every link within the repository, to the heading.
func TestLinks(t *testing.T) {
	pages, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, "../README.md", "../CHANGELOG.md") {
		for _, match := range link.FindAllStringSubmatch(read(t, page), -1) {
			target, anchor := match[1], match[2]
			if strings.Contains(target, "://") {
				continue
			}
			to := page
			if target != "" {
				to = filepath.Join(filepath.Dir(page), target)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s, which does not exist", page, target)
				continue
			}
			if anchor != "" && !slices.Contains(anchors(read(t, to)), anchor) {
				t.Errorf("%s links to %s#%s, which has no such heading", page, target, anchor)
			}
		}
	}
}

// anchors are the headings of a page in the form in which links name them.
func anchors(page string) (all []string) {
	for _, match := range heading.FindAllStringSubmatch(page, -1) {
		all = append(all, strings.ReplaceAll(noise.ReplaceAllString(strings.ToLower(match[1]), ""), " ", "-"))
	}
	return all
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
