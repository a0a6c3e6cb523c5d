-- The transport of the continuity plane: commands that wait for the primary, snapshots to read from while it is away,
-- events that it mirrors, and what each node reports. The primary alone turns a command into state.
--
-- Everything goes through functions, by which the rules hold for every client; the tables are closed to all roles that
-- an API serves. A function that clients call is SECURITY DEFINER and granted to service_role; a helper is neither.
-- Functions raise SQLSTATE RC0xx: 001 stale epoch, 002 gate closed, 003 sealed, 004 key reused, 005 invalid, 006 payload
-- too large, 007 lost claim, 008 not yet, 009 unknown command; DETAIL is for machines.
--
-- Applies by goose, by psql and by Supabase's tooling, also twice. 047 has to follow: without its fence nothing is
-- enqueued or claimed. Locks: creates only. To go back: leave it in place and switch the phase off; commands are kept.

-- +goose Up

-- +goose StatementBegin
do $$
begin
  if to_regclass('public.continuity_commands') is not null and not exists (
    select from pg_attribute
    where attrelid = to_regclass('public.continuity_commands') and attname = 'payload_hash'
  ) then
    raise exception 'public.continuity_commands exists in another form: move it away first';
  end if;
end
$$;
-- +goose StatementEnd

-- One token for each claim, never one for each worker: a worker that comes back from a pause has an old one.
create sequence if not exists public.continuity_claim_tokens;

-- What to do with an aggregate whose command is dead: hold what follows until a person decides, or skip the command. A
-- type that is not listed here is unknown: it is taken in, but nobody is given it.
create table if not exists public.continuity_command_types (
  command_type text not null,
  on_dead text not null default 'hold',
  constraint continuity_command_types_pkey primary key (command_type),
  constraint continuity_command_types_on_dead check (on_dead in ('hold', 'skip'))
);

insert into public.continuity_command_types (command_type, on_dead) values
  ('order.create', 'hold'),
  ('order.update_status', 'skip'),
  ('order.confirm_payment', 'hold'),
  ('order.cancel', 'hold'),
  ('payment.record', 'hold'),
  ('cashflow.record', 'skip')
on conflict do nothing;

create table if not exists public.continuity_commands (
  -- The order of commands of one aggregate: drawn under its lock, so it is the order of their commits as well.
  queue_sequence bigint generated always as identity,
  command_id uuid not null,
  idempotency_key text not null,
  command_type text not null,
  aggregate_type text not null,
  aggregate_id text not null,
  payload jsonb not null,
  -- Of type, aggregate and payload: what a key stands for.
  payload_hash bytea not null,
  -- The client's clock: metadata, nothing orders by it.
  occurred_at timestamptz,
  expected_version bigint,
  epoch bigint not null,
  status text not null default 'pending',
  -- Those that failed. A snooze is none.
  attempts int not null default 0,
  max_attempts int not null default 8,
  -- Until when it waits after a failure or a snooze; null while it does not. The time of an enqueue would not do here: it
  -- may lie after the beginning of a transaction that has waited for the enqueue, and sees its row.
  available_at timestamptz,
  claimed_by text,
  claimed_until timestamptz,
  -- Of the claim that holds, or of the one that settled the command; null once a claim was swept.
  claim_token bigint,
  last_error text,
  enqueued_at timestamptz not null default now(),
  settled_at timestamptz,
  -- A person has decided to go on without a dead command.
  skipped_at timestamptz,
  skipped_by text,
  skip_reason text,
  constraint continuity_commands_pkey primary key (queue_sequence),
  constraint continuity_commands_command_id_key unique (command_id),
  constraint continuity_commands_idempotency_key_key unique (idempotency_key),
  constraint continuity_commands_status check (status in ('pending', 'claimed', 'acked', 'dead')),
  constraint continuity_commands_payload check (octet_length(payload::text) <= 65536),
  -- What looks for one command by its key asks for claimed_until: asked for the status, with the statistics of an empty
  -- queue, it would read a partial index from end to end.
  constraint continuity_commands_claimed check ((status = 'claimed') = (claimed_until is not null)),
  constraint continuity_commands_settled check ((status = 'acked' or status = 'dead') = (settled_at is not null)),
  constraint continuity_commands_skip_whole check (num_nonnulls(skipped_at, skipped_by, skip_reason) in (0, 3)),
  constraint continuity_commands_skipped_dead check (skipped_at is null or status = 'dead')
);
create index if not exists continuity_commands_ready on public.continuity_commands (queue_sequence)
  where status = 'pending';
create index if not exists continuity_commands_open
  on public.continuity_commands (aggregate_type, aggregate_id, queue_sequence)
  where status in ('pending', 'claimed');
create index if not exists continuity_commands_lease on public.continuity_commands (claimed_until)
  where status = 'claimed';
create index if not exists continuity_commands_dead
  on public.continuity_commands (aggregate_type, aggregate_id, queue_sequence)
  where status = 'dead';
create index if not exists continuity_commands_acked on public.continuity_commands (settled_at)
  where status = 'acked';
create index if not exists continuity_commands_epoch on public.continuity_commands (epoch, status);

create table if not exists public.continuity_snapshots (
  snapshot_key text not null,
  payload jsonb not null,
  version bigint not null,
  published_at timestamptz not null default now(),
  constraint continuity_snapshots_pkey primary key (snapshot_key),
  constraint continuity_snapshots_payload check (octet_length(payload::text) <= 262144)
);

create table if not exists public.continuity_outbox (
  outbox_sequence bigint generated always as identity,
  event_id uuid not null,
  event_type text not null,
  aggregate_type text not null,
  aggregate_id text not null,
  payload jsonb not null,
  payload_hash bytea not null,
  epoch bigint not null,
  status text not null default 'pending',
  attempts int not null default 0,
  max_attempts int not null default 8,
  available_at timestamptz,
  claimed_by text,
  claimed_until timestamptz,
  claim_token bigint,
  last_error text,
  published_at timestamptz not null default now(),
  settled_at timestamptz,
  constraint continuity_outbox_pkey primary key (outbox_sequence),
  constraint continuity_outbox_event_id_key unique (event_id),
  constraint continuity_outbox_status check (status in ('pending', 'claimed', 'delivered', 'dead')),
  constraint continuity_outbox_payload check (octet_length(payload::text) <= 65536),
  constraint continuity_outbox_claimed check ((status = 'claimed') = (claimed_until is not null)),
  constraint continuity_outbox_settled check ((status = 'delivered' or status = 'dead') = (settled_at is not null))
);
create index if not exists continuity_outbox_ready on public.continuity_outbox (outbox_sequence)
  where status = 'pending';
create index if not exists continuity_outbox_open
  on public.continuity_outbox (aggregate_type, aggregate_id, outbox_sequence)
  where status in ('pending', 'claimed');
create index if not exists continuity_outbox_lease on public.continuity_outbox (claimed_until)
  where status = 'claimed';
create index if not exists continuity_outbox_delivered on public.continuity_outbox (settled_at)
  where status = 'delivered';
create index if not exists continuity_outbox_dead on public.continuity_outbox (outbox_sequence)
  where status = 'dead';

create table if not exists public.continuity_replication_state (
  node_id text not null,
  role text not null,
  mode text not null,
  instance text not null,
  last_command_seq bigint not null default 0,
  last_snapshot_at timestamptz,
  last_drain_at timestamptz,
  last_seen_at timestamptz not null default now(),
  -- How often a primary was heard, whatever its name was then. The primary remembers it: a lower number is that of a
  -- database that was restored from a backup.
  beats bigint not null default 0,
  -- Until when the primary may still write without having been heard again; null if it does not ask for a lease.
  leased_until timestamptz,
  constraint continuity_replication_state_pkey primary key (node_id),
  constraint continuity_replication_state_role check (role in ('primary', 'edge')),
  constraint continuity_replication_state_mode check (mode in ('primary', 'degraded', 'recovering'))
);

alter table public.continuity_command_types enable row level security;
alter table public.continuity_commands enable row level security;
alter table public.continuity_snapshots enable row level security;
alter table public.continuity_outbox enable row level security;
alter table public.continuity_replication_state enable row level security;
-- Goose has made it, in a schema that the API serves. By psql it is not there.
alter table if exists public.rollingd_hosted_migrations enable row level security;

-- Helpers. They are in PL/pgSQL, which keeps a plan for a session: a function in SQL that is not inlined is planned with
-- every call, which took a tenth of the time of an enqueue each.

-- +goose StatementBegin
-- Names are indexed and end up in logs: they are not empty, blank or long.
create or replace function public.continuity_is_name(p_value text) returns boolean
language plpgsql immutable set search_path = '' as $$
begin
  return p_value ~ '\S' and octet_length(p_value) <= 256;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function public.continuity_require_name(p_name text, p_value text) returns void
language plpgsql set search_path = '' as $$
begin
  if public.continuity_is_name(p_value) is not true then
    raise exception '% has to have 1 to 256 bytes', p_name using errcode = 'RC005', detail = p_name;
  end if;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function public.continuity_require_payload(p_payload jsonb, p_limit int) returns void
language plpgsql set search_path = '' as $$
begin
  if p_payload is null or jsonb_typeof(p_payload) = 'null' then
    raise exception 'a payload is missing' using errcode = 'RC005', detail = 'payload';
  end if;
  if octet_length(p_payload::text) > p_limit then
    raise exception 'the payload has % bytes, more than %', octet_length(p_payload::text), p_limit
      using errcode = 'RC006', detail = p_limit::text;
  end if;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function public.continuity_require_claim(p_worker_id text, p_limit int, p_lease_seconds int)
returns void
language plpgsql set search_path = '' as $$
begin
  perform public.continuity_require_name('worker_id', p_worker_id);
  if p_limit is null or p_limit not between 1 and 100 then
    raise exception 'the limit has to be 1 to 100' using errcode = 'RC005', detail = 'limit';
  end if;
  perform public.continuity_require_lease(p_lease_seconds);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Refuses what is no list of 1 to 100 objects.
create or replace function public.continuity_require_list(p_name text, p_list jsonb) returns void
language plpgsql set search_path = '' as $$
begin
  if p_list is null or jsonb_typeof(p_list) <> 'array' or jsonb_array_length(p_list) not between 1 and 100 then
    raise exception '% have to be a list of 1 to 100', p_name using errcode = 'RC005', detail = p_name;
  end if;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function public.continuity_require_lease(p_lease_seconds int) returns void
language plpgsql set search_path = '' as $$
begin
  if p_lease_seconds is null or p_lease_seconds not between 1 and 3600 then
    raise exception 'a lease has to last 1 to 3600 seconds' using errcode = 'RC005', detail = 'lease_seconds';
  end if;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- What an idempotency key or an event id stands for. jsonb has one text for one value.
create or replace function public.continuity_hash(p_type text, p_aggregate_type text, p_aggregate_id text, p_payload jsonb)
returns bytea
language plpgsql immutable set search_path = '' as $$
begin
  return sha256(convert_to(jsonb_build_array(p_type, p_aggregate_type, p_aggregate_id, p_payload)::text, 'UTF8'));
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function public.continuity_lost_claim(p_id uuid) returns void
language plpgsql set search_path = '' as $$
begin
  raise exception 'the claim of % is lost', p_id using errcode = 'RC007', detail = p_id::text;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- What a command that is refused beside others is answered with.
create or replace function public.continuity_refusal(p_code text, p_detail text, p_message text) returns jsonb
language plpgsql immutable set search_path = '' as $$
begin
  return jsonb_build_object('code', p_code, 'detail', p_detail, 'message', p_message);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- A command without its payload, which is nobody's business but that of the worker who applies it.
create or replace function public.continuity_command_json(p_command public.continuity_commands) returns jsonb
language plpgsql stable set search_path = '' as $$
begin
  return jsonb_build_object(
    'commandId', p_command.command_id,
    'idempotencyKey', p_command.idempotency_key,
    'commandType', p_command.command_type,
    'aggregateType', p_command.aggregate_type,
    'aggregateId', p_command.aggregate_id,
    'sequence', p_command.queue_sequence,
    'epoch', p_command.epoch,
    'status', p_command.status,
    'attempts', p_command.attempts,
    'maxAttempts', p_command.max_attempts,
    'availableAt', p_command.available_at,
    'claimedBy', p_command.claimed_by,
    'claimedUntil', p_command.claimed_until,
    'lastError', p_command.last_error,
    'enqueuedAt', p_command.enqueued_at,
    'settledAt', p_command.settled_at,
    'skippedAt', p_command.skipped_at,
    'skippedBy', p_command.skipped_by,
    'skipReason', p_command.skip_reason);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Ends the claims whose lease is over, each as a failed attempt: a command that kills its workers has to end as well. The
-- update sees a row as it is now, so a command that was settled meanwhile, or claimed anew, is not touched.
create or replace function public.continuity_sweep_commands() returns bigint
language plpgsql set search_path = '' as $$
declare
  v_swept bigint;
begin
  with expired as materialized (
    select queue_sequence, claim_token
    from public.continuity_commands
    where status = 'claimed'
      and claimed_until <= now()
    order by claimed_until
    limit 100
    for update skip locked
  )
  update public.continuity_commands c
  set attempts = c.attempts + 1,
      status = case when c.attempts + 1 >= c.max_attempts then 'dead' else 'pending' end,
      settled_at = case when c.attempts + 1 >= c.max_attempts then now() end,
      available_at = null,
      claimed_until = null,
      claim_token = null,
      last_error = 'the lease of ' || c.claimed_by || ' ended'
  from expired
  where c.queue_sequence = expired.queue_sequence
    and c.claim_token = expired.claim_token
    and c.claimed_until is not null;
  get diagnostics v_swept = row_count;
  return v_swept;
end
$$;
-- +goose StatementEnd

-- The queue.

-- +goose StatementBegin
-- Takes commands in: p_commands has the arguments of continuity_enqueue for each. The answer has for each, in their order,
-- its receipt or its refusal, which touches no other.
--
-- The order of the locks is the fence, shared, and then the aggregates, in an order of their own: a flip of the fence waits
-- for every transaction that has passed here, and sequence numbers are drawn only by who holds the aggregate. A key that is
-- known gets its receipt in any mode; only a new one has to pass the gate.
create or replace function public.continuity_admit(p_commands jsonb) returns jsonb
language plpgsql set search_path = '' set jit = off set enable_seqscan = off as $$
declare
  v_epoch bigint;
  v_mode text;
  -- By a command's place in the list. v_firsts: it is the first of its key that may enter.
  v_keys text[];
  v_ids uuid[];
  v_hashes bytea[];
  v_refusals jsonb[];
  v_gates jsonb[];
  v_firsts boolean[];
  v_entered text[];
begin
  perform public.continuity_lock_fence_shared();
  perform public.continuity_lock_aggregates(p_commands);
  select epoch, mode into strict v_epoch, v_mode from public.continuity_fence;

  select array_agg(p_idempotency_key), array_agg(p_command_id), array_agg(hash), array_agg(refusal), array_agg(gate),
         array_agg(ordinality = first)
  into v_keys, v_ids, v_hashes, v_refusals, v_gates, v_firsts
  from (
    select *, min(ordinality) filter (where refusal is null and gate is null) over (partition by p_idempotency_key) as first
    from (
      select *,
        public.continuity_hash(p_command_type, p_aggregate_type, p_aggregate_id, p_payload) as hash,
        case
          when p_command_id is null or p_command_id = '00000000-0000-0000-0000-000000000000' then
            public.continuity_refusal('RC005', 'command_id', 'a command id is missing')
          when no_name is not null then
            public.continuity_refusal('RC005', no_name, no_name || ' has to have 1 to 256 bytes')
          when p_payload is null or jsonb_typeof(p_payload) = 'null' then
            public.continuity_refusal('RC005', 'payload', 'a payload is missing')
          when octet_length(p_payload::text) > 65536 then
            public.continuity_refusal('RC006', '65536', 'the payload has more than 65536 bytes')
          when p_occurred_at not between '0001-01-01T00:00:00Z' and '9999-12-31T00:00:00Z' then
            public.continuity_refusal('RC005', 'occurred_at', 'the time has to lie in the years 1 to 9999')
        end as refusal,
        case
          when p_epoch <> v_epoch then
            public.continuity_refusal('RC001', v_epoch::text, 'the epoch is ' || v_epoch)
          when v_mode = 'SEALED' then
            public.continuity_refusal('RC003', v_epoch::text, 'the queue is sealed for the cutover')
          when v_mode = 'DIRECT' then
            public.continuity_refusal('RC002', v_mode, 'the mode is ' || v_mode)
        end as gate
      from rows from (jsonb_to_recordset(p_commands) as (
        p_command_id uuid, p_idempotency_key text, p_command_type text, p_aggregate_type text, p_aggregate_id text,
        p_payload jsonb, p_occurred_at timestamptz, p_expected_version bigint, p_epoch bigint)) with ordinality
      left join lateral (
        -- As continuity_is_name, whose calls took a fifth of an enqueue.
        select no_name
        from (values
          ('idempotency_key', p_idempotency_key),
          ('command_type', p_command_type),
          ('aggregate_type', p_aggregate_type),
          ('aggregate_id', p_aggregate_id)) n (no_name, value)
        where (value ~ '\S' and octet_length(value) <= 256) is not true
        limit 1
      ) n on true
    ) given
    order by ordinality
  ) given;

  with entered as (
    insert into public.continuity_commands (
      command_id, idempotency_key, command_type, aggregate_type, aggregate_id,
      payload, payload_hash, occurred_at, expected_version, epoch
    )
    select p_command_id, p_idempotency_key, p_command_type, p_aggregate_type, p_aggregate_id,
           p_payload, v_hashes[ordinality], p_occurred_at, p_expected_version, v_epoch
    from rows from (jsonb_to_recordset(p_commands) as (
      p_command_id uuid, p_idempotency_key text, p_command_type text, p_aggregate_type text, p_aggregate_id text,
      p_payload jsonb, p_occurred_at timestamptz, p_expected_version bigint, p_epoch bigint)) with ordinality
    where v_firsts[ordinality]
    order by ordinality
    on conflict do nothing
    returning idempotency_key
  )
  select coalesce(array_agg(idempotency_key), '{}') into v_entered from entered;

  -- A later statement, which sees who was faster with a key.
  return (
    select jsonb_agg(case
      when refusal is not null then refusal
      when c.command_id is null and gate is not null then gate
      when c.command_id is null then
        public.continuity_refusal('RC005', 'command_id', 'the command id belongs to another key')
      when c.payload_hash <> hash then
        public.continuity_refusal('RC004', c.command_id::text, 'the key belongs to another payload')
      else jsonb_build_object(
        'commandId', c.command_id,
        'sequence', c.queue_sequence,
        'deduplicated', first is not true or key <> all (v_entered),
        'status', c.status,
        'epoch', c.epoch)
      end order by ordinality)
    from rows from (unnest(v_keys, v_ids, v_hashes, v_refusals, v_gates, v_firsts)) with ordinality
      as given (key, id, hash, refusal, gate, first, ordinality)
    left join lateral (
      select * from public.continuity_commands where idempotency_key = key offset 0
    ) c on true);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Takes a command in and returns its receipt. p_epoch null stands for the current one.
create or replace function public.continuity_enqueue(
  p_command_id uuid,
  p_idempotency_key text,
  p_command_type text,
  p_aggregate_type text,
  p_aggregate_id text,
  p_payload jsonb,
  p_occurred_at timestamptz,
  p_expected_version bigint,
  p_epoch bigint
) returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
declare
  v_answer jsonb := public.continuity_admit(jsonb_build_array(jsonb_build_object(
    'p_command_id', p_command_id,
    'p_idempotency_key', p_idempotency_key,
    'p_command_type', p_command_type,
    'p_aggregate_type', p_aggregate_type,
    'p_aggregate_id', p_aggregate_id,
    'p_payload', p_payload,
    'p_occurred_at', p_occurred_at,
    'p_expected_version', p_expected_version,
    'p_epoch', p_epoch))) -> 0;
begin
  if v_answer ? 'code' then
    raise exception '%', v_answer ->> 'message' using errcode = v_answer ->> 'code', detail = v_answer ->> 'detail';
  end if;
  return v_answer;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- continuity_enqueue for up to 100 commands with one commit: continuity_admit says what is given and returned. An error,
-- such as that of a value that jsonb cannot hold, is that of all: none has entered.
create or replace function public.continuity_enqueue_commands(p_commands jsonb) returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
begin
  perform public.continuity_require_list('commands', p_commands);
  return public.continuity_admit(p_commands);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Claims up to p_limit commands for p_lease_seconds: of each aggregate the head alone, and none while another command of
-- it is claimed. p_epoch null stands for the current one, p_up_to null for no bound.
--
-- The statistics are those of a queue that is empty, since it is until an outage fills it, and a plan for one row is
-- quadratic in what waits. So the plan does not depend on them: without sorts and scans of the table it walks the pending
-- in their order, and "offset 0" keeps each condition a look into an index for each of them.
-- In UTC a time of long ago has no offset of seconds, which clients cannot read.
create or replace function public.continuity_claim_commands(
  p_worker_id text,
  p_limit int,
  p_lease_seconds int,
  p_epoch bigint,
  p_up_to bigint
) returns jsonb
language plpgsql volatile security definer
set search_path = '' set timezone = 'UTC' set statement_timeout = '5s' set lock_timeout = '2s'
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
  v_claims jsonb;
begin
  perform public.continuity_require_claim(p_worker_id, p_limit, p_lease_seconds);
  perform public.continuity_lock_fence_shared();
  perform public.continuity_pass_drain_gate(p_epoch);
  perform public.continuity_sweep_commands();
  with head as materialized (
    select q.queue_sequence
    from public.continuity_commands q
    where q.status = 'pending'
      and (q.available_at is null or q.available_at <= now())
      and (p_up_to is null or q.queue_sequence <= p_up_to)
      and exists (
        select from public.continuity_command_types t
        where t.command_type = q.command_type
        offset 0
      )
      and not exists (
        select from public.continuity_commands other
        where other.aggregate_type = q.aggregate_type
          and other.aggregate_id = q.aggregate_id
          and other.status in ('pending', 'claimed')
          and (other.queue_sequence < q.queue_sequence or other.status = 'claimed')
        offset 0
      )
      and not exists (
        select from public.continuity_commands dead
        where dead.aggregate_type = q.aggregate_type
          and dead.aggregate_id = q.aggregate_id
          and dead.queue_sequence < q.queue_sequence
          and dead.status = 'dead'
          and dead.skipped_at is null
          and public.continuity_holds(dead.command_type)
        offset 0
      )
    order by q.queue_sequence
    limit p_limit
    for update of q skip locked
  ), claimed as (
    update public.continuity_commands c
    set status = 'claimed',
        claimed_by = p_worker_id,
        claimed_until = now() + make_interval(secs => p_lease_seconds),
        claim_token = nextval('public.continuity_claim_tokens')
    where c.queue_sequence = any (array(select queue_sequence from head))
    returning c.*
  )
  select coalesce(jsonb_agg(jsonb_build_object(
    'commandId', command_id,
    'idempotencyKey', idempotency_key,
    'commandType', command_type,
    'aggregateType', aggregate_type,
    'aggregateId', aggregate_id,
    'payload', payload,
    'occurredAt', occurred_at,
    'expectedVersion', expected_version,
    'sequence', queue_sequence,
    'claimToken', claim_token,
    'epoch', epoch,
    'attempts', attempts,
    'maxAttempts', max_attempts) order by queue_sequence), '[]')
  into v_claims
  from claimed;
  return v_claims;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Whether a dead command of this type keeps its aggregate back. An unknown type does.
create or replace function public.continuity_holds(p_command_type text) returns boolean
language sql stable set search_path = '' as $$
  select coalesce((
    select on_dead = 'hold'
    from public.continuity_command_types
    where command_type = p_command_type), true)
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Settles a command whose effect the primary has committed. It may be repeated with the same token.
create or replace function public.continuity_ack_command(p_command_id uuid, p_claim_token bigint) returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
declare
  v_command public.continuity_commands;
begin
  update public.continuity_commands
  set status = 'acked',
      settled_at = now(),
      claimed_until = null,
      last_error = null
  where command_id = p_command_id
    and claim_token = p_claim_token
    and claimed_until is not null
  returning * into v_command;
  if not found then
    select * into v_command
    from public.continuity_commands
    where command_id = p_command_id
      and claim_token = p_claim_token
      and status = 'acked';
    if not found then
      perform public.continuity_lost_claim(p_command_id);
    end if;
  end if;
  return public.continuity_command_json(v_command);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- continuity_ack_command for up to 100 claims with one commit: p_claims has the commandId and the claimToken of each. The
-- answer has the ids of those that are lost. The plan is fixed as that of continuity_claim_commands.
create or replace function public.continuity_ack_commands(p_claims jsonb) returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s'
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
  v_ids uuid[];
  v_acked bigint;
begin
  perform public.continuity_require_list('claims', p_claims);
  v_ids := array(select (claim ->> 'commandId')::uuid from jsonb_array_elements(p_claims) claim);
  update public.continuity_commands c
  set status = 'acked',
      settled_at = now(),
      claimed_until = null,
      last_error = null
  from jsonb_to_recordset(p_claims) as claim ("commandId" uuid, "claimToken" bigint)
  where c.command_id = any (v_ids)
    and c.command_id = claim."commandId"
    and c.claim_token = claim."claimToken"
    and c.claimed_until is not null;
  get diagnostics v_acked = row_count;
  if v_acked = jsonb_array_length(p_claims) then
    return '[]';
  end if;
  return (
    select coalesce(jsonb_agg(claim."commandId"), '[]')
    from jsonb_to_recordset(p_claims) as claim ("commandId" uuid, "claimToken" bigint)
    where not exists (
      select from public.continuity_commands c
      where c.command_id = claim."commandId"
        and c.claim_token = claim."claimToken"
        and c.status = 'acked'
      offset 0
    ));
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Counts a failed attempt: the command waits for the next one, or is dead after its last, or at once if it is
-- permanent. It may be repeated with the same token.
create or replace function public.continuity_fail_command(
  p_command_id uuid,
  p_claim_token bigint,
  p_error text,
  p_permanent boolean
) returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
declare
  v_command public.continuity_commands;
begin
  update public.continuity_commands
  set attempts = attempts + 1,
      status = case when p_permanent or attempts + 1 >= max_attempts then 'dead' else 'pending' end,
      settled_at = case when p_permanent or attempts + 1 >= max_attempts then now() end,
      available_at = now() + make_interval(secs =>
        least(3600, 15 * power(2, attempts)) * (0.8 + 0.4 * random())),
      claimed_until = null,
      last_error = left(coalesce(p_error, ''), 2000)
  where command_id = p_command_id
    and claim_token = p_claim_token
    and claimed_until is not null
  returning * into v_command;
  if not found then
    select * into v_command
    from public.continuity_commands
    where command_id = p_command_id
      and claim_token = p_claim_token
      and status in ('pending', 'dead');
    if not found then
      perform public.continuity_lost_claim(p_command_id);
    end if;
  end if;
  return public.continuity_command_json(v_command);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Gives a command back for later, without counting an attempt: the primary is not ready, and it is not the command's
-- fault. It may be repeated with the same token.
create or replace function public.continuity_snooze_command(p_command_id uuid, p_claim_token bigint, p_seconds int)
returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
declare
  v_command public.continuity_commands;
begin
  if p_seconds is null or p_seconds not between 0 and 3600 then
    raise exception 'a snooze has to last 0 to 3600 seconds' using errcode = 'RC005', detail = 'seconds';
  end if;
  update public.continuity_commands
  set status = 'pending',
      available_at = now() + make_interval(secs => p_seconds),
      claimed_until = null
  where command_id = p_command_id
    and claim_token = p_claim_token
    and claimed_until is not null
  returning * into v_command;
  if not found then
    select * into v_command
    from public.continuity_commands
    where command_id = p_command_id
      and claim_token = p_claim_token
      and status = 'pending';
    if not found then
      perform public.continuity_lost_claim(p_command_id);
    end if;
  end if;
  return public.continuity_command_json(v_command);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function public.continuity_extend_claim(p_command_id uuid, p_claim_token bigint, p_lease_seconds int)
returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
declare
  v_command public.continuity_commands;
begin
  perform public.continuity_require_lease(p_lease_seconds);
  update public.continuity_commands
  set claimed_until = now() + make_interval(secs => p_lease_seconds)
  where command_id = p_command_id
    and claim_token = p_claim_token
    and claimed_until is not null
  returning * into v_command;
  if not found then
    perform public.continuity_lost_claim(p_command_id);
  end if;
  return public.continuity_command_json(v_command);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Ends the claims whose lease is over, and returns how many. Every claim does so too; this is for the time in which
-- nobody claims.
create or replace function public.continuity_release_expired() returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
begin
  return to_jsonb(public.continuity_sweep_commands());
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Brings a dead command back with all of its attempts. It takes the fence for itself: no claim may hand out the command
-- behind this one in the meantime.
create or replace function public.continuity_redrive(p_command_id uuid, p_actor text, p_reason text) returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
declare
  v_command public.continuity_commands;
begin
  perform public.continuity_require_name('actor', p_actor);
  perform public.continuity_require_name('reason', p_reason);
  perform public.continuity_lock_fence();
  update public.continuity_commands
  set status = 'pending',
      attempts = 0,
      available_at = null,
      settled_at = null,
      claim_token = null,
      skipped_at = null,
      skipped_by = null,
      skip_reason = null,
      last_error = 'redriven by ' || p_actor || ': ' || p_reason
  where command_id = p_command_id
    and status = 'dead'
  returning * into v_command;
  if not found then
    select * into v_command from public.continuity_commands where command_id = p_command_id;
    if not found then
      raise exception 'no command %', p_command_id using errcode = 'RC009';
    end if;
    -- It is on its way already, by an earlier call whose answer was lost; or it is done.
    if v_command.status = 'acked' then
      raise exception 'the command is acked' using errcode = 'RC005', detail = 'acked';
    end if;
  end if;
  return public.continuity_command_json(v_command);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Goes on without a dead command: it stays dead and no longer keeps its aggregate back. A command of an unknown type is
-- buried by it as well.
create or replace function public.continuity_skip(p_command_id uuid, p_actor text, p_reason text) returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
declare
  v_command public.continuity_commands;
begin
  perform public.continuity_require_name('actor', p_actor);
  perform public.continuity_require_name('reason', p_reason);
  perform public.continuity_lock_fence();
  update public.continuity_commands c
  set status = 'dead',
      settled_at = coalesce(settled_at, now()),
      last_error = case when status = 'pending' then 'the command type is unknown' else last_error end,
      skipped_at = now(),
      skipped_by = p_actor,
      skip_reason = p_reason
  where command_id = p_command_id
    and skipped_at is null
    and (status = 'dead' or status = 'pending' and not exists (
      select from public.continuity_command_types t
      where t.command_type = c.command_type))
  returning * into v_command;
  if not found then
    select * into v_command from public.continuity_commands where command_id = p_command_id;
    if not found then
      raise exception 'no command %', p_command_id using errcode = 'RC009';
    end if;
    if v_command.skipped_at is null then
      raise exception 'the command is not dead' using errcode = 'RC005', detail = v_command.status;
    end if;
  end if;
  return public.continuity_command_json(v_command);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Deletes acked commands and delivered events that were settled so long ago, some thousand at a time, and returns how
-- many. A primary that is restored from its oldest backup, of 14 days, is given the commands that it has forgotten: they
-- are kept at least as long, and those of the current epoch are what the cutover counts.
create or replace function public.continuity_purge_acked(p_older_than_seconds bigint) returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
declare
  v_commands bigint;
  v_events bigint;
begin
  if p_older_than_seconds is null or p_older_than_seconds < 1209600 then
    raise exception 'the retention has to be at least 14 days' using errcode = 'RC005', detail = 'older_than_seconds';
  end if;
  delete from public.continuity_commands
  where queue_sequence in (
    select queue_sequence
    from public.continuity_commands
    where status = 'acked'
      and settled_at < now() - make_interval(secs => p_older_than_seconds)
      and epoch < (select epoch from public.continuity_fence)
    order by settled_at
    limit 2000);
  get diagnostics v_commands = row_count;
  delete from public.continuity_outbox
  where outbox_sequence in (
    select outbox_sequence
    from public.continuity_outbox
    where status = 'delivered'
      and settled_at < now() - make_interval(secs => p_older_than_seconds)
    order by settled_at
    limit 2000);
  get diagnostics v_events = row_count;
  return jsonb_build_object('commands', v_commands, 'events', v_events);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- The command that came with the key, without its payload, or null.
create or replace function public.continuity_find_command(p_idempotency_key text) returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
declare
  v_command public.continuity_commands;
begin
  select * into v_command from public.continuity_commands where idempotency_key = p_idempotency_key;
  if not found then
    return null;
  end if;
  return public.continuity_command_json(v_command);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Commands without payloads in the order of the queue, after a sequence number; p_status null stands for all.
create or replace function public.continuity_list_commands(p_status text, p_after bigint, p_limit int) returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
begin
  if p_limit is null or p_limit not between 1 and 1000 then
    raise exception 'the limit has to be 1 to 1000' using errcode = 'RC005', detail = 'limit';
  end if;
  return (
    select coalesce(jsonb_agg(public.continuity_command_json(page) order by page.queue_sequence), '[]')
    from (
      select *
      from public.continuity_commands
      where queue_sequence > coalesce(p_after, 0)
        and (p_status is null or status = p_status)
      order by queue_sequence
      limit p_limit
    ) page);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Each count ends at 10000: edges ask every few seconds, and events are kept for weeks.
create or replace function public.continuity_queue_stats() returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s'
set jit = off set enable_seqscan = off as $$
begin
  return jsonb_build_object(
    'commands', jsonb_build_object(
      'pending', (select count(*) from (select from public.continuity_commands where status = 'pending' limit 10000) c),
      'claimed', (select count(*) from (select from public.continuity_commands where status = 'claimed' limit 10000) c),
      'acked', (select count(*) from (select from public.continuity_commands where status = 'acked' limit 10000) c),
      'dead', (select count(*) from (select from public.continuity_commands where status = 'dead' limit 10000) c)),
    'events', jsonb_build_object(
      'pending', (select count(*) from (select from public.continuity_outbox where status = 'pending' limit 10000) e),
      'claimed', (select count(*) from (select from public.continuity_outbox where status = 'claimed' limit 10000) e),
      'delivered', (select count(*) from (select from public.continuity_outbox where status = 'delivered' limit 10000) e),
      'dead', (select count(*) from (select from public.continuity_outbox where status = 'dead' limit 10000) e)),
    'lastSequence', (select coalesce(max(queue_sequence), 0) from public.continuity_commands),
    'oldestPendingSeconds', (
      select coalesce(extract(epoch from now() - min(enqueued_at)), 0)
      from public.continuity_commands
      where status in ('pending', 'claimed')),
    'waiting', (
      select count(*) from public.continuity_commands where status = 'pending' and available_at > now()),
    'expiredLeases', (
      select count(*) from public.continuity_commands where status = 'claimed' and claimed_until <= now()),
    'unacknowledgedDead', (
      select count(*) from public.continuity_commands where status = 'dead' and skipped_at is null),
    'blockedAggregates', (
      select count(distinct (aggregate_type, aggregate_id))
      from public.continuity_commands
      where status = 'dead' and skipped_at is null and public.continuity_holds(command_type)),
    'unknownTypes', (
      select coalesce(jsonb_agg(distinct command_type), '[]')
      from public.continuity_commands c
      where status = 'pending'
        and not exists (select from public.continuity_command_types t where t.command_type = c.command_type)),
    'newestSnapshotAgeSeconds', (
      select extract(epoch from now() - max(published_at)) from public.continuity_snapshots));
end
$$;
-- +goose StatementEnd

-- Snapshots.

-- +goose StatementBegin
-- Stores a snapshot unless a newer one is there; the same version again is a sign that it still holds. The version has to
-- rise across a restore of the primary too.
create or replace function public.continuity_put_snapshot(p_snapshot_key text, p_payload jsonb, p_version bigint)
returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
declare
  v_version bigint;
begin
  perform public.continuity_require_name('snapshot_key', p_snapshot_key);
  perform public.continuity_require_payload(p_payload, 262144);
  if p_version is null then
    raise exception 'a version is missing' using errcode = 'RC005', detail = 'version';
  end if;
  insert into public.continuity_snapshots as s (snapshot_key, payload, version)
  values (p_snapshot_key, p_payload, p_version)
  on conflict on constraint continuity_snapshots_pkey do update
  set payload = excluded.payload,
      version = excluded.version,
      published_at = now()
  where s.version <= excluded.version
  returning version into v_version;
  if found then
    return jsonb_build_object('stored', true, 'version', v_version);
  end if;
  return jsonb_build_object('stored', false, 'version', (
    select version from public.continuity_snapshots where snapshot_key = p_snapshot_key));
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function public.continuity_read_snapshot(p_snapshot_key text) returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
begin
  return (
    select jsonb_build_object(
      'payload', payload,
      'version', version,
      'publishedAt', published_at,
      'ageSeconds', extract(epoch from now() - published_at))
    from public.continuity_snapshots
    where snapshot_key = p_snapshot_key);
end
$$;
-- +goose StatementEnd

-- The outbox.

-- +goose StatementBegin
-- Mirrors an event. p_epoch is the epoch in which the primary wrote it, null for the current one.
create or replace function public.continuity_publish_event(
  p_event_id uuid,
  p_event_type text,
  p_aggregate_type text,
  p_aggregate_id text,
  p_payload jsonb,
  p_epoch bigint
) returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
declare
  v_event public.continuity_outbox;
  v_hash bytea;
  v_current bigint;
  v_new boolean;
begin
  if p_event_id is null or p_event_id = '00000000-0000-0000-0000-000000000000' then
    raise exception 'an event id is missing' using errcode = 'RC005', detail = 'event_id';
  end if;
  perform public.continuity_require_name('event_type', p_event_type);
  perform public.continuity_require_name('aggregate_type', p_aggregate_type);
  perform public.continuity_require_name('aggregate_id', p_aggregate_id);
  perform public.continuity_require_payload(p_payload, 65536);
  v_hash := public.continuity_hash(p_event_type, p_aggregate_type, p_aggregate_id, p_payload);
  v_current := (select epoch from public.continuity_fence);
  -- An older epoch is an event that waited; a later one says that this database was restored from a backup.
  if p_epoch > v_current then
    raise exception 'the epoch is %', v_current using errcode = 'RC001', detail = v_current::text;
  end if;
  perform public.continuity_lock_aggregate(p_aggregate_type, p_aggregate_id);
  insert into public.continuity_outbox (
    event_id, event_type, aggregate_type, aggregate_id, payload, payload_hash, epoch
  ) values (
    p_event_id, p_event_type, p_aggregate_type, p_aggregate_id, p_payload, v_hash, coalesce(p_epoch, v_current)
  )
  on conflict do nothing
  returning * into v_event;
  v_new := found;
  if not v_new then
    select * into v_event from public.continuity_outbox where event_id = p_event_id;
    if v_event.payload_hash <> v_hash then
      raise exception 'the event id belongs to another payload' using errcode = 'RC004', detail = p_event_id::text;
    end if;
  end if;
  return jsonb_build_object(
    'eventId', v_event.event_id,
    'sequence', v_event.outbox_sequence,
    'deduplicated', not v_new,
    'status', v_event.status);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Claims events, of each aggregate the head alone. A dead event keeps nothing back: what follows it is newer. The plan is
-- fixed as that of continuity_claim_commands.
create or replace function public.continuity_claim_events(p_worker_id text, p_limit int, p_lease_seconds int)
returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s'
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
  v_claims jsonb;
begin
  perform public.continuity_require_claim(p_worker_id, p_limit, p_lease_seconds);
  with expired as materialized (
    select outbox_sequence, claim_token
    from public.continuity_outbox
    where status = 'claimed'
      and claimed_until <= now()
    order by claimed_until
    limit 100
    for update skip locked
  )
  update public.continuity_outbox o
  set attempts = o.attempts + 1,
      status = case when o.attempts + 1 >= o.max_attempts then 'dead' else 'pending' end,
      settled_at = case when o.attempts + 1 >= o.max_attempts then now() end,
      available_at = null,
      claimed_until = null,
      claim_token = null,
      last_error = 'the lease of ' || o.claimed_by || ' ended'
  from expired
  where o.outbox_sequence = expired.outbox_sequence
    and o.claim_token = expired.claim_token
    and o.claimed_until is not null;
  with head as materialized (
    select q.outbox_sequence
    from public.continuity_outbox q
    where q.status = 'pending'
      and (q.available_at is null or q.available_at <= now())
      and not exists (
        select from public.continuity_outbox other
        where other.aggregate_type = q.aggregate_type
          and other.aggregate_id = q.aggregate_id
          and other.status in ('pending', 'claimed')
          and (other.outbox_sequence < q.outbox_sequence or other.status = 'claimed')
        offset 0
      )
    order by q.outbox_sequence
    limit p_limit
    for update of q skip locked
  ), claimed as (
    update public.continuity_outbox o
    set status = 'claimed',
        claimed_by = p_worker_id,
        claimed_until = now() + make_interval(secs => p_lease_seconds),
        claim_token = nextval('public.continuity_claim_tokens')
    where o.outbox_sequence = any (array(select outbox_sequence from head))
    returning o.*
  )
  select coalesce(jsonb_agg(jsonb_build_object(
    'eventId', event_id,
    'eventType', event_type,
    'aggregateType', aggregate_type,
    'aggregateId', aggregate_id,
    'payload', payload,
    'sequence', outbox_sequence,
    'claimToken', claim_token,
    'epoch', epoch,
    'attempts', attempts,
    'maxAttempts', max_attempts) order by outbox_sequence), '[]')
  into v_claims
  from claimed;
  return v_claims;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function public.continuity_ack_event(p_event_id uuid, p_claim_token bigint) returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
begin
  update public.continuity_outbox
  set status = 'delivered',
      settled_at = now(),
      claimed_until = null,
      last_error = null
  where event_id = p_event_id
    and claim_token = p_claim_token
    and claimed_until is not null;
  if not found and not exists (
    select from public.continuity_outbox
    where event_id = p_event_id
      and claim_token = p_claim_token
      and status = 'delivered'
  ) then
    perform public.continuity_lost_claim(p_event_id);
  end if;
  return jsonb_build_object('eventId', p_event_id, 'status', 'delivered');
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function public.continuity_fail_event(
  p_event_id uuid,
  p_claim_token bigint,
  p_error text,
  p_permanent boolean
) returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
declare
  v_event public.continuity_outbox;
begin
  update public.continuity_outbox
  set attempts = attempts + 1,
      status = case when p_permanent or attempts + 1 >= max_attempts then 'dead' else 'pending' end,
      settled_at = case when p_permanent or attempts + 1 >= max_attempts then now() end,
      available_at = now() + make_interval(secs =>
        least(3600, 15 * power(2, attempts)) * (0.8 + 0.4 * random())),
      claimed_until = null,
      last_error = left(coalesce(p_error, ''), 2000)
  where event_id = p_event_id
    and claim_token = p_claim_token
    and claimed_until is not null
  returning * into v_event;
  if not found then
    select * into v_event
    from public.continuity_outbox
    where event_id = p_event_id
      and claim_token = p_claim_token
      and status in ('pending', 'dead');
    if not found then
      perform public.continuity_lost_claim(p_event_id);
    end if;
  end if;
  return jsonb_build_object('eventId', p_event_id, 'status', v_event.status, 'attempts', v_event.attempts);
end
$$;
-- +goose StatementEnd

-- Nodes.

-- +goose StatementBegin
-- Records that a node lives and what it sees, and returns the fence, so that a beat tells in both directions.
--
-- A primary that writes under a lease alone asks for it here, with the time from now until its last write has ended. The
-- queue does not open before that is over; and {"leased": false} while edges ask for it, so that it comes to an end.
create or replace function public.continuity_heartbeat(
  p_node_id text,
  p_role text,
  p_mode text,
  p_last_command_seq bigint,
  p_instance text,
  p_lease_seconds int
) returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
declare
  v_leased boolean := true;
begin
  perform public.continuity_require_name('node_id', p_node_id);
  perform public.continuity_require_name('instance', p_instance);
  if p_role is null or p_role not in ('primary', 'edge') then
    raise exception 'a role is primary or edge' using errcode = 'RC005', detail = 'role';
  end if;
  if p_mode is null or p_mode not in ('primary', 'degraded', 'recovering') then
    raise exception 'a mode is primary, degraded or recovering' using errcode = 'RC005', detail = 'mode';
  end if;
  if p_lease_seconds is not null then
    if p_role <> 'primary' or p_lease_seconds not between 1 and 3600 then
      raise exception 'a lease is that of a primary, 1 to 3600 seconds' using errcode = 'RC005', detail = 'lease_seconds';
    end if;
    -- Whoever opens the queue sees this lease, or this sees that it is open.
    perform public.continuity_lock_fence_shared();
    v_leased := not public.continuity_is_asked_for();
  end if;
  insert into public.continuity_replication_state as s (
    node_id, role, mode, instance, last_command_seq, last_snapshot_at, last_drain_at, beats, leased_until
  ) values (
    p_node_id, p_role, p_mode, p_instance, coalesce(p_last_command_seq, 0),
    (select max(published_at) from public.continuity_snapshots),
    case when p_last_command_seq > 0 then now() end,
    case when p_role = 'primary' then public.continuity_beats() + 1 else 0 end,
    case when v_leased then now() + make_interval(secs => p_lease_seconds) end
  )
  on conflict on constraint continuity_replication_state_pkey do update
  set role = excluded.role,
      mode = excluded.mode,
      instance = excluded.instance,
      last_command_seq = greatest(s.last_command_seq, excluded.last_command_seq),
      last_snapshot_at = excluded.last_snapshot_at,
      last_drain_at = case
        when excluded.last_command_seq > s.last_command_seq then now()
        else s.last_drain_at
      end,
      last_seen_at = now(),
      -- Two that beat at once are counted both.
      beats = case when excluded.role = 'primary' then greatest(s.beats + 1, excluded.beats) else s.beats end,
      leased_until = case when v_leased then excluded.leased_until else s.leased_until end;
  return public.continuity_fence_json() || jsonb_build_object('leased', v_leased);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- What every node reported last.
create or replace function public.continuity_list_nodes() returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
begin
  return (
    select coalesce(jsonb_agg(jsonb_build_object(
      'nodeId', node_id,
      'role', role,
      'mode', mode,
      'instance', instance,
      'lastCommandSeq', last_command_seq,
      'lastSnapshotAt', last_snapshot_at,
      'lastDrainAt', last_drain_at,
      'silentSeconds', extract(epoch from now() - last_seen_at)) order by node_id), '[]')
    from public.continuity_replication_state);
end
$$;
-- +goose StatementEnd

-- Privileges.

-- +goose StatementBegin
-- Takes every privilege on every continuity_* object from PUBLIC and, by name, from the roles of the hosted API, to whom
-- its default privileges grant all of them; and gives service_role what clients call. The table of migrations is closed
-- with them. Each migration of the continuity plane ends with it. Where the roles do not exist, the owner alone is left.
create or replace function public.continuity_lock_down() returns void
language plpgsql set search_path = '' as $$
declare
  v_object record;
  v_role text;
begin
  for v_object in
    select case c.relkind when 'S' then 'sequence' else 'table' end as kind,
           format('public.%I', c.relname) as name,
           false as called
    from pg_class c
    where c.relnamespace = 'public'::regnamespace
      and (c.relname like 'continuity\_%' or c.relname like 'rollingd\_hosted\_migrations%')
      and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S')
    union all
    select 'function', p.oid::regprocedure::text, p.prosecdef
    from pg_proc p
    where p.pronamespace = 'public'::regnamespace
      and p.proname like 'continuity\_%'
  loop
    execute format('revoke all on %s %s from public', v_object.kind, v_object.name);
    for v_role in
      select rolname from pg_roles where rolname in ('anon', 'authenticated', 'service_role')
    loop
      execute format('revoke all on %s %s from %I', v_object.kind, v_object.name, v_role);
      if v_role = 'service_role' and v_object.called then
        execute format('grant execute on function %s to service_role', v_object.name);
      end if;
    end loop;
  end loop;
end
$$;
-- +goose StatementEnd

select public.continuity_lock_down();

notify pgrst, 'reload schema';
