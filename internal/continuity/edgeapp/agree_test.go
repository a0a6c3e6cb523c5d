package edgeapp_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rollingd/rollingd/internal/continuity/edge"
	"github.com/rollingd/rollingd/internal/continuity/edgeapp"
)

// TestWaysAgree on whatever a command holds: no payload is a fault of either
// side, and none that the primary takes is refused for good by the queue. A
// command whose answer was lost goes from one to the other, and would else be
// told that it can never be taken although it was.
func TestWaysAgree(t *testing.T) {
	t.Parallel()
	well, away := newShop(t), newShop(t)
	one := well.edge(edge.Everything)
	other := away.edge(edge.Everything, func(o *edgeapp.Options) { o.OpenWindow = time.Hour })
	other.goesAway()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		payload := anything(2).Draw(t, "payload")
		body := strings.NewReplacer("KEY", fmt.Sprint("k-", n), "ORDER", fmt.Sprint("o-", n), `"no onions"`, payload).Replace(create)
		direct, _ := one.ask("POST", "/v1/commands", body)
		queued, _ := other.ask("POST", "/v1/commands", body)
		if direct >= 500 || queued >= 500 || (direct == 200) != (queued == 202) {
			t.Fatalf("the primary's edge answers %d, the queue's %d to %.200q", direct, queued, body)
		}
		if one.blamed() {
			t.Fatalf("the primary is blamed for %.200q", body)
		}
	})
}

// blamed reports whether the edge has ever taken a command for a failure of the
// primary. Three in a row open the circuit.
func (e *runningEdge) blamed() bool {
	return strings.Contains(e.log.String(), "primary did not take a command")
}

// anything is a text that is JSON, or nearly.
func anything(depth int) *rapid.Generator[string] {
	character := rapid.OneOf(
		rapid.SampledFrom([]string{"<", ">", "&", "\u2028"}),
		rapid.SampledFrom([]string{`\u0000`, `\ud83d`, `\ude00`, `\ud83d\ude00`, `\"`, `\\`, `\/`, `\u2028`, "\xff", "\n", "é", "😀"}),
		rapid.StringN(1, 8, -1).Filter(func(s string) bool { return !strings.ContainsAny(s, `"\`) }),
	)
	text := rapid.Custom(func(t *rapid.T) string {
		s := strings.Join(rapid.SliceOfN(character, 0, 2).Draw(t, "text"), "")
		return `"` + repeat(s, rapid.SampledFrom([]int{1, 5000, 12000, 30000}).Draw(t, "times")) + `"`
	})
	number := rapid.Custom(func(t *rapid.T) string {
		digits := func(name string) string {
			return strings.Repeat(strconv.Itoa(rapid.IntRange(0, 9).Draw(t, name)), rapid.SampledFrom([]int{1, 400, 16383, 16384, 33000}).Draw(t, name+"s"))
		}
		s := strings.TrimLeft(digits("whole"), "0") + "0"
		if len(s) > 1 && rapid.Bool().Draw(t, "zero") {
			s = "0"
		}
		if rapid.Bool().Draw(t, "fraction") {
			s += "." + digits("place")
		}
		if rapid.Bool().Draw(t, "power") {
			s += rapid.SampledFrom([]string{"e", "E-", "e+"}).Draw(t, "e") + rapid.SampledFrom([]string{"0", "9", "300", "308", "309", "00000000001", "131072"}).Draw(t, "exponent")
		}
		return rapid.SampledFrom([]string{"", "-"}).Draw(t, "sign") + s
	})
	word := rapid.SampledFrom([]string{"true", "false", "null", "{}", "[]", "nul", "01", "1.", "[1,]", ""})
	if depth == 0 {
		return rapid.OneOf(text, number, number, word)
	}
	inner := anything(depth - 1)
	list := rapid.Custom(func(t *rapid.T) string {
		s := inner.Draw(t, "element")
		return "[" + s + repeat(","+s, rapid.SampledFrom([]int{0, 7, 3000, 30000}).Draw(t, "more")) + "]"
	})
	object := rapid.Custom(func(t *rapid.T) string {
		var fields []string
		for range rapid.IntRange(0, 3).Draw(t, "fields") {
			fields = append(fields, text.Draw(t, "name")+": "+inner.Draw(t, "value"))
		}
		return "{" + strings.Join(fields, ", ") + "}"
	})
	nested := rapid.Custom(func(t *rapid.T) string {
		levels := rapid.SampledFrom([]int{1, 60, 64, 5000}).Draw(t, "levels")
		return strings.Repeat("[", levels) + inner.Draw(t, "core") + strings.Repeat("]", levels)
	})
	return rapid.OneOf(text, number, word, list, list, object, nested)
}

// repeat keeps what is repeated within what a body may hold, and a little more.
func repeat(s string, times int) string {
	const most = 100 << 10
	return strings.Repeat(s, min(times, 1+most/max(len(s), 1)))
}
