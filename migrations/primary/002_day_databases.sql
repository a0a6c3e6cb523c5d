-- The ledger of day databases: one row per restaurant and business day, for ever, and an
-- append-only history of its moves. The trigger holds the same table of moves as the code, and
-- what each move needs, so that an UPDATE typed by hand cannot skip a lock.
-- Locks: creates only. To go back: restore the backup taken before the upgrade.

-- +goose Up

create table day_databases (
  id bigint generated always as identity,
  company_id text not null,
  restaurant_id text not null,
  business_day date not null,
  db_name text not null,
  state text not null default 'PREWARMED',
  state_since timestamptz not null default now(),
  fencing_token bigint not null,

  -- Identity of the physical database: our marker in its _security, chosen before it is created,
  -- and CouchDB's own creation time (seconds, as text), known once it was created and secured.
  generation uuid not null default gen_random_uuid(),
  instance_start_time text,

  -- A legal hold: nothing destructive happens while it is set.
  hold_reason text,
  hold_by text,
  hold_since timestamptz,

  -- seal_started_at is written before CouchDB is touched, sealed_at when the seal was read back.
  seal_started_at timestamptz,
  sealed_at timestamptz,

  -- The proof of the last complete comparison, byte by byte, and what CouchDB said then.
  proof_sha256 bytea,
  proof_documents bigint,
  proof_at timestamptz,
  proof_state jsonb,

  drop_intended_at timestamptz,

  prewarmed_at timestamptz not null default now(),
  activated_at timestamptz,
  drained_at timestamptz,
  archived_at timestamptz,
  droppable_at timestamptz,
  dropped_at timestamptz,

  constraint day_databases_pkey primary key (id),
  constraint day_databases_db_name_key unique (db_name),
  constraint day_databases_day_key unique (company_id, restaurant_id, business_day),
  constraint day_databases_restaurant_fkey foreign key (company_id, restaurant_id)
    references restaurants (company_id, restaurant_id),
  constraint day_databases_state check (state in
    ('PREWARMED', 'ACTIVE', 'DRAINING', 'ARCHIVED', 'DROPPABLE', 'DROPPED')),
  constraint day_databases_name_is_day check
    (db_name like '%\_' || company_id || '\_' || restaurant_id || '\_daily\_' || to_char(business_day, 'YYYYMMDD')),
  constraint day_databases_hold_whole check (num_nonnulls(hold_reason, hold_by, hold_since) in (0, 3)),
  constraint day_databases_proof_whole check
    (num_nonnulls(proof_sha256, proof_documents, proof_at, proof_state) in (0, 4))
);

create unique index day_databases_one_active on day_databases (company_id, restaurant_id)
  where state = 'ACTIVE';
create index day_databases_by_state on day_databases (state, business_day);

-- +goose StatementBegin
create function day_databases_check() returns trigger
language plpgsql as $$
declare
  latest record;
begin
  if tg_op = 'DELETE' then
    raise exception 'the ledger keeps every day database for ever' using errcode = 'RD003';
  end if;
  if tg_op = 'INSERT' then
    if new.state <> 'PREWARMED' then
      raise exception 'a day database begins PREWARMED, not %', new.state using errcode = 'RD002';
    end if;
    return new;
  end if;

  if new.fencing_token < old.fencing_token then
    raise exception 'fencing token % is behind %', new.fencing_token, old.fencing_token
      using errcode = 'RD001', table = tg_table_name;
  end if;
  if (new.company_id, new.restaurant_id, new.business_day, new.db_name)
     is distinct from (old.company_id, old.restaurant_id, old.business_day, old.db_name)
     or new.generation <> old.generation
     or (old.instance_start_time is not null and new.instance_start_time is distinct from old.instance_start_time) then
    raise exception 'the identity of a day database never changes' using errcode = 'RD003';
  end if;

  if new.drop_intended_at is not null and new.drop_intended_at is distinct from old.drop_intended_at then
    if new.state <> 'DROPPABLE' or new.sealed_at is null or new.proof_sha256 is null or new.hold_reason is not null
       or not exists (select from company_feature_flags
                      where company_id = new.company_id and rolling_db and rolling_db_drop) then
      raise exception 'a drop is intended only for a sealed and proven day, without a hold, of a company whose rollingDbDrop is on'
        using errcode = 'RD002';
    end if;
  end if;

  if new.state = old.state then
    return new;
  end if;

  if (old.state, new.state) not in (
      ('PREWARMED', 'ACTIVE'),
      ('ACTIVE', 'DRAINING'),
      ('DRAINING', 'ARCHIVED'),
      ('ARCHIVED', 'DROPPABLE'),
      ('DROPPABLE', 'DROPPED'),
      ('ARCHIVED', 'DRAINING'),
      ('DROPPABLE', 'DRAINING')) then
    raise exception 'a day database does not move from % to %', old.state, new.state using errcode = 'RD002';
  end if;

  select lock1_green, lock2_green, lock3_green, eligible into latest
  from guard_evaluations where day_database_id = new.id order by id desc limit 1;

  if new.state = 'ACTIVE' and new.instance_start_time is null then
    raise exception 'a day becomes ACTIVE only after its database was created and secured' using errcode = 'RD002';
  elsif new.state = 'ARCHIVED' and not coalesce(latest.lock1_green and latest.lock2_green, false) then
    raise exception 'ARCHIVED needs locks 1 and 2 green in the last evaluation' using errcode = 'RD002';
  elsif new.state = 'DROPPABLE' then
    if not coalesce(latest.lock1_green and latest.lock2_green and latest.lock3_green and latest.eligible, false)
       or new.sealed_at is null or new.hold_reason is not null
       or not exists (select from company_feature_flags
                      where company_id = new.company_id and rolling_db and rolling_db_drop) then
      raise exception 'DROPPABLE needs three green locks, a seal, no hold, and rollingDbDrop on' using errcode = 'RD002';
    end if;
  elsif new.state = 'DROPPED' and (old.drop_intended_at is null or new.proof_sha256 is null) then
    raise exception 'DROPPED needs a proof and a committed intention' using errcode = 'RD002';
  end if;
  return new;
end
$$;
-- +goose StatementEnd

create trigger day_databases_check before insert or update or delete on day_databases
  for each row execute function day_databases_check();

create table day_database_transitions (
  id bigint generated always as identity,
  day_database_id bigint not null,
  from_state text,
  to_state text not null,
  event text not null,
  actor text not null,
  run_id bigint,
  token bigint not null,
  evidence jsonb not null default '{}',
  at timestamptz not null default now(),
  constraint day_database_transitions_pkey primary key (id),
  constraint day_database_transitions_day_fkey foreign key (day_database_id) references day_databases (id)
);
create index day_database_transitions_by_day on day_database_transitions (day_database_id, id);
create trigger day_database_transitions_append_only before update or delete on day_database_transitions
  for each row execute function refuse_change();

-- +goose StatementBegin
-- No move without its line in the history: the check runs at commit, so that the move and the
-- line may be written in either order within the transaction.
create function day_databases_audited() returns trigger
language plpgsql as $$
begin
  if not exists (select from day_database_transitions
                 where day_database_id = new.id and to_state = new.state
                   and token = new.fencing_token and at = now()) then
    raise exception 'the move of % to % has no line in day_database_transitions', new.db_name, new.state
      using errcode = 'RD002';
  end if;
  return null;
end
$$;
-- +goose StatementEnd

create constraint trigger day_databases_inserts_audited after insert on day_databases
  deferrable initially deferred for each row execute function day_databases_audited();
create constraint trigger day_databases_moves_audited after update of state on day_databases
  deferrable initially deferred for each row when (old.state is distinct from new.state)
  execute function day_databases_audited();

-- Every look at a day, with what was seen, so that nobody has to look again to explain it.
create table guard_evaluations (
  id bigint generated always as identity,
  day_database_id bigint not null,
  run_id bigint,
  token bigint not null,
  at timestamptz not null default now(),
  -- The last time that a look found the database as this evaluation had left it.
  confirmed_at timestamptz not null default now(),
  -- The business day that counted as today.
  as_of date not null,
  lock1_green boolean not null,
  lock2_green boolean not null,
  lock3_green boolean not null,
  eligible boolean not null,
  -- Reasons, counts, first few ids; the shapes are the guard's.
  evidence jsonb not null,
  -- What CouchDB said, to tell the next time whether anything has changed.
  couch_state jsonb not null,
  constraint guard_evaluations_pkey primary key (id),
  constraint guard_evaluations_day_fkey foreign key (day_database_id) references day_databases (id)
);
create index guard_evaluations_by_day on guard_evaluations (day_database_id, id desc);

-- A dropped day that was rebuilt from the archive. Such a database is held by its nature: its
-- name is no day's, so nothing that drops ever touches it.
create table restored_databases (
  id bigint generated always as identity,
  day_database_id bigint not null,
  db_name text not null,
  state text not null default 'restoring',
  documents bigint not null default 0,
  reason text not null,
  actor text not null,
  created_at timestamptz not null default now(),
  finished_at timestamptz,
  constraint restored_databases_pkey primary key (id),
  constraint restored_databases_db_name_key unique (db_name),
  constraint restored_databases_state check (state in ('restoring', 'restored', 'failed')),
  constraint restored_databases_day_fkey foreign key (day_database_id) references day_databases (id)
);
