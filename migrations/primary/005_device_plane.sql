-- The device plane: revoked device tokens, and the notifications that keep its view of the ledger
-- fresh on every replica.
-- Locks: triggers on day_databases, company_feature_flags and restaurants, each for a moment.
-- To go back: drop the triggers, the functions and the table.

-- +goose Up

-- A device's tokens that were issued up to revoked_at are refused. The empty device id stands for
-- all devices of the restaurant.
create table device_revocations (
  company_id text not null,
  restaurant_id text not null,
  device_id text not null default '',
  revoked_at timestamptz not null default now(),
  revoked_by text not null,
  constraint device_revocations_pkey primary key (company_id, restaurant_id, device_id),
  constraint device_revocations_device_id_format check (device_id ~ '^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?$'),
  constraint device_revocations_restaurant_fkey foreign key (company_id, restaurant_id)
    references restaurants (company_id, restaurant_id)
);

-- +goose StatementBegin
-- The payload is company/restaurant; flags have no restaurant, and mean all of the company's.
-- Postgres sends equal notifications of one transaction once.
create function notify_device_plane() returns trigger
language plpgsql as $$
begin
  if tg_table_name = 'company_feature_flags' then
    perform pg_notify('rollingd_device_plane', new.company_id || '/');
  else
    perform pg_notify('rollingd_device_plane', new.company_id || '/' || new.restaurant_id);
  end if;
  return null;
end
$$;
-- +goose StatementEnd

create trigger day_databases_inserts_notify after insert on day_databases
  for each row execute function notify_device_plane();
create trigger day_databases_notify after update on day_databases
  for each row when ((old.state, old.seal_started_at, old.drop_intended_at)
    is distinct from (new.state, new.seal_started_at, new.drop_intended_at))
  execute function notify_device_plane();
create trigger company_feature_flags_notify after insert or update on company_feature_flags
  for each row execute function notify_device_plane();
create trigger restaurants_inserts_notify after insert on restaurants
  for each row execute function notify_device_plane();
create trigger restaurants_notify after update on restaurants
  for each row when ((old.legacy_db, old.manifest_generation)
    is distinct from (new.legacy_db, new.manifest_generation))
  execute function notify_device_plane();
create trigger device_revocations_notify after insert or update on device_revocations
  for each row execute function notify_device_plane();
