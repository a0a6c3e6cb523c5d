package couch

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/dop251/goja"

	"github.com/rollingd/rollingd/internal/devstack/couch/jsontext"
	"github.com/rollingd/rollingd/internal/devstack/couch/store"
)

// validationTimeout is how long one validation function may run.
const validationTimeout = 5 * time.Second

// check returns what judges the edits of this request in a transaction: design
// documents need an administrator of the database, everything else has to
// pass each validate_doc_update function, whoever writes and however.
func (q *request) check(tx *store.Tx) store.Check {
	return func(e *store.Edit, old *store.Doc) error {
		if strings.HasPrefix(e.ID, store.DesignPrefix) {
			return q.mustAdminister(tx)
		}
		v, err := q.validators.of(tx)
		if err != nil || v == nil {
			return err
		}
		return v.validate(editAsJSON(e), docAsJSON(old), q.userContextFor(q.db), rawSecurity(tx))
	}
}

// editAsJSON shows an edit to a validation function. As in CouchDB its _rev is
// the revision that it edits, or the one that a replicator brings.
func editAsJSON(e *store.Edit) string {
	out := append([]byte(`{"_id":`), jsontext.AppendString(nil, e.ID)...)
	if len(e.Revs) > 0 {
		out = append(out, `,"_rev":"`...)
		out = append(appendRev(out, e.Revs[0]), '"')
	}
	if len(e.Body) > 0 {
		out = append(append(out, ','), e.Body...)
	}
	if e.Deleted {
		out = append(out, `,"_deleted":true`...)
	}
	if len(e.Revs) > 0 {
		out = appendRevisions(out, e.Revs)
	}
	atts := make([]store.Attachment, len(e.Atts))
	for i, a := range e.Atts {
		atts[i] = a.Attachment
	}
	return string(append(appendStubs(out, atts), '}'))
}

func docAsJSON(doc *store.Doc) string {
	if doc == nil {
		return "null"
	}
	out := append([]byte(`{"_id":`), jsontext.AppendString(nil, doc.ID)...)
	out = append(out, `,"_rev":"`...)
	out = append(appendRev(out, doc.Rev), '"')
	if len(doc.Body) > 0 {
		out = append(append(out, ','), doc.Body...)
	}
	if doc.Deleted {
		out = append(out, `,"_deleted":true`...)
	}
	out = appendRevisions(out, doc.Path)
	return string(append(appendStubs(out, doc.Atts), '}'))
}

// validators keeps the compiled validation functions of the databases that
// were written to lately.
type validators struct {
	mu    sync.Mutex
	cache map[[8]byte]*validator
}

// maxValidators bounds the JavaScript heaps that are kept.
const maxValidators = 128

func newValidators() *validators { return &validators{cache: map[[8]byte]*validator{}} }

// of returns the functions of a database as of a transaction, nil if it has
// none.
func (vs *validators) of(tx *store.Tx) (*validator, error) {
	incarnation, version := tx.Meta().Incarnation, tx.Meta().Designs
	vs.mu.Lock()
	v, ok := vs.cache[incarnation]
	vs.mu.Unlock()
	if !ok || v.version != version {
		docs, err := tx.DesignDocs()
		if err != nil {
			return nil, err
		}
		v = newValidator(version, docs)
		vs.mu.Lock()
		if len(vs.cache) >= maxValidators {
			clear(vs.cache)
		}
		vs.cache[incarnation] = v
		vs.mu.Unlock()
	}
	if len(v.functions) == 0 && v.broken == nil {
		return nil, nil
	}
	return v, nil
}

// validator runs the functions of one database.
type validator struct {
	version uint64
	broken  error // a function that does not compile refuses everything

	mu        sync.Mutex // the JavaScript heap has one user at a time
	vm        *goja.Runtime
	parse     goja.Callable
	functions []goja.Callable
}

func newValidator(version uint64, docs []store.Doc) *validator {
	v := &validator{version: version}
	for _, doc := range docs {
		source := jsontext.Get(asObject(doc.Body), "validate_doc_update")
		if !jsontext.IsString(source) {
			continue
		}
		if v.vm == nil {
			v.vm = newRuntime()
			v.parse, _ = goja.AssertFunction(v.vm.Get("JSON").ToObject(v.vm).Get("parse"))
		}
		value, err := v.vm.RunString("(" + jsontext.Unquote(source) + "\n)")
		function, ok := goja.AssertFunction(value)
		if err != nil || !ok {
			v.broken = &httpError{http.StatusInternalServerError, "compilation_error", fmt.Sprintf("%s: validate_doc_update does not compile", doc.ID)}
			continue
		}
		v.functions = append(v.functions, function)
	}
	return v
}

// newRuntime has the functions that CouchDB offers to validation functions.
func newRuntime() *goja.Runtime {
	vm := goja.New()
	_ = vm.Set("isArray", vm.Get("Array").ToObject(vm).Get("isArray"))
	_ = vm.Set("toJSON", vm.Get("JSON").ToObject(vm).Get("stringify"))
	_ = vm.Set("log", func(goja.Value) {})
	return vm
}

// validate runs every function on a document; all arguments are JSON. The
// first that throws decides: {forbidden} and {unauthorized} are refusals,
// anything else is a fault of the function and a 500, as in CouchDB.
func (v *validator) validate(doc, old string, userCtx, security []byte) error {
	if v.broken != nil {
		return v.broken
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	var args []goja.Value
	for _, text := range []string{doc, old, string(userCtx), string(security)} {
		value, err := v.parse(goja.Undefined(), v.vm.ToValue(text))
		if err != nil {
			return fmt.Errorf("validate: %w", err)
		}
		args = append(args, value)
	}
	timer := time.AfterFunc(validationTimeout, func() { v.vm.Interrupt("timeout") })
	defer func() {
		timer.Stop()
		v.vm.ClearInterrupt()
	}()
	for _, function := range v.functions {
		if _, err := function(goja.Undefined(), args...); err != nil {
			return v.thrown(err)
		}
	}
	return nil
}

func (v *validator) thrown(err error) error {
	var exception *goja.Exception
	if !errors.As(err, &exception) {
		return &httpError{http.StatusInternalServerError, "os_process_error", "validation took too long"}
	}
	if object, ok := exception.Value().(*goja.Object); ok {
		if reason := object.Get("forbidden"); reason != nil {
			return forbidden(reason.String())
		}
		if reason := object.Get("unauthorized"); reason != nil {
			return unauthorized(reason.String())
		}
		if name := object.Get("name"); name != nil {
			return &httpError{http.StatusInternalServerError, name.String(), "{[]}"}
		}
	}
	return &httpError{http.StatusInternalServerError, "unknown_error", exception.Value().String()}
}
