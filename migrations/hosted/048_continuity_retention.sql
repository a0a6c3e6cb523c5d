-- What is kept for how long, beside what 046 purges: events that nobody takes, and the snapshots of single orders and
-- payments, of which there is one for each that ever was. The primary keeps all of both.
-- Locks: the index is made under a lock that lets nobody publish a snapshot meanwhile, which nobody waits for. To go back:
-- drop the functions and the index.

-- +goose Up

-- Each heartbeat asks when the newest snapshot was published.
create index if not exists continuity_snapshots_by_age on public.continuity_snapshots (published_at);

-- +goose StatementBegin
-- Deletes snapshots whose key begins so and that were published so long ago, at least 14 days, a batch at a time. Whoever
-- reads one while the primary is away is told that there is none.
create or replace function public.continuity_purge_snapshots(p_prefix text, p_older_than_seconds bigint) returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
declare
  v_snapshots bigint;
begin
  perform public.continuity_require_name('prefix', p_prefix);
  if p_older_than_seconds is null or p_older_than_seconds < 1209600 then
    raise exception 'the retention has to be at least 14 days' using errcode = 'RC005', detail = 'older_than_seconds';
  end if;
  -- The age stands in the DELETE too, which waits for a snapshot that is being published.
  delete from public.continuity_snapshots
  where published_at < now() - make_interval(secs => p_older_than_seconds)
    and snapshot_key in (
      select snapshot_key
      from public.continuity_snapshots
      where published_at < now() - make_interval(secs => p_older_than_seconds)
        and starts_with(snapshot_key, p_prefix)
      order by published_at
      limit 2000);
  get diagnostics v_snapshots = row_count;
  return jsonb_build_object('snapshots', v_snapshots);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Deletes events that nobody has ever claimed and that were published so long ago, at least 14 days, a batch at a time,
-- while there is no sign of a subscriber: one leaves events that it holds, and for the retention those that it took. A
-- subscriber that is away for longer than that begins anew, with the snapshots.
create or replace function public.continuity_purge_unclaimed(p_older_than_seconds bigint) returns jsonb
language plpgsql volatile security definer
set search_path = '' set statement_timeout = '5s' set lock_timeout = '2s' as $$
declare
  v_events bigint := 0;
begin
  if p_older_than_seconds is null or p_older_than_seconds < 1209600 then
    raise exception 'the retention has to be at least 14 days' using errcode = 'RC005', detail = 'older_than_seconds';
  end if;
  if not exists (select from public.continuity_outbox where status = 'delivered')
     and not exists (select from public.continuity_outbox where status = 'claimed') then
    -- The oldest alone are looked at: a look at all of them would not end in time. What the row must be stands in the
    -- DELETE too, which waits for a claim that is being made.
    delete from public.continuity_outbox
    where status = 'pending'
      and claimed_by is null
      and published_at < now() - make_interval(secs => p_older_than_seconds)
      and outbox_sequence in (
        select outbox_sequence
        from public.continuity_outbox
        where status = 'pending'
        order by outbox_sequence
        limit 2000);
    get diagnostics v_events = row_count;
  end if;
  return jsonb_build_object('events', v_events);
end
$$;
-- +goose StatementEnd

select public.continuity_lock_down();

notify pgrst, 'reload schema';
