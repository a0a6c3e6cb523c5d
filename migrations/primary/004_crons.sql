-- Runs of the crons, and their pauses.
-- Locks: creates only. To go back: restore the backup taken before the upgrade.

-- +goose Up

create table cron_runs (
  id bigint generated always as identity,
  cron text not null,
  -- The zone whose hour was due; null for a run that a person started.
  zone text,
  -- The scheduled time that this run serves; null for a run that a person started.
  due_at timestamptz,
  trigger text not null,
  actor text not null,
  scope jsonb not null default '{}',
  dry_run boolean not null default false,
  state text not null default 'running',
  token bigint not null,
  counters jsonb not null default '{}',
  failures jsonb not null default '[]',
  -- Moves of day databases that the run made, or would have made if it was a dry run.
  changes jsonb not null default '[]',
  -- What kept the run from its end: stop, the server was stopped; lease, its process died or was
  -- paused past its lease. The scheduled time of such a run is served by another.
  interrupted_by text,
  started_at timestamptz not null default now(),
  finished_at timestamptz,
  constraint cron_runs_pkey primary key (id),
  constraint cron_runs_trigger check (trigger in ('schedule', 'manual', 'catchup')),
  constraint cron_runs_state check (state in ('running', 'succeeded', 'partial', 'failed')),
  constraint cron_runs_finished check ((state = 'running') = (finished_at is null)),
  constraint cron_runs_due check ((trigger = 'manual') = (due_at is null)),
  constraint cron_runs_zone check ((trigger = 'manual') = (zone is null)),
  constraint cron_runs_interrupted check (interrupted_by in ('stop', 'lease')),
  constraint cron_runs_interrupted_failed check (interrupted_by is null or state = 'failed')
);
create index cron_runs_by_cron on cron_runs (cron, id desc);
create index cron_runs_by_due on cron_runs (cron, zone, due_at);
create unique index cron_runs_one_running on cron_runs (cron) where state = 'running';

-- +goose StatementBegin
-- A run that has ended keeps what it reported: nobody rewrites history, least of all a process
-- that was paused while another closed its run.
create function cron_runs_final() returns trigger
language plpgsql as $$
begin
  if old.state <> 'running' then
    raise exception 'run % has ended', old.id using errcode = 'RD003', table = tg_table_name;
  end if;
  return new;
end
$$;
-- +goose StatementEnd

create trigger cron_runs_final before update on cron_runs
  for each row execute function cron_runs_final();

create table cron_pauses (
  cron text not null,
  reason text not null,
  actor text not null,
  since timestamptz not null default now(),
  constraint cron_pauses_pkey primary key (cron)
);

-- When this installation first knew of a cron in a zone: nothing earlier was missed.
create table cron_starts (
  cron text not null,
  zone text not null,
  since timestamptz not null default now(),
  constraint cron_starts_pkey primary key (cron, zone)
);
