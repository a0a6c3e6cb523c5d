package manifest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/manifest"
)

func TestPublishWritesOnlyWhatDiffers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.lease()
	if !w.mustPublish(first).Written {
		t.Error("the first manifest was not written")
	}
	if m := w.check(); m.Generation != first.Token {
		t.Errorf("generation %d, token %d", m.Generation, first.Token)
	}
	rev := w.stored()["_rev"]
	if w.mustPublish(w.lease()).Written {
		t.Error("the same content was written again")
	}
	if got := w.stored()["_rev"]; got != rev {
		t.Errorf("revision %v became %v", rev, got)
	}
}

func TestPublishRepairsDamage(t *testing.T) {
	t.Parallel()
	damages := map[string]func(fields map[string]any){
		"another day":                   func(f map[string]any) { f["currentBusinessDay"], f["currentDayDb"] = "20261129", "daily_20261129" },
		"no day":                        func(f map[string]any) { f["currentBusinessDay"], f["currentDayDb"] = nil, nil },
		"an overlay less":               func(f map[string]any) { f["overlays"] = f["overlays"].([]any)[:1] },
		"overlays in order":             func(f map[string]any) { o := f["overlays"].([]any); o[0], o[1] = o[1], o[0] },
		"an overlay's field":            func(f map[string]any) { f["overlays"].([]any)[0].(map[string]any)["note"] = 1 },
		"a field too many":              func(f map[string]any) { f["note"] = 1 },
		"a field too few":               func(f map[string]any) { delete(f, "updatedAt") },
		"another type":                  func(f map[string]any) { f["type"] = "order" },
		"another schema":                func(f map[string]any) { f["schemaVersion"] = 2 },
		"generation as text":            func(f map[string]any) { f["generation"] = "7" },
		"generation lost":               func(f map[string]any) { delete(f, "generation") },
		"an old generation":             func(f map[string]any) { f["generation"], f["note"] = 1, 1 },
		"nothing left":                  func(f map[string]any) { clear(f) },
		"deleted":                       func(f map[string]any) { clear(f); f["_deleted"] = true },
		"a generation that nobody drew": func(f map[string]any) { f["generation"], f["note"] = 9007199254740991, 1 },
		"a generation that nobody drew, all else as it is": func(f map[string]any) { f["generation"] = 900719925474099 },
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.mustPublish(w.lease())
			fields := w.stored()
			damage(fields)
			delete(fields, "_rev")
			w.raw(fields)
			lease := w.lease()
			if !w.mustPublish(lease).Written {
				t.Error("the damage was not repaired")
			}
			if m := w.check(); m.Generation != lease.Token {
				t.Errorf("generation %d, token %d", m.Generation, lease.Token)
			}
		})
	}
}

func TestPublishSettlesConflicts(t *testing.T) {
	t.Parallel()
	for name, rev := range map[string]string{"a loser": "1-0", "a winner": "9-f"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.mustPublish(w.lease())
			fields := w.stored()
			fields["_rev"], fields["overlays"] = rev, []any{}
			leaf, err := json.Marshal(fields)
			if err != nil {
				t.Fatal(err)
			}
			refusals, err := w.couch.Insert(t.Context(), w.core, [][]byte{leaf})
			if err != nil || len(refusals) > 0 {
				t.Fatal(err, refusals)
			}
			w.mustPublish(w.lease())
			w.check()
			if w.mustPublish(w.lease()).Written {
				t.Error("a settled conflict is written again")
			}
		})
	}
}

func TestPublishRestoresTheDesignDocument(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustPublish(w.lease())
	if err := w.couch.PutDesign(t.Context(), w.core, manifest.DesignID, `function () {}`); err != nil {
		t.Fatal(err)
	}
	w.mustPublish(w.lease())
	w.check()
	if err := w.couch.DropDesign(t.Context(), w.core, manifest.DesignID); err != nil {
		t.Fatal(err)
	}
	w.mustPublish(w.lease())
	w.check()
}

// A run that was overtaken changes nothing, whether it notices by its lease, by
// the generation in core, or by CouchDB's own refusal.
func TestOvertakenRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := w.lease()
	w.mustPublish(w.lease())
	if _, err := w.publish(w.couch, old); !errors.Is(err, fence.ErrLost) {
		t.Errorf("without its lease: %v", err)
	}

	// Paused after it has read the ledger: the newer run comes in between.
	slow := w.lease()
	w.damage()
	c := hooked{w.couch, func() { w.mustPublish(w.lease()) }}
	if _, err := w.publish(&c, slow); !errors.Is(err, daydb.ErrStale) {
		t.Errorf("paused before it read core: %v", err)
	}
	w.check()

	// What CouchDB itself says to an older generation.
	before := w.stored()
	older := w.stored()
	older["generation"] = before["generation"].(float64) - 1
	if err := w.couch.Put(t.Context(), w.core, contracts.ManifestID, older); !errors.Is(err, couch.ErrForbidden) {
		t.Errorf("an older generation: %v", err)
	}
	if err := w.couch.DeleteDoc(t.Context(), w.core, contracts.ManifestID, before["_rev"].(string)); !errors.Is(err, couch.ErrForbidden) {
		t.Errorf("a deletion: %v", err)
	}
	w.check()
}

// damage makes the next Publish write.
func (w *world) damage() {
	w.Helper()
	fields := w.stored()
	fields["note"] = 1
	if err := w.couch.Put(w.Context(), w.core, contracts.ManifestID, fields); err != nil {
		w.Fatal(err)
	}
}

// hooked calls a function once, before core is read the first time.
type hooked struct {
	*couch.Client
	before func()
}

func (h *hooked) Revisions(ctx context.Context, db string, refs []couch.Ref, history bool) ([]couch.Revision, error) {
	if before := h.before; before != nil {
		h.before = nil
		before()
	}
	return h.Client.Revisions(ctx, db, refs, history)
}

// A device has the role of its restaurant, and may write anything but the
// manifest and design documents.
func TestDeviceCannotWriteTheManifest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustPublish(w.lease())
	name := "till-" + w.env
	if err := w.couch.Put(t.Context(), "_users", "org.couchdb.user:"+name, map[string]any{
		"name": name, "password": "x", "roles": []string{r1.Role()}, "type": "user",
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		raw, err := w.couch.Doc(ctx, "_users", "org.couchdb.user:"+name, "")
		if err != nil {
			t.Fatal(err)
		}
		var user struct {
			Rev string `json:"_rev"`
		}
		if err := json.Unmarshal(raw, &user); err != nil {
			t.Fatal(err)
		}
		if err := w.couch.DeleteDoc(ctx, "_users", "org.couchdb.user:"+name, user.Rev); err != nil {
			t.Error(err)
		}
	})
	fields := w.stored()
	fields["generation"] = fields["generation"].(float64) + 1
	manifestJSON, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	fields["_rev"] = "9-f"
	leaf, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, method, path, body string
		refused                  bool
	}{
		{"a product", http.MethodPut, "/p1", `{"type":"product"}`, false},
		{"the manifest", http.MethodPut, "/day_manifest", string(manifestJSON), true},
		{"its deletion", http.MethodDelete, "/day_manifest?rev=" + w.stored()["_rev"].(string), "", true},
		{"a leaf of it", http.MethodPost, "/_bulk_docs", `{"new_edits":false,"docs":[` + string(leaf) + `]}`, true},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tt.method, w.couch.Addr()+"/"+w.core+tt.path, bytes.NewBufferString(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		req.SetBasicAuth(name, "x")
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var answer bytes.Buffer
		_, err = answer.ReadFrom(res.Body)
		_ = res.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		refused := bytes.Contains(answer.Bytes(), []byte("day_manifest is written by the server alone"))
		if refused != tt.refused || !refused && res.StatusCode >= 300 {
			t.Errorf("%s: %d %s", tt.name, res.StatusCode, answer.String())
		}
	}
	w.check()
}

// Every request of a publication is broken, alone; the next one finishes.
func TestEveryRequestBroken(t *testing.T) {
	t.Parallel()
	scenarios := map[string]func(w *world){
		"first": func(*world) {},
		"next": func(w *world) {
			w.mustPublish(w.lease())
			w.damage()
		},
		"conflict": func(w *world) {
			w.mustPublish(w.lease())
			fields := w.stored()
			fields["_rev"] = "9-f"
			leaf, err := json.Marshal(fields)
			if err != nil {
				w.Fatal(err)
			}
			if _, err := w.couch.Insert(w.Context(), w.core, [][]byte{leaf}); err != nil {
				w.Fatal(err)
			}
		},
		"forged": func(w *world) {
			w.mustPublish(w.lease())
			fields := w.stored()
			fields["generation"] = 9007199254740991
			w.raw(fields)
		},
	}
	for name, prepare := range scenarios {
		rehearsal, counter := newWorld(t), &breaker{}
		prepare(rehearsal)
		if _, err := rehearsal.publish(rehearsal.client(counter), rehearsal.lease()); err != nil {
			t.Fatal(err)
		}
		for nth := 1; nth <= counter.n; nth++ {
			for _, lost := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d/lost answer %v", name, nth, lost), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t)
					prepare(w)
					_, err := w.publish(w.client(&breaker{nth: nth, lost: lost}), w.lease())
					if err == nil {
						w.check() // It has settled the unknown outcome itself.
					}
					w.mustPublish(w.lease())
					w.check()
				})
			}
		}
	}
}

// breaker breaks the nth request: it never arrives, or its answer is lost.
type breaker struct {
	nth  int
	lost bool
	n    int
}

func (b *breaker) RoundTrip(req *http.Request) (*http.Response, error) {
	b.n++
	if b.n == b.nth && !b.lost {
		return nil, errors.New("broken on purpose")
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if b.n == b.nth && err == nil {
		_ = res.Body.Close()
		return nil, errors.New("broken on purpose")
	}
	return res, err
}
