// Package postgresttest stands in for PostgREST behind Supabase's gateway, for calls of functions. What it calls are the
// functions of a real Postgres, under the role that the key stands for. The tests in this folder hold it against
// Supabase's own client.
package postgresttest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/golang-jwt/jwt/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The keys of the project: both kinds of a service key, and those that clients have.
const (
	SecretKey      = "sb_secret_dev0000000000000000"
	PublishableKey = "sb_publishable_dev00000000000"
	jwtSecret      = "the secret of a project that nobody has"
)

// ServiceJWT, AnonJWT and AuthenticatedJWT are keys of the legacy kind.
var (
	ServiceJWT       = sign("service_role")
	AnonJWT          = sign("anon")
	AuthenticatedJWT = sign("authenticated")
)

func sign(role string) string {
	key, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"iss": "supabase", "role": role}).
		SignedString([]byte(jwtSecret))
	if err != nil {
		panic(err) // HS256 with a secret cannot fail.
	}
	return key
}

// Double serves /rest/v1/rpc/FUNCTION. The pool's user has to be a member of the roles.
type Double struct {
	pool *pgxpool.Pool
}

// New returns a Double over the database.
func New(pool *pgxpool.Pool) *Double {
	return &Double{pool: pool}
}

// fault is an answer other than the function's result.
type fault struct {
	status int
	body   map[string]any
}

func (f *fault) Error() string { return fmt.Sprint(f.body["code"], " ", f.body["message"]) }

// newFault is an error of PostgREST itself.
func newFault(status int, code, message string, details any) *fault {
	return &fault{status, map[string]any{"code": code, "details": details, "hint": nil, "message": message}}
}

func (d *Double) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	result, err := d.call(r)
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	if f := (*fault)(nil); errors.As(err, &f) {
		w.WriteHeader(f.status)
		_ = json.NewEncoder(w).Encode(f.body)
		return
	}
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		_ = json.NewEncoder(w).Encode(map[string]string{"message": err.Error()})
		return
	}
	_, _ = w.Write(result)
}

func (d *Double) call(r *http.Request) ([]byte, error) {
	role, err := authorize(r)
	if err != nil {
		return nil, err
	}
	name, found := strings.CutPrefix(r.URL.Path, "/rest/v1/rpc/")
	if !found || name == "" || strings.Contains(name, "/") {
		return nil, newFault(http.StatusNotFound, "PGRST125", "Invalid path specified in request URL", nil)
	}
	if r.Method != http.MethodPost {
		return nil, newFault(http.StatusMethodNotAllowed, "PGRST101", "Cannot use the "+r.Method+" method on RPC", nil)
	}
	if profile := r.Header.Get("Content-Profile"); profile != "" && profile != "public" {
		return nil, newFault(http.StatusNotAcceptable, "PGRST106", "Invalid schema: "+profile,
			"Only the following schemas are exposed: public")
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	args := map[string]json.RawMessage{}
	if len(body) == 0 {
		body = []byte("{}")
	}
	if json.Unmarshal(body, &args) != nil {
		return nil, newFault(http.StatusBadRequest, "PGRST102", "Empty or invalid json", nil)
	}
	return d.execute(r, role, name, slices.AppendSeq([]string{}, maps.Keys(args)), body)
}

// authorize is the gateway, which knows the keys, and then PostgREST, which knows JWTs.
func authorize(r *http.Request) (string, error) {
	key := r.Header.Get("Apikey")
	roles := map[string]string{
		SecretKey:        "service_role",
		PublishableKey:   "anon",
		ServiceJWT:       "service_role",
		AnonJWT:          "anon",
		AuthenticatedJWT: "anon", // A user's token is no key of the project.
	}
	role, known := roles[key]
	if !known {
		return "", &fault{http.StatusUnauthorized, map[string]any{"message": "Invalid API key"}}
	}
	bearer, present := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !present {
		return role, nil
	}
	claims := jwt.MapClaims{}
	_, err := jwt.ParseWithClaims(bearer, claims, func(*jwt.Token) (any, error) { return []byte(jwtSecret), nil },
		jwt.WithValidMethods([]string{"HS256"}))
	if err != nil {
		return "", newFault(http.StatusUnauthorized, "PGRST301", "Expected 3 parts in JWT; got 1", nil)
	}
	role, _ = claims["role"].(string)
	return role, nil
}

// parameter is one of a function's.
var parameter = regexp.MustCompile(`^(\w+) (.+)$`)

// execute finds the function by the names of its arguments, and calls it as PostgREST does: in one transaction that is
// READ COMMITTED, under the role, with the function's own time limit set before the call.
func (d *Double) execute(r *http.Request, role, name string, args []string, body []byte) ([]byte, error) {
	ctx := r.Context()
	tx, err := d.pool.Begin(ctx)
	if err != nil {
		return nil, newFault(http.StatusServiceUnavailable, "PGRST001", "Database client error. Retrying the connection.", nil)
	}
	defer tx.Rollback(ctx)
	slices.Sort(args)
	var declared string
	var config []string
	err = tx.QueryRow(ctx, `
		select pg_get_function_arguments(p.oid),
		       coalesce(p.proconfig, '{}')
		from pg_proc p
		where p.pronamespace = 'public'::regnamespace
		  and p.proname = $1
		  and coalesce((select array_agg(a order by a) from unnest(p.proargnames) a), '{}') = $2::text[]`,
		name, args).Scan(&declared, &config)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, newFault(http.StatusNotFound, "PGRST202",
			"Could not find the function public."+name+"("+strings.Join(args, ", ")+") in the schema cache", nil)
	}
	if err != nil {
		return nil, err
	}
	settings := map[string]string{"role": role}
	for _, setting := range config {
		if key, value, _ := strings.Cut(setting, "="); key == "statement_timeout" {
			settings[key] = value
		}
	}
	for key, value := range settings {
		if _, err := tx.Exec(ctx, `select set_config($1, $2, true)`, key, value); err != nil {
			return nil, postgresFault(err, role)
		}
	}
	query := `select to_json(public.` + pgx.Identifier{name}.Sanitize() + `())`
	values := []any{}
	if declared != "" {
		var columns, passed []string
		for _, text := range strings.Split(declared, ", ") {
			p := parameter.FindStringSubmatch(text)
			columns = append(columns, p[1]+" "+p[2])
			passed = append(passed, p[1]+" := a."+p[1])
		}
		query = `select to_json(f) from json_to_record($1::json) as a(` + strings.Join(columns, ", ") + `),
			lateral public.` + pgx.Identifier{name}.Sanitize() + `(` + strings.Join(passed, ", ") + `) as f`
		values = append(values, string(body))
	}
	var result []byte
	if err := tx.QueryRow(ctx, query, values...).Scan(&result); err != nil {
		return nil, postgresFault(err, role)
	}
	if err := tx.Commit(ctx); err != nil {
		return nil, postgresFault(err, role)
	}
	if result == nil {
		result = []byte("null")
	}
	return result, nil
}

// postgresFault hands an error of Postgres on, with the status that PostgREST's documentation gives for its code.
func postgresFault(err error, role string) error {
	e := (*pgconn.PgError)(nil)
	if !errors.As(err, &e) {
		return newFault(http.StatusServiceUnavailable, "PGRST001", "Database client error. Retrying the connection.", nil)
	}
	status := http.StatusBadRequest
	for _, s := range statuses {
		if strings.HasPrefix(e.Code, s.prefix) {
			status = s.status
			break
		}
	}
	if e.Code == "42501" && role == "anon" {
		status = http.StatusUnauthorized
	}
	orNull := func(text string) any {
		if text == "" {
			return nil
		}
		return text
	}
	return &fault{status, map[string]any{
		"code": e.Code, "details": orNull(e.Detail), "hint": orNull(e.Hint), "message": e.Message,
	}}
}

// statuses by SQLSTATE; the first that fits counts.
var statuses = []struct {
	prefix string
	status int
}{
	{"08", 503}, {"09", 500}, {"0L", 403}, {"0P", 403}, {"23503", 409}, {"23505", 409}, {"25006", 405}, {"25", 500},
	{"28", 403}, {"2D", 500}, {"38", 500}, {"39", 500}, {"3B", 500}, {"40", 500}, {"53400", 500}, {"53", 503},
	{"54", 500}, {"55", 500}, {"57P01", 503}, {"57", 500}, {"58", 500}, {"F0", 500}, {"HV", 500}, {"P0001", 400},
	{"P0", 500}, {"XX", 500}, {"42883", 404}, {"42P01", 404}, {"42P17", 500}, {"42501", 403},
}
