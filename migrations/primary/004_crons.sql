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
  started_at timestamptz not null default now(),
  finished_at timestamptz,
  constraint cron_runs_pkey primary key (id),
  constraint cron_runs_trigger check (trigger in ('schedule', 'manual', 'catchup')),
  constraint cron_runs_state check (state in ('running', 'succeeded', 'partial', 'failed')),
  constraint cron_runs_finished check ((state = 'running') = (finished_at is null)),
  constraint cron_runs_due check ((trigger = 'manual') = (due_at is null))
);
create index cron_runs_by_cron on cron_runs (cron, id desc);
create index cron_runs_by_due on cron_runs (cron, zone, due_at);

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
