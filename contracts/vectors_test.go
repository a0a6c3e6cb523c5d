package contracts_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/rollingd/rollingd/contracts"
)

// vector is one golden case: a call by the name that it has in TypeScript. A
// want of null is a refusal.
type vector struct {
	Name string            `json:"name"`
	Call string            `json:"call"`
	Args []json.RawMessage `json:"args"`
	Want json.RawMessage   `json:"want"`
}

// calls maps the functions that the vectors name to the Go mirror.
var calls = map[string]func(t *testing.T, args []json.RawMessage) any{
	"isDynamic":      func(t *testing.T, args []json.RawMessage) any { return contracts.IsDynamic(text(t, args, 0)) },
	"databaseKindOf": func(t *testing.T, args []json.RawMessage) any { return contracts.KindOf(text(t, args, 0)) },
	"isTerminal": func(t *testing.T, args []json.RawMessage) any {
		return contracts.IsTerminal(text(t, args, 0), text(t, args, 1))
	},

	"isBusinessDay": func(t *testing.T, args []json.RawMessage) any { return contracts.ValidDay(text(t, args, 0)) },
	"isId":          func(t *testing.T, args []json.RawMessage) any { return contracts.ValidID(text(t, args, 0)) },
	"isEnv":         func(t *testing.T, args []json.RawMessage) any { return contracts.ValidEnv(text(t, args, 0)) },
	"coreDbName": func(t *testing.T, args []json.RawMessage) any {
		return orNull(contracts.CoreName(text(t, args, 0), text(t, args, 1), text(t, args, 2)))
	},
	"dailyDbName": func(t *testing.T, args []json.RawMessage) any {
		return orNull(contracts.DailyName(text(t, args, 0), text(t, args, 1), text(t, args, 2), text(t, args, 3)))
	},
	"legacyDbName": func(t *testing.T, args []json.RawMessage) any { return contracts.LegacyName(text(t, args, 0)) },
	"dailySuffix": func(t *testing.T, args []json.RawMessage) any {
		return orNull(contracts.DailySuffix(text(t, args, 0)))
	},
	"parseDbName": func(t *testing.T, args []json.RawMessage) any {
		name, err := contracts.ParseDBName(text(t, args, 0))
		if err != nil {
			return nil
		}
		return map[string]any{
			"env":          name.Env,
			"companyId":    name.CompanyID,
			"restaurantId": name.RestaurantID,
			"kind":         name.Kind,
			"businessDay":  emptyAsNull(name.BusinessDay),
		}
	},
	"parseSuffix": func(t *testing.T, args []json.RawMessage) any {
		kind, day, err := contracts.ParseSuffix(text(t, args, 0))
		if err != nil {
			return nil
		}
		return map[string]any{"kind": kind, "businessDay": emptyAsNull(day)}
	},

	"parseDayManifest": func(_ *testing.T, args []json.RawMessage) any {
		return orNull(contracts.ParseDayManifest(args[0]))
	},
	"isRollingDb":     func(_ *testing.T, args []json.RawMessage) any { return contracts.IsRollingDb(args[0]) },
	"isRollingDbDrop": func(_ *testing.T, args []json.RawMessage) any { return contracts.IsRollingDbDrop(args[0]) },

	"commandStatuses":       func(*testing.T, []json.RawMessage) any { return contracts.CommandStatuses() },
	"outboxStatuses":        func(*testing.T, []json.RawMessage) any { return contracts.OutboxStatuses() },
	"replicationModes":      func(*testing.T, []json.RawMessage) any { return contracts.ReplicationModes() },
	"errorCodes":            func(*testing.T, []json.RawMessage) any { return contracts.ErrorCodes() },
	"essentialCommandTypes": func(*testing.T, []json.RawMessage) any { return contracts.EssentialCommandTypes() },
	"isEssential":           func(t *testing.T, args []json.RawMessage) any { return contracts.IsEssential(text(t, args, 0)) },
	"limits": func(*testing.T, []json.RawMessage) any {
		return map[string]any{
			"maxAttempts":             contracts.MaxAttempts,
			"backoffBaseSeconds":      contracts.BackoffBase.Seconds(),
			"backoffCapSeconds":       contracts.BackoffCap.Seconds(),
			"backoffJitter":           contracts.BackoffJitter,
			"maxCommandPayloadBytes":  contracts.MaxCommandPayloadBytes,
			"maxOutboxPayloadBytes":   contracts.MaxOutboxPayloadBytes,
			"maxSnapshotPayloadBytes": contracts.MaxSnapshotPayloadBytes,
		}
	},
	"backoffSeconds": func(t *testing.T, args []json.RawMessage) any {
		var failures int
		decode(t, args[0], &failures)
		return contracts.Backoff(failures).Seconds()
	},
}

// TestVectors runs the golden cases against the Go mirror. A failure is one
// line that begins with "mismatch:", which the parity script passes on.
func TestVectors(t *testing.T) {
	files, err := filepath.Glob("vectors/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("mismatch: no vectors (%v)", err)
	}
	covered := map[string]bool{}
	for _, path := range files {
		file := filepath.Base(path)
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		decoder := json.NewDecoder(bytes.NewReader(raw))
		decoder.DisallowUnknownFields()
		var vectors []vector
		if err := decoder.Decode(&vectors); err != nil {
			t.Fatalf("mismatch: %s: %v", file, err)
		}
		for _, v := range vectors {
			covered[v.Call] = true
			call, known := calls[v.Call]
			if !known {
				t.Errorf("mismatch: %s: %s: no function %s", file, v.Name, v.Call)
				continue
			}
			var want any
			decode(t, v.Want, &want)
			if got := jsonValue(t, call(t, v.Args)); !reflect.DeepEqual(got, want) {
				t.Errorf("mismatch: %s: %s: %s gives %s, want %s", file, v.Name, v.Call, jsonText(t, got), jsonText(t, want))
			}
		}
	}
	for name := range calls {
		if !covered[name] {
			t.Errorf("mismatch: no vector calls %s", name)
		}
	}
}

func text(t *testing.T, args []json.RawMessage, i int) string {
	t.Helper()
	var s string
	decode(t, args[i], &s)
	return s
}

func decode(t *testing.T, raw json.RawMessage, into any) {
	t.Helper()
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatalf("mismatch: %s: %v", raw, err)
	}
}

// jsonValue is v as a reader of its JSON sees it.
func jsonValue(t *testing.T, v any) any {
	t.Helper()
	var seen any
	decode(t, []byte(jsonText(t, v)), &seen)
	return seen
}

func jsonText(t *testing.T, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func orNull[T any](v T, err error) any {
	if err != nil {
		return nil
	}
	return v
}

func emptyAsNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}
