-- The fence of the continuity plane: one row that says in which epoch we are and which gate is open, direct writes on
-- the primary or the queue, and a log of every flip that nobody can change.
--
-- A transaction that acts under an epoch takes the fence's advisory lock shared, and checks the row in a later statement;
-- a flip takes it exclusively. So a flip waits for whoever has passed the gate, and whoever comes later sees what it did.
-- A lock of the row would not do: shared holders that come and go keep a writer waiting. Both need READ COMMITTED, where
-- a later statement sees what was committed while the lock was waited for.
--
-- Applies by goose, by psql and by Supabase's tooling, also twice. Locks: creates only. To go back: leave it in place.

-- +goose Up

create table if not exists public.continuity_fence (
  only_row boolean not null default true,
  epoch bigint not null default 1,
  mode text not null default 'DIRECT',
  high_water_mark bigint,
  -- The highest lease token of a drainer in this epoch. A lower one is somebody who was paused.
  term bigint not null default 0,
  changed_at timestamptz not null default now(),
  sealed_at timestamptz,
  -- When the last cutover opened direct writes, how often they were closed soon after that, and until when they stay
  -- open at least.
  direct_since timestamptz,
  flaps int not null default 0,
  dwell_until timestamptz,
  -- Settings, see continuity_configure_fence.
  min_reports int not null default 2,
  stale_seconds int not null default 15,
  dwell_seconds int not null default 5,
  seal_limit_seconds int not null default 5,
  constraint continuity_fence_pkey primary key (only_row),
  constraint continuity_fence_only_row check (only_row),
  constraint continuity_fence_mode check (mode in ('DIRECT', 'QUEUE', 'CATCHUP', 'SEALED')),
  constraint continuity_fence_sealed
    check ((mode = 'SEALED') = (high_water_mark is not null) and (mode = 'SEALED') = (sealed_at is not null)),
  constraint continuity_fence_settings check (
    min_reports >= 1
    and stale_seconds between 1 and 3600
    and dwell_seconds between 0 and 3600
    and seal_limit_seconds between 0 and 3600)
);

create table if not exists public.continuity_epochs (
  id bigint generated always as identity,
  event text not null,
  epoch bigint not null,
  mode text not null,
  at timestamptz not null default now(),
  actor text not null,
  reason text,
  term bigint not null,
  high_water_mark bigint,
  detail jsonb not null default '{}',
  constraint continuity_epochs_pkey primary key (id),
  constraint continuity_epochs_event check (event in (
    'begin', 'open', 'catchup', 'seal', 'unseal', 'cutover', 'reopen', 'reconcile', 'force_queue', 'force_direct')),
  constraint continuity_epochs_mode check (mode in ('DIRECT', 'QUEUE', 'CATCHUP', 'SEALED'))
);
create index if not exists continuity_epochs_by_epoch on public.continuity_epochs (epoch, event);

alter table public.continuity_fence enable row level security;
alter table public.continuity_epochs enable row level security;

-- +goose StatementBegin
-- Nobody rewrites history, not even the owner.
create or replace function public.continuity_epochs_append_only() returns trigger
language plpgsql set search_path = '' as $$
begin
  raise exception 'continuity_epochs is append-only' using errcode = 'RC005';
end
$$;
-- +goose StatementEnd

create or replace trigger continuity_epochs_append_only before update or delete or truncate on public.continuity_epochs
  for each statement execute function public.continuity_epochs_append_only();

-- +goose StatementBegin
create or replace function public.continuity_fence_rises() returns trigger
language plpgsql set search_path = '' as $$
begin
  if tg_op <> 'UPDATE' then
    raise exception 'the fence cannot be removed' using errcode = 'RC005';
  end if;
  if new.epoch < old.epoch then
    raise exception 'the epoch is %', old.epoch using errcode = 'RC001', detail = old.epoch::text;
  end if;
  return new;
end
$$;
-- +goose StatementEnd

create or replace trigger continuity_fence_rises before update or delete on public.continuity_fence
  for each row execute function public.continuity_fence_rises();
create or replace trigger continuity_fence_stays before truncate on public.continuity_fence
  for each statement execute function public.continuity_fence_rises();

-- +goose StatementBegin
do $$
begin
  insert into public.continuity_fence default values on conflict do nothing;
  if found then
    insert into public.continuity_epochs (event, epoch, mode, actor, term)
    select 'begin', epoch, mode, 'migration', term
    from public.continuity_fence;
  end if;
end
$$;
-- +goose StatementEnd

-- Locks. 4601 is the class of the fence, 4602 that of the aggregates; the fence always comes first.

-- +goose StatementBegin
create or replace function public.continuity_require_read_committed() returns void
language plpgsql set search_path = '' as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'the continuity plane needs transactions that are READ COMMITTED' using errcode = '0A000';
  end if;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function public.continuity_lock_fence_shared() returns void
language plpgsql set search_path = '' as $$
begin
  perform public.continuity_require_read_committed();
  perform pg_advisory_xact_lock_shared(4601, 0);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function public.continuity_lock_fence() returns void
language plpgsql set search_path = '' as $$
begin
  perform public.continuity_require_read_committed();
  perform pg_advisory_xact_lock(4601, 0);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Two aggregates of one hash wait for each other, which does no harm.
create or replace function public.continuity_aggregate_lock(p_aggregate_type text, p_aggregate_id text) returns int
language plpgsql immutable set search_path = '' as $$
begin
  return hashtext(jsonb_build_array(p_aggregate_type, p_aggregate_id)::text);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function public.continuity_lock_aggregate(p_aggregate_type text, p_aggregate_id text) returns void
language plpgsql set search_path = '' as $$
begin
  perform pg_advisory_xact_lock(4602, public.continuity_aggregate_lock(p_aggregate_type, p_aggregate_id));
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Locks the aggregates of several commands. Everybody who holds more than one has taken them in this order.
create or replace function public.continuity_lock_aggregates(p_commands jsonb) returns void
language plpgsql set search_path = '' as $$
declare
  v_lock int;
begin
  for v_lock in
    select distinct public.continuity_aggregate_lock(c ->> 'p_aggregate_type', c ->> 'p_aggregate_id') as key
    from jsonb_array_elements(p_commands) c
    order by key
  loop
    perform pg_advisory_xact_lock(4602, v_lock);
  end loop;
end
$$;
-- +goose StatementEnd

-- Gates. The caller holds the fence.

-- +goose StatementBegin
create or replace function public.continuity_stale_epoch(p_current bigint) returns void
language plpgsql set search_path = '' as $$
begin
  raise exception 'the epoch is %', p_current using errcode = 'RC001', detail = p_current::text;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function public.continuity_gate_closed(p_mode text) returns void
language plpgsql set search_path = '' as $$
begin
  raise exception 'the mode is %', p_mode using errcode = 'RC002', detail = p_mode;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Whether commands may be claimed now. With direct writes open there is nothing left but what a person has redriven.
create or replace function public.continuity_pass_drain_gate(p_epoch bigint) returns void
language plpgsql set search_path = '' as $$
declare
  v_fence public.continuity_fence;
begin
  select * into strict v_fence from public.continuity_fence;
  if p_epoch is not null and p_epoch <> v_fence.epoch then
    perform public.continuity_stale_epoch(v_fence.epoch);
  end if;
  if v_fence.mode = 'QUEUE' then
    perform public.continuity_gate_closed(v_fence.mode);
  end if;
end
$$;
-- +goose StatementEnd

-- Helpers of the flips.

-- +goose StatementBegin
-- How often a primary was heard.
create or replace function public.continuity_beats() returns bigint
language plpgsql stable set search_path = '' as $$
begin
  return (
    select coalesce(max(beats), 0)
    from public.continuity_replication_state
    where role = 'primary');
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- What edges say of a primary that is still heard: how many of them do not reach it, and whether that is enough to open
-- the queue. An edge that has been silent for ten minutes is none.
create or replace function public.continuity_reports() returns jsonb
language plpgsql stable set search_path = '' as $$
begin
  return (
    select jsonb_build_object(
      'reports', reports,
      'edges', edges,
      'enough', reports >= greatest(1, least(min_reports, edges)))
    from (
      select f.min_reports,
             count(s.node_id) as edges,
             count(s.node_id) filter (
               where s.mode <> 'primary'
                 and s.last_seen_at > now() - make_interval(secs => 2 * f.stale_seconds)) as reports
      from public.continuity_fence f
      left join public.continuity_replication_state s
        on s.role = 'edge'
       and s.last_seen_at > now() - interval '10 minutes'
      group by f.min_reports
    ) r);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Whether the queue would open but for the primary's lease, which is not prolonged then.
create or replace function public.continuity_is_asked_for() returns boolean
language plpgsql stable set search_path = '' as $$
begin
  return (
    select mode = 'DIRECT'
       and (dwell_until is null or dwell_until <= now())
       and (public.continuity_reports() ->> 'enough')::boolean
    from public.continuity_fence);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function public.continuity_fence_json() returns jsonb
language plpgsql stable set search_path = '' as $$
begin
  return (select jsonb_build_object(
    'epoch', epoch,
    'mode', mode,
    'highWaterMark', high_water_mark,
    'term', term,
    'changedAt', changed_at,
    'modeSeconds', extract(epoch from now() - changed_at),
    'beats', public.continuity_beats(),
    'dwellSeconds', greatest(0, extract(epoch from coalesce(dwell_until, now()) - now())))
  from public.continuity_fence);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Makes an entry of the log out of the fence as it is now.
create or replace function public.continuity_log_flip(p_event text, p_actor text, p_reason text, p_detail jsonb)
returns void
language plpgsql set search_path = '' as $$
begin
  insert into public.continuity_epochs (event, epoch, mode, actor, reason, term, high_water_mark, detail)
  select p_event, epoch, mode, p_actor, p_reason, term, high_water_mark, coalesce(p_detail, '{}')
  from public.continuity_fence;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function public.continuity_not_yet(p_reason text, p_detail jsonb) returns void
language plpgsql set search_path = '' as $$
begin
  raise exception 'not yet: %', p_reason
    using errcode = 'RC008', detail = (jsonb_build_object('reason', p_reason) || coalesce(p_detail, '{}'))::text;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Takes the fence for a drainer's step, and refuses one of another epoch or with an old term.
create or replace function public.continuity_take_fence(p_epoch bigint, p_term bigint) returns public.continuity_fence
language plpgsql set search_path = '' as $$
declare
  v_fence public.continuity_fence;
begin
  if p_epoch is null or p_term is null then
    raise exception 'an epoch and a term are needed' using errcode = 'RC005', detail = 'epoch, term';
  end if;
  perform public.continuity_lock_fence();
  select * into strict v_fence from public.continuity_fence;
  if p_epoch <> v_fence.epoch then
    perform public.continuity_stale_epoch(v_fence.epoch);
  end if;
  if v_fence.mode = 'DIRECT' then
    perform public.continuity_gate_closed(v_fence.mode);
  end if;
  if p_term < v_fence.term then
    raise exception 'the term is %', v_fence.term using errcode = 'RC007', detail = v_fence.term::text;
  end if;
  return v_fence;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Dead commands that keep their aggregate back and that nobody has decided on: with them there is no cutover.
create or replace function public.continuity_require_no_holding_dead(p_up_to bigint) returns void
language plpgsql set search_path = '' as $$
declare
  v_dead jsonb;
begin
  select jsonb_agg(command_id order by queue_sequence) into v_dead
  from (
    select command_id, queue_sequence
    from public.continuity_commands
    where status = 'dead'
      and skipped_at is null
      and queue_sequence <= p_up_to
      and public.continuity_holds(command_type)
    order by queue_sequence
    limit 20
  ) d;
  if v_dead is not null then
    perform public.continuity_not_yet('dead', jsonb_build_object('commands', v_dead));
  end if;
end
$$;
-- +goose StatementEnd

-- The fence.

-- +goose StatementBegin
create or replace function public.continuity_fence_state() returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
begin
  return public.continuity_fence_json();
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- An edge reports that it does not reach the primary, and asks for the queue. It opens if the epoch is the expected one
-- and if the primary has not reported to this database for a while, or several edges say the same, or all that there are;
-- and not before direct writes were open for the dwell time, which doubles while they are closed again soon. A primary that
-- writes under a lease alone gets no other from then on, and the queue opens when the last one is over.
--
-- A refusal is no error, because the report has to stay: {"opened": false, "waitingFor": ...}. Whoever comes second with
-- the same expectation finds what it asked for and is told so.
create or replace function public.continuity_open_epoch(p_expected_epoch bigint, p_reason text, p_instance text)
returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
declare
  v_fence public.continuity_fence;
  v_heard boolean;
  v_reports jsonb;
begin
  perform public.continuity_require_name('reason', p_reason);
  perform public.continuity_require_name('instance', p_instance);
  if p_expected_epoch is null then
    raise exception 'an epoch is missing' using errcode = 'RC005', detail = 'expected_epoch';
  end if;
  insert into public.continuity_replication_state as s (node_id, role, mode, instance)
  values (p_instance, 'edge', 'degraded', p_instance)
  on conflict on constraint continuity_replication_state_pkey do update
  set mode = excluded.mode,
      last_seen_at = now()
  where s.role = 'edge';
  if not found then
    raise exception 'only an edge opens the queue' using errcode = 'RC005', detail = 'instance';
  end if;

  perform public.continuity_lock_fence();
  select * into strict v_fence from public.continuity_fence;
  if v_fence.mode <> 'DIRECT' and v_fence.epoch = p_expected_epoch + 1 then
    return jsonb_build_object('opened', true, 'fence', public.continuity_fence_json());
  end if;
  if v_fence.mode <> 'DIRECT' or v_fence.epoch <> p_expected_epoch then
    perform public.continuity_stale_epoch(v_fence.epoch);
  end if;
  if v_fence.dwell_until > now() then
    return jsonb_build_object('opened', false, 'waitingFor', 'dwell', 'fence', public.continuity_fence_json());
  end if;
  v_heard := exists (
    select from public.continuity_replication_state
    where role = 'primary'
      and last_seen_at > now() - make_interval(secs => v_fence.stale_seconds));
  v_reports := public.continuity_reports();
  if v_heard and not (v_reports ->> 'enough')::boolean then
    return jsonb_build_object('opened', false, 'waitingFor', 'reports', 'fence', public.continuity_fence_json());
  end if;
  if exists (
    select from public.continuity_replication_state
    where role = 'primary'
      and leased_until > now()
  ) then
    return jsonb_build_object('opened', false, 'waitingFor', 'lease', 'fence', public.continuity_fence_json());
  end if;

  update public.continuity_fence
  set epoch = epoch + 1,
      mode = 'QUEUE',
      term = 0,
      changed_at = now(),
      dwell_until = null,
      -- Calm is what lasted ten minutes.
      flaps = case when direct_since > now() - interval '10 minutes' then flaps + 1 else 0 end;
  perform public.continuity_log_flip('open', p_instance, p_reason,
    jsonb_build_object('primaryHeard', v_heard) || v_reports - 'enough');
  return jsonb_build_object('opened', true, 'fence', public.continuity_fence_json());
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- The primary begins to drain, with the lease token of its drainer as term. Repeating it with a higher term takes over,
-- which is no flip: a drain that waits for a person has a new term every few seconds.
create or replace function public.continuity_begin_catchup(p_epoch bigint, p_term bigint) returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
declare
  v_fence public.continuity_fence;
begin
  v_fence := public.continuity_take_fence(p_epoch, p_term);
  if v_fence.mode = 'QUEUE' then
    update public.continuity_fence
    set mode = 'CATCHUP',
        changed_at = now(),
        term = p_term;
    perform public.continuity_log_flip('catchup', 'primary', null, null);
  elsif p_term > v_fence.term then
    update public.continuity_fence set term = p_term;
  end if;
  return public.continuity_fence_json();
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Closes the queue and takes the high-water mark: the exclusive lock has waited for every command on its way in, and the
-- mark is read by a later statement, which sees them all. It refuses while the drain to the mark could not be quick.
create or replace function public.continuity_seal(p_epoch bigint, p_term bigint) returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
declare
  v_fence public.continuity_fence;
  v_mark bigint;
  v_claimed jsonb;
  v_waiting jsonb;
begin
  v_fence := public.continuity_take_fence(p_epoch, p_term);
  if v_fence.mode = 'QUEUE' then
    perform public.continuity_gate_closed(v_fence.mode);
  end if;
  if v_fence.mode = 'SEALED' then
    update public.continuity_fence set term = p_term where term < p_term;
    return public.continuity_fence_json();
  end if;
  v_mark := (select coalesce(max(queue_sequence), 0) from public.continuity_commands);
  perform public.continuity_require_no_holding_dead(v_mark);
  -- A worker that died or hangs has them until its leases end, and nobody else can drain them before.
  select jsonb_agg(command_id order by claimed_until) into v_claimed
  from (
    select command_id, claimed_until
    from public.continuity_commands
    where status = 'claimed'
    order by claimed_until
    limit 20
  ) c;
  if v_claimed is not null then
    perform public.continuity_not_yet('claimed', jsonb_build_object('commands', v_claimed));
  end if;
  select jsonb_agg(command_id order by queue_sequence) into v_waiting
  from (
    select command_id, queue_sequence
    from public.continuity_commands c
    where status = 'pending'
      and (available_at > now() or not exists (
        select from public.continuity_command_types t
        where t.command_type = c.command_type))
    order by queue_sequence
    limit 20
  ) w;
  if v_waiting is not null then
    perform public.continuity_not_yet('waiting', jsonb_build_object('commands', v_waiting));
  end if;
  update public.continuity_fence
  set mode = 'SEALED',
      high_water_mark = v_mark,
      term = p_term,
      changed_at = now(),
      sealed_at = now();
  perform public.continuity_log_flip('seal', 'primary', null, null);
  return public.continuity_fence_json();
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Opens direct writes in the next epoch, once nothing up to the mark is left. p_attest is {"applied": n}: how many
-- commands of the epoch the primary's inbox holds. Fewer than were acked means that the primary has lost some, more than
-- were accepted that this database has: either was restored from a backup, and the epochs have to be reconciled.
--
-- It is one transaction, and repeating it after a lost reply gives the same answer, as long as no later epoch has come.
create or replace function public.continuity_cutover(p_epoch bigint, p_term bigint, p_hwm bigint, p_attest jsonb)
returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
declare
  v_fence public.continuity_fence;
  v_applied bigint;
  v_open jsonb;
  v_proof jsonb;
begin
  if p_hwm is null or jsonb_typeof(p_attest -> 'applied') is distinct from 'number' then
    raise exception 'the mark and {"applied": n} are needed' using errcode = 'RC005', detail = 'hwm, attest';
  end if;
  v_applied := (p_attest ->> 'applied')::bigint;
  perform public.continuity_lock_fence();
  select * into strict v_fence from public.continuity_fence;
  if v_fence.mode = 'DIRECT' and v_fence.epoch = p_epoch + 1 then
    select detail into v_proof
    from public.continuity_epochs
    where event = 'cutover'
      and epoch = v_fence.epoch
      and high_water_mark = p_hwm;
    if found then
      return v_proof || jsonb_build_object('fence', public.continuity_fence_json());
    end if;
  end if;
  v_fence := public.continuity_take_fence(p_epoch, p_term);
  if v_fence.mode <> 'SEALED' then
    perform public.continuity_gate_closed(v_fence.mode);
  end if;
  if v_fence.high_water_mark <> p_hwm then
    perform public.continuity_not_yet('mark', jsonb_build_object('highWaterMark', v_fence.high_water_mark));
  end if;
  select jsonb_agg(command_id order by queue_sequence) into v_open
  from (
    select command_id, queue_sequence
    from public.continuity_commands
    where status in ('pending', 'claimed')
      and queue_sequence <= p_hwm
    order by queue_sequence
    limit 20
  ) o;
  if v_open is not null then
    perform public.continuity_not_yet('unacked', jsonb_build_object('commands', v_open));
  end if;
  perform public.continuity_require_no_holding_dead(p_hwm);
  select jsonb_build_object(
    'accepted', count(*),
    'applied', count(*) filter (where status = 'acked'),
    'dead', count(*) filter (where status = 'dead'),
    'unacknowledgedDead', coalesce(jsonb_agg(command_id order by queue_sequence)
      filter (where status = 'dead' and skipped_at is null), '[]'),
    'sealedSeconds', extract(epoch from now() - v_fence.sealed_at))
  into v_proof
  from public.continuity_commands
  where epoch = p_epoch;
  if v_applied not between (v_proof ->> 'applied')::bigint and (v_proof ->> 'accepted')::bigint then
    perform public.continuity_not_yet('inbox', jsonb_build_object(
      'accepted', v_proof -> 'accepted',
      'acked', v_proof -> 'applied',
      'applied', v_applied));
  end if;

  update public.continuity_fence
  set epoch = epoch + 1,
      mode = 'DIRECT',
      high_water_mark = null,
      term = p_term,
      changed_at = now(),
      sealed_at = null,
      direct_since = now(),
      dwell_until = now() + make_interval(secs => least(60, dwell_seconds * power(2, least(flaps, 10))));
  insert into public.continuity_epochs (event, epoch, mode, actor, term, high_water_mark, detail)
  select 'cutover', epoch, mode, 'primary', term, p_hwm, v_proof
  from public.continuity_fence;
  return v_proof || jsonb_build_object('fence', public.continuity_fence_json());
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Any edge opens a queue again that was sealed too long: the primary has gone in the middle of the cutover, or is slow.
-- The cutover with the mark of that seal is refused from then on.
create or replace function public.continuity_reopen(p_epoch bigint, p_instance text) returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
declare
  v_fence public.continuity_fence;
begin
  perform public.continuity_require_name('instance', p_instance);
  perform public.continuity_lock_fence();
  select * into strict v_fence from public.continuity_fence;
  if p_epoch is distinct from v_fence.epoch then
    perform public.continuity_stale_epoch(v_fence.epoch);
  end if;
  if v_fence.mode = 'DIRECT' then
    perform public.continuity_gate_closed(v_fence.mode);
  end if;
  if v_fence.mode = 'SEALED' then
    if v_fence.sealed_at > now() - make_interval(secs => v_fence.seal_limit_seconds) then
      perform public.continuity_not_yet('sealed', jsonb_build_object(
        'sealedSeconds', extract(epoch from now() - v_fence.sealed_at)));
    end if;
    update public.continuity_fence
    set mode = 'QUEUE',
        high_water_mark = null,
        changed_at = now(),
        sealed_at = null;
    perform public.continuity_log_flip('reopen', p_instance, null, null);
  end if;
  return public.continuity_fence_json();
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- The drainer opens the queue again that it has sealed: a command failed meanwhile, or waits for its next attempt, and
-- the shop would wait with it. The cutover with the mark of that seal is refused from then on.
create or replace function public.continuity_unseal(p_epoch bigint, p_term bigint) returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
declare
  v_fence public.continuity_fence;
begin
  v_fence := public.continuity_take_fence(p_epoch, p_term);
  if v_fence.mode = 'SEALED' then
    update public.continuity_fence
    set mode = 'CATCHUP',
        high_water_mark = null,
        term = p_term,
        changed_at = now(),
        sealed_at = null;
    perform public.continuity_log_flip('unseal', 'primary', null, null);
  end if;
  return public.continuity_fence_json();
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- After a restore of either side the two cannot know of each other's later epochs: a new one begins above both, with the
-- queue open, so that the primary drains before it writes. Acked commands of its epoch and later ones are handed out
-- again: a primary that was restored has forgotten some of them, and its inbox tells which not. Numbers that this
-- database has drawn and forgotten must not be drawn again, for the primary remembers them: they go on far above.
--
-- The term of a restored primary may be lower than the one that is known. Whoever was paused is refused by the epoch that
-- he expects.
--
-- It answers {"unfinished": true} while there is more to be handed out again, and is to be repeated. The first come back
-- first: a drain that comes in between keeps the order of every aggregate.
create or replace function public.continuity_reconcile_epoch(
  p_expected_epoch bigint,
  p_primary_epoch bigint,
  p_term bigint
) returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
declare
  v_fence public.continuity_fence;
  v_replayed bigint;
begin
  if p_expected_epoch is null or p_primary_epoch is null or p_primary_epoch < 0 or p_term is null then
    raise exception 'the epochs of both sides and a term are needed' using errcode = 'RC005', detail = 'epoch, term';
  end if;
  perform public.continuity_lock_fence();
  select * into strict v_fence from public.continuity_fence;
  if p_expected_epoch <> v_fence.epoch then
    perform public.continuity_stale_epoch(v_fence.epoch);
  end if;
  -- Some thousand at a time, for the time limit's sake; the epoch begins with the last of them.
  update public.continuity_commands
  set status = 'pending',
      available_at = null,
      settled_at = null,
      claim_token = null,
      last_error = 'handed out again after a restore'
  where queue_sequence in (
    select queue_sequence
    from public.continuity_commands
    where status = 'acked'
      and epoch >= p_primary_epoch
    order by queue_sequence
    limit 5000);
  get diagnostics v_replayed = row_count;
  if v_replayed = 5000 then
    return public.continuity_fence_json() || jsonb_build_object('unfinished', true);
  end if;
  perform setval(s.name, nextval(s.name) + 1000000000)
  from (values
    ('public.continuity_claim_tokens'::regclass),
    (pg_get_serial_sequence('public.continuity_commands', 'queue_sequence')::regclass)) s(name);
  update public.continuity_fence
  set epoch = greatest(v_fence.epoch, p_primary_epoch) + 1,
      mode = 'QUEUE',
      high_water_mark = null,
      term = p_term,
      changed_at = now(),
      sealed_at = null,
      dwell_until = null;
  perform public.continuity_log_flip('reconcile', 'primary', null, jsonb_build_object(
    'hostedEpoch', v_fence.epoch,
    'primaryEpoch', p_primary_epoch,
    'toDrain', (select count(*) from public.continuity_commands where status = 'pending')));
  return public.continuity_fence_json();
end
$$;
-- +goose StatementEnd

-- For a person, who answers for what the fence would have refused.

-- +goose StatementBegin
-- Opens the queue without asking for reports or dwell time.
create or replace function public.continuity_force_queue(p_expected_epoch bigint, p_actor text, p_reason text)
returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
declare
  v_fence public.continuity_fence;
begin
  perform public.continuity_require_name('actor', p_actor);
  perform public.continuity_require_name('reason', p_reason);
  perform public.continuity_lock_fence();
  select * into strict v_fence from public.continuity_fence;
  if v_fence.mode <> 'DIRECT' and v_fence.epoch = p_expected_epoch + 1 then
    return public.continuity_fence_json();
  end if;
  if v_fence.epoch is distinct from p_expected_epoch then
    perform public.continuity_stale_epoch(v_fence.epoch);
  end if;
  if v_fence.mode <> 'DIRECT' then
    perform public.continuity_gate_closed(v_fence.mode);
  end if;
  update public.continuity_fence
  set epoch = epoch + 1,
      mode = 'QUEUE',
      term = 0,
      changed_at = now(),
      dwell_until = null;
  perform public.continuity_log_flip('force_queue', p_actor, p_reason, null);
  return public.continuity_fence_json();
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Opens direct writes although commands may be left; they stay in the queue and can be claimed.
create or replace function public.continuity_force_direct(p_expected_epoch bigint, p_actor text, p_reason text)
returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
declare
  v_fence public.continuity_fence;
  v_left bigint;
begin
  perform public.continuity_require_name('actor', p_actor);
  perform public.continuity_require_name('reason', p_reason);
  perform public.continuity_lock_fence();
  select * into strict v_fence from public.continuity_fence;
  if v_fence.mode = 'DIRECT' and v_fence.epoch = p_expected_epoch + 1 then
    return public.continuity_fence_json();
  end if;
  if v_fence.epoch is distinct from p_expected_epoch then
    perform public.continuity_stale_epoch(v_fence.epoch);
  end if;
  if v_fence.mode = 'DIRECT' then
    return public.continuity_fence_json();
  end if;
  v_left := (select count(*) from public.continuity_commands where status in ('pending', 'claimed'));
  update public.continuity_fence
  set epoch = epoch + 1,
      mode = 'DIRECT',
      high_water_mark = null,
      changed_at = now(),
      sealed_at = null,
      direct_since = now(),
      dwell_until = null;
  perform public.continuity_log_flip('force_direct', p_actor, p_reason, jsonb_build_object('left', v_left));
  return public.continuity_fence_json();
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- How many edges have to report if the primary is still heard, if there are so many, after how many seconds it is not
-- heard any more (an edge's report counts twice as long), the dwell time before it doubles (up to a minute), and how long
-- a seal may last until an edge may reopen. Null leaves a setting as it is.
create or replace function public.continuity_configure_fence(
  p_min_reports int,
  p_stale_seconds int,
  p_dwell_seconds int,
  p_seal_limit_seconds int
) returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
begin
  perform public.continuity_lock_fence();
  update public.continuity_fence
  set min_reports = coalesce(p_min_reports, min_reports),
      stale_seconds = coalesce(p_stale_seconds, stale_seconds),
      dwell_seconds = coalesce(p_dwell_seconds, dwell_seconds),
      seal_limit_seconds = coalesce(p_seal_limit_seconds, seal_limit_seconds);
  return public.continuity_fence_json();
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- The flips after an id of the log, in their order.
create or replace function public.continuity_list_epochs(p_after bigint, p_limit int) returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
begin
  if p_limit is null or p_limit not between 1 and 1000 then
    raise exception 'the limit has to be 1 to 1000' using errcode = 'RC005', detail = 'limit';
  end if;
  return (
    select coalesce(jsonb_agg(jsonb_build_object(
      'id', id,
      'event', event,
      'epoch', epoch,
      'mode', mode,
      'at', at,
      'actor', actor,
      'reason', reason,
      'term', term,
      'highWaterMark', high_water_mark,
      'detail', detail) order by id), '[]')
    from (
      select *
      from public.continuity_epochs
      where id > coalesce(p_after, 0)
      order by id
      limit p_limit
    ) page);
end
$$;
-- +goose StatementEnd

select public.continuity_lock_down();

notify pgrst, 'reload schema';
