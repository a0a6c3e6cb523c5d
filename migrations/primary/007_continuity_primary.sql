-- The primary's half of the continuity plane: what one idempotency key has done (the inbox), the aggregates that
-- commands change, the events to be told, and the primary's own copy of the fence. The hosted migrations are applied to
-- this database too; their tables have other names.
-- Locks: creates only. To go back: leave the tables, nothing reads them while the continuity phase is 0.

-- +goose Up

-- One row. The sequencer is the row in the hosted database; this copy is what a write is checked against, in the
-- transaction of the write, under a shared advisory lock whose exclusive half every flip takes. Epoch 0 is that of a
-- primary without a hosted database; a hosted fence begins with 1.
create table primary_fence (
  singleton boolean not null default true,
  epoch bigint not null default 0,
  mode text not null default 'DIRECT',
  -- Nothing new is taken, whatever the mode says, until the hosted fence has been read.
  closed boolean not null default true,
  -- The highest epoch that anybody has named. The fence does not open under a lower one.
  seen_epoch bigint not null default 0,
  -- When the hosted fence was last known to be as this row says: taken before it was asked.
  confirmed_at timestamptz not null default '-infinity',
  -- How often the hosted database has heard of a primary, as it said last. It says less once it was restored from a backup.
  beats bigint not null default 0,
  reason text not null default 'never read the hosted fence',
  actor text not null default 'migration',
  constraint primary_fence_pkey primary key (singleton),
  constraint primary_fence_one check (singleton),
  constraint primary_fence_mode check (mode in ('DIRECT', 'QUEUE', 'CATCHUP', 'SEALED')),
  constraint primary_fence_seen check (seen_epoch >= epoch)
);

-- Every flip. inbox_order is the last entry of the inbox at the flip, which the exclusive lock makes exact: what was
-- applied under a state stands between its flip and the next one, whatever clocks say.
create table primary_fence_flips (
  id bigint generated always as identity,
  epoch bigint not null,
  mode text not null,
  closed boolean not null,
  inbox_order bigint not null,
  reason text not null,
  actor text not null,
  at timestamptz not null,
  constraint primary_fence_flips_pkey primary key (id)
);

-- The outcome of every key that had one, for ever. Whoever comes with the key again is given it.
create table continuity_inbox (
  idempotency_key text not null,
  command_id uuid not null,
  command_type text not null,
  aggregate_type text not null,
  aggregate_id text not null,
  payload_hash bytea not null,
  way text not null,
  epoch bigint not null,
  -- The place in the hosted queue; null for a direct write.
  queue_sequence bigint,
  -- The hosted fence had not been read for so long that another epoch may have begun.
  unconfirmed boolean not null,
  -- A no-op changed nothing: the aggregate was already where the command leads, or beyond.
  outcome text not null,
  result jsonb not null,
  -- Drawn while the aggregate is locked, so within an aggregate it is the order of the effects.
  apply_order bigint generated always as identity,
  applied_at timestamptz not null default now(),
  constraint continuity_inbox_pkey primary key (idempotency_key),
  constraint continuity_inbox_command_key unique (command_id),
  constraint continuity_inbox_order_key unique (apply_order),
  constraint continuity_inbox_way check (way in ('direct', 'drained')),
  constraint continuity_inbox_drained_has_sequence check ((way = 'drained') = (queue_sequence is not null)),
  constraint continuity_inbox_outcome check (outcome in ('applied', 'noop'))
);
create index continuity_inbox_by_aggregate on continuity_inbox (aggregate_type, aggregate_id, apply_order);
create trigger continuity_inbox_append_only before update or delete on continuity_inbox
  for each row execute function refuse_change();
create trigger continuity_inbox_kept before truncate on continuity_inbox
  for each statement execute function refuse_change();

-- Which commands of the queue have their outcome here, be it that an earlier direct write had the effect. The cutover is
-- granted on the count of an epoch: each was entered before the queue was told that it is done. A key has two of them when
-- the queue has forgotten it, and it came again in a later epoch.
create table primary_drained (
  idempotency_key text not null,
  command_id uuid not null,
  queue_sequence bigint not null,
  -- The epoch under which the queue took it in.
  epoch bigint not null,
  at timestamptz not null default now(),
  constraint primary_drained_pkey primary key (command_id),
  constraint primary_drained_inbox_fkey foreign key (idempotency_key) references continuity_inbox (idempotency_key)
);
create index primary_drained_by_key on primary_drained (idempotency_key);
create index primary_drained_by_epoch on primary_drained (epoch);
create index primary_drained_by_sequence on primary_drained (queue_sequence);
create trigger primary_drained_append_only before update or delete on primary_drained
  for each row execute function refuse_change();

-- Why a drained command was given back without an effect. It is written before the queue is told, so that the queue's
-- dead row and an effect exclude each other: only a claim drawn later, after a person's redrive, may try the key again.
create table primary_refusals (
  idempotency_key text not null,
  command_id uuid not null,
  claim_token bigint not null,
  permanent boolean not null,
  reason text not null,
  epoch bigint not null,
  at timestamptz not null default now(),
  constraint primary_refusals_pkey primary key (idempotency_key)
);

create table orders (
  order_id text not null,
  company_id text not null,
  restaurant_id text not null,
  status text not null default 'pending',
  version bigint not null default 1,
  -- The transaction that paid for it.
  payment_id text,
  -- What the order was created with.
  details jsonb not null,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  -- The day database in which the order is a document, noted before it is written there. Where an order has been, it
  -- stays, unless its day is sealed.
  day_database_id bigint,
  -- The sealed day that it was in before.
  origin_day_database_id bigint,
  projected_version bigint not null default 0,
  constraint orders_pkey primary key (order_id),
  constraint orders_status check (status in ('pending', 'paid', 'preparing', 'delivered', 'cancelled', 'refunded')),
  constraint orders_company_id_format check (company_id ~ '^[a-z0-9-]{1,64}$'),
  constraint orders_restaurant_id_format check (restaurant_id ~ '^[a-z0-9-]{1,64}$'),
  constraint orders_projected check (projected_version between 0 and version),
  constraint orders_day_fkey foreign key (day_database_id) references day_databases (id),
  constraint orders_origin_day_fkey foreign key (origin_day_database_id) references day_databases (id)
);
create index orders_unprojected on orders (company_id, restaurant_id) where projected_version < version;
create index orders_open on orders (company_id, restaurant_id, created_at)
  where status in ('pending', 'paid', 'preparing');
create index orders_by_day on orders (day_database_id) where projected_version < version;

create table payments (
  payment_id text not null,
  company_id text not null,
  restaurant_id text not null,
  order_id text,
  status text not null,
  version bigint not null default 1,
  amount numeric,
  method text,
  details jsonb not null,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  day_database_id bigint,
  origin_day_database_id bigint,
  projected_version bigint not null default 0,
  constraint payments_pkey primary key (payment_id),
  constraint payments_status check (status in ('pending', 'approved', 'rejected', 'refunded', 'voided')),
  constraint payments_company_id_format check (company_id ~ '^[a-z0-9-]{1,64}$'),
  constraint payments_restaurant_id_format check (restaurant_id ~ '^[a-z0-9-]{1,64}$'),
  constraint payments_projected check (projected_version between 0 and version),
  constraint payments_day_fkey foreign key (day_database_id) references day_databases (id),
  constraint payments_origin_day_fkey foreign key (origin_day_database_id) references day_databases (id)
);
create index payments_unprojected on payments (company_id, restaurant_id) where projected_version < version;
create index payments_by_day on payments (day_database_id) where projected_version < version;

create table cashflow_entries (
  entry_id text not null,
  company_id text not null,
  restaurant_id text not null,
  kind text not null,
  amount numeric not null,
  details jsonb not null,
  recorded_at timestamptz not null default now(),
  constraint cashflow_entries_pkey primary key (entry_id),
  constraint cashflow_entries_kind check (kind in ('income', 'expense')),
  constraint cashflow_entries_company_id_format check (company_id ~ '^[a-z0-9-]{1,64}$'),
  constraint cashflow_entries_restaurant_id_format check (restaurant_id ~ '^[a-z0-9-]{1,64}$')
);
create trigger cashflow_entries_append_only before update or delete on cashflow_entries
  for each row execute function refuse_change();

-- What a person must see: a command that came too late to change anything, or that leaves money to be given back.
create table primary_notices (
  id bigint generated always as identity,
  idempotency_key text not null,
  command_id uuid not null,
  aggregate_type text not null,
  aggregate_id text not null,
  code text not null,
  detail jsonb not null,
  at timestamptz not null default now(),
  acknowledged_by text,
  acknowledged_at timestamptz,
  constraint primary_notices_pkey primary key (id),
  constraint primary_notices_acknowledgement_whole check (num_nonnulls(acknowledged_by, acknowledged_at) in (0, 2))
);
create index primary_notices_open on primary_notices (id) where acknowledged_at is null;

-- Events, in the transaction of the effect that they tell of.
create table primary_outbox (
  -- Drawn while the aggregate is locked, so within an aggregate it is the order of the events.
  position bigint generated always as identity,
  event_id uuid not null default gen_random_uuid(),
  event_type text not null,
  aggregate_type text not null,
  aggregate_id text not null,
  company_id text not null,
  restaurant_id text not null,
  payload jsonb not null,
  epoch bigint not null,
  created_at timestamptz not null default now(),
  -- When the hosted outbox is known to have it.
  published_at timestamptz,
  constraint primary_outbox_pkey primary key (position),
  constraint primary_outbox_event_key unique (event_id),
  constraint primary_outbox_payload_size check (octet_length(payload::text) <= 65536)
);
create index primary_outbox_unpublished on primary_outbox (position) where published_at is null;

-- Numbers snapshots. Drawn before the state is read, so the higher number never shows an older state.
create sequence primary_snapshot_versions as bigint;

-- +goose StatementBegin
create function primary_fence_check() returns trigger
language plpgsql as $$
begin
  if tg_op <> 'UPDATE' then
    raise exception 'the fence is one row, for ever' using errcode = 'RD003';
  end if;
  if new.epoch < old.epoch or new.seen_epoch < old.seen_epoch then
    raise exception 'epoch % is behind %', new.epoch, greatest(old.epoch, old.seen_epoch)
      using errcode = 'RC001', detail = greatest(old.epoch, old.seen_epoch)::text;
  end if;
  -- One epoch opens one gate: whoever opens the other one names a new epoch.
  if new.epoch = old.epoch and old.epoch > 0 and (new.mode = 'DIRECT') <> (old.mode = 'DIRECT') then
    raise exception 'epoch % is of mode %, and cannot be %', old.epoch, old.mode, new.mode using errcode = 'RC002';
  end if;
  if not new.closed and new.epoch < new.seen_epoch then
    raise exception 'the fence cannot open under epoch %, since epoch % was seen', new.epoch, new.seen_epoch
      using errcode = 'RC001', detail = new.seen_epoch::text;
  end if;
  return new;
end
$$;

create function primary_fence_log() returns trigger
language plpgsql as $$
begin
  insert into public.primary_fence_flips (epoch, mode, closed, inbox_order, reason, actor, at)
  select new.epoch, new.mode, new.closed, coalesce(max(apply_order), 0), new.reason, new.actor, now()
  from public.continuity_inbox;
  return null;
end
$$;

-- The same moves as the code's table; an UPDATE typed by hand cannot take an order out of a terminal state.
create function orders_check() returns trigger
language plpgsql as $$
begin
  if tg_op = 'INSERT' then
    if new.status <> 'pending' or new.version <> 1 then
      raise exception 'an order begins pending, at version 1' using errcode = 'RD002';
    end if;
    return new;
  end if;
  if (new.order_id, new.company_id, new.restaurant_id, new.created_at)
     is distinct from (old.order_id, old.company_id, old.restaurant_id, old.created_at) then
    raise exception 'the identity of an order never changes' using errcode = 'RD003';
  end if;
  if new.version <> old.version + ((new.status, new.payment_id) is distinct from (old.status, old.payment_id))::int then
    raise exception 'the version of an order rises by one with its status or its payment, and with nothing else'
      using errcode = 'RD002';
  end if;
  if new.status <> old.status and (old.status, new.status) not in (
      ('pending', 'paid'),
      ('pending', 'cancelled'),
      ('paid', 'preparing'),
      ('paid', 'cancelled'),
      ('paid', 'refunded'),
      ('preparing', 'delivered'),
      ('preparing', 'cancelled'),
      ('preparing', 'refunded'),
      ('delivered', 'refunded')) then
    raise exception 'an order does not move from % to %', old.status, new.status using errcode = 'RD002';
  end if;
  return new;
end
$$;
-- +goose StatementEnd

insert into primary_fence default values;
insert into primary_fence_flips (epoch, mode, closed, inbox_order, reason, actor, at)
select epoch, mode, closed, 0, reason, actor, now() from primary_fence;

create trigger primary_fence_check before insert or update or delete on primary_fence
  for each row execute function primary_fence_check();
create trigger primary_fence_flipped after update on primary_fence
  for each row when ((old.epoch, old.mode, old.closed) is distinct from (new.epoch, new.mode, new.closed))
  execute function primary_fence_log();
create trigger primary_fence_flips_append_only before update or delete on primary_fence_flips
  for each row execute function refuse_change();
create trigger primary_fence_flips_kept before truncate on primary_fence_flips
  for each statement execute function refuse_change();
create trigger orders_check before insert or update on orders
  for each row execute function orders_check();
