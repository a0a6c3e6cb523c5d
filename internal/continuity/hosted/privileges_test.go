package hosted_test

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
	"github.com/rollingd/rollingd/migrations"
)

// supabase is a database as a project of Supabase has it: what the owner of the schema creates is granted to the roles of
// the API by name, and the owner is no superuser. The migrations have been applied by that owner.
func supabase(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	dsn := pgtest.EmptyDSN(t)
	ensureRoles(t, dsn)
	for _, sql := range []string{
		`do $$ begin create role rollingd_test_owner nologin bypassrls; exception when duplicate_object or unique_violation then null; end $$`,
		`do $$ begin create role rollingd_test_nobody nologin; exception when duplicate_object or unique_violation then null; end $$`,
		`grant all on schema public to rollingd_test_owner`,
		`grant usage on schema public to anon, authenticated, service_role`,
		`alter default privileges for role rollingd_test_owner in schema public
		   grant all on tables to anon, authenticated, service_role`,
		`alter default privileges for role rollingd_test_owner in schema public
		   grant all on functions to anon, authenticated, service_role`,
		`alter default privileges for role rollingd_test_owner in schema public
		   grant all on sequences to anon, authenticated, service_role`,
	} {
		execOn(t, dsn, sql)
	}
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal("the URL of the test's database cannot be read")
	}
	query := u.Query()
	query.Set("role", "rollingd_test_owner")
	u.RawQuery = query.Encode()
	owner := pgtest.Open(t, u.String())
	if _, err := pg.Migrate(t.Context(), owner, migrations.Hosted()); err != nil {
		t.Fatal(err)
	}
	return newWorld(t, dsn, pgtest.Open(t, dsn), nil)
}

// list reads a column of text.
func (w *world) list(sql string, args ...any) []string {
	w.Helper()
	return scan[[]string](w, `select coalesce(array_agg(x order by x), '{}') from (`+sql+`) as q(x)`, args...)
}

// relations are all tables and the like, and functions all functions, of the continuity plane.
const (
	relations = `(
		select oid, relname::text, relkind, relrowsecurity
		from pg_class
		where relnamespace = 'public'::regnamespace
		  and (relname like 'continuity\_%' or relname like 'rollingd%')
	) c`
	functions = `(
		select oid, proname::text, prosecdef, provolatile, coalesce(proconfig, '{}') as proconfig
		from pg_proc
		where pronamespace = 'public'::regnamespace
		  and proname like 'continuity\_%'
	) p`
)

func TestClientsHaveNoPrivileges(t *testing.T) {
	w := supabase(t)
	if n := scan[int](w, `select count(*) from `+relations+` where c.relkind = 'r'`); n != 8 {
		t.Errorf("%d tables are looked at", n)
	}
	for _, role := range []string{"anon", "authenticated", "service_role", "rollingd_test_nobody"} {
		for kind, privileges := range map[string]string{
			"r": "select, insert, update, delete, truncate, references, trigger",
			"S": "usage, select, update",
		} {
			has := map[string]string{"r": "has_table_privilege", "S": "has_sequence_privilege"}[kind]
			for privilege := range strings.SplitSeq(privileges, ", ") {
				open := w.list(fmt.Sprintf(`select relname from %s where case relkind when '%s' then %s('%s', oid, '%s') end`,
					relations, kind, has, role, privilege))
				if len(open) > 0 {
					t.Errorf("%s has %s on %v", role, privilege, open)
				}
			}
		}
		columns := w.list(fmt.Sprintf(`
			select relname from %s where relkind = 'r'
			  and has_any_column_privilege('%s', oid, 'select, insert, update, references')`, relations, role))
		if len(columns) > 0 {
			t.Errorf("%s has privileges on columns of %v", role, columns)
		}
		callable := w.list(fmt.Sprintf(`select proname from %s where has_function_privilege('%s', oid, 'execute')`, functions, role))
		want := []string{}
		if role == "service_role" {
			want = w.list(`select proname from ` + functions + ` where prosecdef`)
		}
		if !slices.Equal(callable, want) {
			t.Errorf("%s can call %v, want %v", role, callable, want)
		}
	}
}

// TestCallableFunctions are the contract's; a helper is not among them.
func TestCallableFunctions(t *testing.T) {
	w := direct(t)
	got := w.list(`select proname from ` + functions + ` where prosecdef`)
	want := []string{
		"ack_command", "ack_commands", "ack_event", "begin_catchup", "claim_commands", "claim_events", "configure_fence",
		"cutover", "enqueue", "enqueue_commands", "extend_claim", "fail_command", "fail_event", "fence_state", "find_command", "force_direct",
		"force_queue", "heartbeat", "list_commands", "list_epochs", "list_nodes", "open_epoch", "publish_event",
		"purge_acked", "purge_snapshots", "purge_unclaimed", "put_snapshot", "queue_stats", "read_snapshot", "reconcile_epoch", "redrive", "release_expired",
		"reopen", "seal", "skip", "snooze_command", "unseal",
	}
	for i := range want {
		want[i] = "continuity_" + want[i]
	}
	if !slices.Equal(got, want) {
		t.Errorf("clients call %v, want %v", got, want)
	}
}

// TestLints are those of a hosted project's advisor that apply here; each query lists offenders.
func TestLints(t *testing.T) {
	w := supabase(t)
	for name, query := range map[string]string{
		"row level security is off": `select relname from ` + relations + ` where relkind = 'r' and not relrowsecurity`,
		"a policy lets somebody in": `select tablename || ' ' || policyname from pg_policies where schemaname = 'public'`,
		"the search path can be changed": `
			select proname from ` + functions + ` where not proconfig @> array['search_path=""']`,
		"a function for clients without time limits": `
			select proname from ` + functions + `
			where prosecdef and not proconfig @> array['statement_timeout=5s', 'lock_timeout=2s']`,
		"a function for clients that PostgREST would run read-only": `
			select proname from ` + functions + ` where prosecdef and provolatile <> 'v'`,
		"two functions of one name": `select proname from ` + functions + ` group by proname having count(*) > 1`,
		"a table without a primary key": `
			select relname from ` + relations + ` where relkind = 'r'
			and not exists (select from pg_constraint k where k.conrelid = c.oid and k.contype = 'p')`,
		"a foreign key": `
			select k.conname::text from pg_constraint k join ` + relations + ` on k.conrelid = c.oid where k.contype = 'f'`,
		"a view": `select relname from ` + relations + ` where relkind in ('v', 'm')`,
		"two indexes over the same": `
			select min(i.indexrelid::regclass::text) from pg_index i join ` + relations + ` on i.indrelid = c.oid
			group by i.indrelid, i.indkey::text, coalesce(pg_get_expr(i.indpred, i.indrelid), '') having count(*) > 1`,
	} {
		if offenders := w.list(query); len(offenders) > 0 {
			t.Errorf("%s: %v", name, offenders)
		}
	}
}

// TestRolesOfTheAPI calls and reads as the roles do.
func TestRolesOfTheAPI(t *testing.T) {
	w := supabase(t)
	as := func(role, sql string) error {
		tx := w.beginImpatient()
		defer tx.Rollback(t.Context())
		if _, err := tx.Exec(t.Context(), `set local role `+role); err != nil {
			t.Fatal(err)
		}
		_, err := tx.Exec(t.Context(), sql)
		return err
	}
	const (
		call = `select public.continuity_heartbeat('n', 'edge', 'primary', 0, 'i', null)`
		read = `select * from public.continuity_commands`
		lock = `select public.continuity_lock_fence()`
	)
	for _, c := range []struct {
		role, sql string
		allowed   bool
	}{
		{"anon", call, false},
		{"anon", read, false},
		{"authenticated", call, false},
		{"authenticated", read, false},
		{"service_role", call, true},
		{"service_role", read, false},
		{"service_role", lock, false},
	} {
		err := as(c.role, c.sql)
		if (err == nil) != c.allowed || (err != nil && pg.Code(err) != "42501") {
			t.Errorf("%s: %s: %v", c.role, c.sql, err)
		}
	}
}
