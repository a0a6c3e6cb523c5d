-- What devices say that they hold and could not deliver yet. It keeps a day from being sealed.
-- Locks: creates only. To go back: drop both tables.

-- +goose Up

create table device_reports (
  company_id text not null,
  restaurant_id text not null,
  device_id text not null,
  -- Counted by the device: of two reports that overtake each other, the higher one is the later.
  sequence bigint not null,
  reported_at timestamptz not null default now(),
  constraint device_reports_pkey primary key (company_id, restaurant_id, device_id),
  constraint device_reports_restaurant_fkey foreign key (company_id, restaurant_id)
    references restaurants (company_id, restaurant_id)
);

-- One row for each device and day, for as long as the device holds documents of that day.
create table device_unsynced (
  company_id text not null,
  restaurant_id text not null,
  business_day date not null,
  device_id text not null,
  documents bigint not null,
  since timestamptz not null default now(),
  -- A person has decided not to wait for the device.
  waived_reason text,
  waived_by text,
  waived_at timestamptz,
  constraint device_unsynced_pkey primary key (company_id, restaurant_id, business_day, device_id),
  constraint device_unsynced_documents check (documents > 0),
  constraint device_unsynced_waiver_whole check (num_nonnulls(waived_reason, waived_by, waived_at) in (0, 3)),
  constraint device_unsynced_report_fkey foreign key (company_id, restaurant_id, device_id)
    references device_reports (company_id, restaurant_id, device_id)
);
