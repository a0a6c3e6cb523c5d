-- What the units of a run report from the replicas that do them, until the run takes it in.
-- Locks: creates only. To go back: drop the table; the runs that wait for it are repeated.

-- +goose Up

create table cron_run_units (
  run_id bigint not null,
  key text not null,
  -- Counters, changes and failures; the shape is the run's.
  result jsonb not null,
  done_by text not null,
  done_at timestamptz not null default now(),
  constraint cron_run_units_pkey primary key (run_id, key),
  constraint cron_run_units_run_fkey foreign key (run_id) references cron_runs (id)
);
