-- The archive: documents exactly as CouchDB sent them, their attachments, what Postgres would not
-- take, and how far each database was read.
-- Locks: creates only. To go back: restore the backup taken before the upgrade.

-- +goose Up

-- +goose StatementBegin
-- The terminal statuses per dynamic type; the same table as the contract's, held equal by
-- scripts/verify-contracts-parity.sh.
create function is_terminal(doc_type text, status text) returns boolean
language sql immutable parallel safe as $$
  select coalesce(case doc_type
    when 'order' then status in ('closed', 'cancelled', 'refunded')
    when 'payment' then status in ('approved', 'rejected', 'refunded', 'voided')
    when 'cashflow' then status in ('closed')
    when 'inventory_movement' then true
    else false
  end, false)
$$;
-- +goose StatementEnd

-- A database that is read, in one incarnation. A database that was deleted and created again under
-- the same name is another source: it is read from the start and overwrites nothing.
create table archive_checkpoints (
  id bigint generated always as identity,
  db_name text not null,
  -- The marker of a day database; the creation time of a legacy database, which has no marker.
  incarnation text not null,
  day_database_id bigint,
  -- Opaque update sequence of the last change that is in the archive, handed back verbatim.
  since text not null default '0',
  -- How many purges the database had seen when it was first read. A purge shows in no feed: another
  -- number means that it has to be read from the start.
  purge_seq bigint not null,
  -- The restaurants, as company/restaurant, whose documents of a legacy database are in the archive
  -- up to since. One that joins later has its documents before since, so it too means: from the start.
  tenants text[] not null default '{}',
  fencing_token bigint not null,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  constraint archive_checkpoints_pkey primary key (id),
  constraint archive_checkpoints_source_key unique (db_name, incarnation),
  constraint archive_checkpoints_day_fkey foreign key (day_database_id) references day_databases (id)
);
create trigger archive_checkpoints_token before update on archive_checkpoints
  for each row execute function refuse_lower_token();

-- business_day is the day database's own, or, for a legacy document, the day it belongs to.
create table archived_docs (
  business_day date not null,
  source_id bigint not null,
  -- sha256 of the exact id: an id may be longer than a btree key, and may hold a NUL.
  id_hash bytea not null,
  -- The exact UTF-8 bytes of the id.
  doc_id bytea not null,
  company_id text,
  restaurant_id text,
  -- Winning revision, and whether it is a deletion.
  rev text not null,
  deleted boolean not null,
  doc_type text,
  status text,
  -- The last live body that was archived, and its digest. A deletion keeps it.
  body text,
  body_rev text,
  body_sha256 bytea,
  -- The body of the deletion.
  tombstone text,
  -- The attachments of the winning revision: ids of archived_attachments; null when it has none.
  attachments bigint[],
  archived_at timestamptz not null default now(),
  constraint archived_docs_pkey primary key (source_id, id_hash, business_day),
  constraint archived_docs_type_dynamic check
    (doc_type in ('order', 'payment', 'cashflow', 'inventory_movement')),
  constraint archived_docs_status_terminal check (body is null or is_terminal(doc_type, status)),
  constraint archived_docs_body_whole check (num_nonnulls(body, body_rev, body_sha256) in (0, 3)),
  constraint archived_docs_body_present check (case when deleted then tombstone is not null else body is not null end)
) partition by range (business_day);

-- Months are created ahead, or as documents arrive; what lies outside 2000 to 2099 stays here. The
-- constraint spares each new month a look through this table under its exclusive lock.
create table archived_docs_other partition of archived_docs (
  constraint archived_docs_other_outside check (business_day < '2000-01-01' or business_day >= '2100-01-01')
) default;

-- The losing leaves that are deleted, with their bodies. A losing leaf that is live is a conflict,
-- and a blocker: it never reaches the archive.
create table archived_leaves (
  source_id bigint not null,
  id_hash bytea not null,
  rev text not null,
  doc_id bytea not null,
  body text not null,
  body_sha256 bytea not null,
  attachments bigint[],
  archived_at timestamptz not null default now(),
  constraint archived_leaves_pkey primary key (source_id, id_hash, rev),
  constraint archived_leaves_source_fkey foreign key (source_id) references archive_checkpoints (id)
);

create table archived_attachments (
  id bigint generated always as identity,
  source_id bigint not null,
  id_hash bytea not null,
  name bytea not null,
  content_type text not null,
  -- CouchDB's digest: of the stored bytes, which for text are gzipped. It names a version, it proves nothing.
  digest text not null,
  length bigint not null,
  sha256 bytea not null,
  archived_at timestamptz not null default now(),
  constraint archived_attachments_pkey primary key (id),
  constraint archived_attachments_source_fkey foreign key (source_id) references archive_checkpoints (id)
);
create unique index archived_attachments_version_key
  on archived_attachments (source_id, id_hash, sha256(name), digest);

-- The bytes, in pieces, so that a large attachment passes through in little memory.
create table archived_attachment_chunks (
  attachment_id bigint not null,
  n integer not null,
  data bytea not null,
  constraint archived_attachment_chunks_pkey primary key (attachment_id, n),
  constraint archived_attachment_chunks_attachment_fkey foreign key (attachment_id)
    references archived_attachments (id)
);
alter table archived_attachment_chunks alter column data set storage external;

-- Documents of a source that keep it from being archived whole, as of its checkpoint: lock 1 and
-- lock 2 read them here.
create table archive_blockers (
  source_id bigint not null,
  id_hash bytea not null,
  doc_id bytea not null,
  rev text not null,
  -- non_terminal, core_type, no_type, conflict
  code text not null,
  doc_type text,
  status text,
  seen_at timestamptz not null default now(),
  constraint archive_blockers_pkey primary key (source_id, id_hash, code),
  constraint archive_blockers_code check (code in ('non_terminal', 'core_type', 'no_type', 'conflict')),
  constraint archive_blockers_source_fkey foreign key (source_id) references archive_checkpoints (id)
);

-- Documents that Postgres would not take, with their bytes; ids and revisions may hold a NUL, which
-- is shown as an escape in rev. Each later archiving tries them again.
create table archive_rejects (
  source_id bigint not null,
  id_hash bytea not null,
  doc_id bytea not null,
  rev text not null,
  deleted boolean not null,
  bytes bytea not null,
  -- The SQLSTATE, or attachment when CouchDB did not give what the document names.
  code text not null,
  error text not null,
  first_at timestamptz not null default now(),
  last_at timestamptz not null default now(),
  attempts integer not null default 1,
  constraint archive_rejects_pkey primary key (source_id, id_hash),
  constraint archive_rejects_source_fkey foreign key (source_id) references archive_checkpoints (id)
);

-- +goose StatementBegin
-- Text as jsonb where that is possible, else null: jsonb takes neither a NUL nor very deep nesting.
create function try_jsonb(body text) returns jsonb
language plpgsql immutable parallel safe as $$
begin
  return body::jsonb;
exception when others then
  return null;
end
$$;
-- +goose StatementEnd

create view archived_documents as
  select
    d.business_day,
    c.db_name,
    case when position('\x00'::bytea in d.doc_id) = 0 then convert_from(d.doc_id, 'UTF8') end as doc_id,
    d.company_id,
    d.restaurant_id,
    d.rev,
    d.deleted,
    d.doc_type,
    d.status,
    try_jsonb(d.body) as body,
    d.archived_at
  from archived_docs d
  join archive_checkpoints c on c.id = d.source_id;
