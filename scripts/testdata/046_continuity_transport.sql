-- A hosted migration of the form that the parity check reads. It is never applied.
create table public.continuity_commands (
  command_id uuid not null,
  idempotency_key text not null,
  payload jsonb not null, -- at most 64 KiB
  status text not null default 'pending',
  attempts int not null default 0,
  max_attempts int not null default 8,
  constraint continuity_commands_status check (
    status in ('pending', 'claimed', 'acked', 'dead')
  ),
  constraint continuity_commands_payload check (octet_length(payload::text) <= 65536)
);

create table public.continuity_outbox (
  event_id uuid not null,
  payload jsonb not null,
  status text not null default 'pending',
  constraint continuity_outbox_status check (status in ('pending', 'claimed', 'delivered', 'dead')),
  constraint continuity_outbox_payload check (octet_length(payload::text) <= 64 * 1024)
);

create table public.continuity_snapshots (
  snapshot_key text not null,
  payload jsonb not null,
  constraint continuity_snapshots_payload check (octet_length(payload::text) <= 262144)
);

create table public.continuity_replication_state (
  node_id text not null,
  mode text not null,
  constraint continuity_replication_state_mode check (mode in ('primary', 'degraded', 'recovering'))
);

create function public.continuity_fail_command(p_command_id uuid, p_error text) returns void
language plpgsql security definer set search_path = '' as $$
begin
  update public.continuity_commands
  set
    status = case when attempts >= max_attempts then 'dead' else 'pending' end,
    last_error = p_error,
    available_at = now() + make_interval(secs => least(3600, 15 * power(2, attempts - 1)))
  where command_id = p_command_id;
end
$$;
