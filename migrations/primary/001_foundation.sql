-- Fencing tokens, leases, the restaurants of the fleet and the flags of their companies.
-- Locks: creates only. To go back: restore the backup taken before the upgrade.

-- +goose Up

-- One sequence for every lease of the installation: a token that was drawn later is higher,
-- whichever job drew it, so that any row can refuse a writer that is behind.
create sequence fencing_tokens_seq as bigint;

create table leases (
  name text not null,
  holder text not null,
  token bigint not null,
  acquired_at timestamptz not null default now(),
  expires_at timestamptz not null,
  constraint leases_pkey primary key (name)
);

create table restaurants (
  company_id text not null,
  restaurant_id text not null,
  timezone text not null default 'America/Santiago',
  legacy_db text not null,
  active boolean not null default true,
  -- The marker in the _security of the core database; a core whose marker differs is not ours.
  core_generation uuid not null default gen_random_uuid(),
  core_warmed_at timestamptz,
  -- The generation of the last manifest that was written to core.
  manifest_generation bigint,
  fencing_token bigint not null default 0,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  constraint restaurants_pkey primary key (company_id, restaurant_id),
  -- An underscore would let a_b + c and a + b_c share a database.
  constraint restaurants_company_id_format check (company_id ~ '^[a-z0-9-]{1,64}$'),
  constraint restaurants_restaurant_id_format check (restaurant_id ~ '^[a-z0-9-]{1,64}$')
);

create table company_feature_flags (
  company_id text not null,
  rolling_db boolean not null default false,
  rolling_db_drop boolean not null default false,
  device_routed boolean not null default false,
  updated_by text not null,
  updated_at timestamptz not null default now(),
  constraint company_feature_flags_pkey primary key (company_id),
  constraint company_feature_flags_company_id_format check (company_id ~ '^[a-z0-9-]{1,64}$'),
  constraint company_feature_flags_drop_needs_rolling check (rolling_db or not rolling_db_drop),
  constraint company_feature_flags_routed_needs_rolling check (rolling_db or not device_routed)
);

-- What was copied from a legacy database to a restaurant's own, and how far the feed was read.
create table legacy_copies (
  company_id text not null,
  restaurant_id text not null,
  -- core: catalogue into the core database. daily: operational documents into the open day.
  kind text not null,
  legacy_db text not null,
  -- Creation time of the legacy database as CouchDB states it; another one means another database.
  -- Empty for a legacy database that does not exist, which is an empty catalogue.
  incarnation text not null,
  -- Opaque update sequence, handed back verbatim.
  since text not null,
  documents bigint not null default 0,
  -- When the feed was first read to its end and all that it named was there. The row itself is
  -- older: it stands before the first document is copied, and its absence means that none was.
  completed_at timestamptz,
  -- Finished documents that were in the legacy database before this moment were not carried: they
  -- are the archive's, which clears it once it has read everything that was there then.
  left_to_archive_at timestamptz,
  fencing_token bigint not null,
  updated_at timestamptz not null default now(),
  constraint legacy_copies_pkey primary key (company_id, restaurant_id, kind),
  constraint legacy_copies_kind check (kind in ('core', 'daily')),
  constraint legacy_copies_restaurant_fkey foreign key (company_id, restaurant_id)
    references restaurants (company_id, restaurant_id)
);

-- +goose StatementBegin
-- A row that carries a fencing token never takes a lower one: the writer was paused past its
-- lease, and another has written since.
create function refuse_lower_token() returns trigger
language plpgsql as $$
begin
  if new.fencing_token < old.fencing_token then
    raise exception 'fencing token % is behind %', new.fencing_token, old.fencing_token
      using errcode = 'RD001', table = tg_table_name;
  end if;
  return new;
end
$$;
-- +goose StatementEnd

create trigger restaurants_token before update on restaurants
  for each row execute function refuse_lower_token();
create trigger legacy_copies_token before update on legacy_copies
  for each row execute function refuse_lower_token();

-- +goose StatementBegin
create function refuse_change() returns trigger
language plpgsql as $$
begin
  raise exception '% is append-only', tg_table_name using errcode = 'RD003', table = tg_table_name;
end
$$;
-- +goose StatementEnd
