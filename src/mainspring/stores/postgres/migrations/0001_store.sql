-- The schema of a store.
--
-- Tables are grouped by idea: the store, processes, jobs and schedules, runs, limits, workflows, history, dead letters,
-- events, tenants and access, metrics and usage, the sharded store. Functions and triggers follow, row-level security ends.
--
-- Times are microseconds since 1970 (bigint), with the same meaning in SQL, in Python and in SQLite.
-- Names of tenants, tasks and queues are stored as integers. Documents are JSON as bytea, which PostgreSQL never parses.


-- The store ---------------------------------------------------------------------------------------------------------------

CREATE TABLE meta (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    store_id    uuid NOT NULL DEFAULT gen_random_uuid(),
    store_epoch integer NOT NULL DEFAULT 1,   -- raised by a restore or a promotion, so that fences keep growing
    shards      integer NOT NULL,
    -- Signs hints where the settings name no key. store_id would not do: it is part of the names of queues, groups and keys.
    hint_key    uuid NOT NULL DEFAULT gen_random_uuid()
);

-- Numbers of names. kind: 1 tenant, 2 task, 3 queue, 4 label set (see run.claim_group), 5 claim group of a tenant (see queue_policy).
CREATE TABLE name (
    id   integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind smallint NOT NULL,
    name text NOT NULL,
    UNIQUE (kind, name)
);
-- The tenant of every request that names none.
INSERT INTO name (kind, name) VALUES (1, 'default');

-- The task catalog: what workers declare about their tasks. rev grows with every change of the table, so that a reader
-- asks only for what is new.
CREATE TABLE task (
    name          text PRIMARY KEY,
    rev           bigint NOT NULL UNIQUE,
    version       integer NOT NULL,
    body          bytea NOT NULL,             -- JSON
    registered_by text NOT NULL,
    registered_at bigint NOT NULL
);


-- Processes: workers and schedulers ---------------------------------------------------------------------------------------

-- No index on lease_until, so that a heartbeat is a HOT update.
CREATE TABLE session (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind         smallint NOT NULL,           -- 1 worker, 2 scheduler
    live         boolean NOT NULL DEFAULT true,
    name         text NOT NULL,
    datacenter   text NOT NULL,
    version      text NOT NULL,
    started_at   bigint NOT NULL,
    lease_until  bigint NOT NULL,
    ended_at     bigint,
    queues       text[] NOT NULL DEFAULT '{}',
    tasks        text[] NOT NULL DEFAULT '{}',
    owner        text NOT NULL DEFAULT '',
    serves       text NOT NULL DEFAULT '',
    lease        bigint NOT NULL DEFAULT 0,
    draining     boolean NOT NULL DEFAULT false,
    labels       text[] NOT NULL DEFAULT '{}',
    claim_groups integer[],                   -- that it may claim from besides 0; null: none
    priorities   smallint[] NOT NULL DEFAULT '{}',  -- of a worker with a pool of slots for each priority
    clock_offset bigint,                      -- how far the clock of its node is ahead of the store's; null: not reported
    clock_error  bigint,                      -- the error bound of clock_offset
    knows        integer,                     -- the newest schema version that its program knows; contracts check it
    slots        integer,                     -- how many runs it has room for, over all its queues; null: not reported
    tzdata       text NOT NULL DEFAULT ''     -- version of its time zone database, such as 2026f; empty: not reported
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX session_live ON session (kind, id) WHERE live;

CREATE TABLE shard (
    id    smallint PRIMARY KEY,
    owner bigint,                             -- a session
    epoch bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- Preference orders of data centers that runs require, by claim group, and the data center that serves that group now. The
-- claim group is a name of kind 4; the order is the word in it with a >.
CREATE TABLE datacenter_order (
    claim_group integer PRIMARY KEY,
    serving     text NOT NULL,
    why         text NOT NULL DEFAULT '',
    since       bigint NOT NULL
);


-- Jobs and schedules ------------------------------------------------------------------------------------------------------

CREATE TABLE job (
    id         uuid PRIMARY KEY,
    tenant     integer NOT NULL,
    name       text NOT NULL,
    version    integer NOT NULL,
    state      smallint NOT NULL,             -- 1 scheduled, 2 paused, 3 finished, 4 cancelled
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    UNIQUE (tenant, name)
);
CREATE INDEX job_tenant ON job (tenant, id);

CREATE TABLE job_version (
    job_id  uuid NOT NULL,
    version integer NOT NULL,
    spec    bytea NOT NULL,
    made_by text NOT NULL DEFAULT '',
    why     text NOT NULL DEFAULT '',
    made_at bigint NOT NULL,
    tenant  integer NOT NULL,
    PRIMARY KEY (job_id, version)
);

-- The state of a recurring job. rev grows with every change; a scheduler that fires a tick must have read the newest.
CREATE TABLE schedule (
    job_id       uuid PRIMARY KEY,
    shard        smallint NOT NULL,
    rev          bigint NOT NULL DEFAULT 1,
    active       boolean NOT NULL DEFAULT true,
    next_fire    bigint,
    delay        bigint,                      -- fixed delay: next_fire is set when the run ends
    tick_no      bigint NOT NULL DEFAULT 0,
    tenant       integer NOT NULL,
    resume_at    bigint,                      -- when a paused job resumes by itself
    paused_until bigint,                      -- ticks before it belong to a pause that is over
    pause_why    text NOT NULL DEFAULT '',
    tick         bigint,                      -- of a job that looks ahead: its next tick; next_fire is when to plan it
    calendar_rev bigint NOT NULL DEFAULT 0    -- how many changes its tenant's calendars have had; a planner must know all
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX schedule_due ON schedule (shard, next_fire) WHERE active AND next_fire IS NOT NULL;
CREATE INDEX schedule_waits ON schedule (job_id) WHERE active AND next_fire IS NULL AND delay IS NOT NULL;
CREATE INDEX schedule_resumes ON schedule (resume_at) WHERE resume_at IS NOT NULL;

-- Calendars, one row for each version. A change is written into the schedules that use the calendar at once.
CREATE TABLE calendar (
    tenant  integer NOT NULL,
    name    text NOT NULL,
    version integer NOT NULL,
    spec    bytea NOT NULL,
    deleted boolean NOT NULL DEFAULT false,
    made_by text NOT NULL DEFAULT '',
    why     text NOT NULL DEFAULT '',
    made_at bigint NOT NULL,
    PRIMARY KEY (tenant, name, version)
);

-- The decision about each tick, immutable. The result of its run comes from history. A tick that goes to several data
-- centers has one row for each of them.
CREATE TABLE ledger (
    job_id       uuid NOT NULL,
    scheduled_at bigint NOT NULL,
    decision     smallint NOT NULL,           -- 1 run, 2 skipped
    job_version  integer NOT NULL,
    epoch        bigint NOT NULL,
    run_id       uuid,
    reason       text NOT NULL DEFAULT '',
    ticks        integer NOT NULL DEFAULT 1,
    last_at      bigint,
    tenant       integer NOT NULL,
    target       text NOT NULL DEFAULT '',    -- a data center
    PRIMARY KEY (job_id, scheduled_at, target)
) PARTITION BY RANGE (scheduled_at);
-- Days of ledger, attempt and log are dropped for all retention classes at once. Rows of runs that are kept longer are moved
-- to the _kept table first, and deleted together with their run.
CREATE TABLE ledger_kept (LIKE ledger INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
CREATE INDEX ledger_kept_run ON ledger_kept (run_id);
CREATE UNIQUE INDEX ledger_kept_tick ON ledger_kept (job_id, scheduled_at, target);

-- Service level objectives of schedules: the state of each, as JSON, and when it is checked next.
CREATE TABLE slo (
    job_id     uuid PRIMARY KEY,
    tenant     integer NOT NULL,
    rev        bigint NOT NULL DEFAULT 1,
    next_check bigint NOT NULL,
    state      bytea NOT NULL
);
CREATE INDEX slo_check ON slo (next_check);


-- Runs --------------------------------------------------------------------------------------------------------------------
--
-- Rows of live runs are slim and few: payloads are in body, and a run that has ended moves to history.
-- States: 1 scheduled, 2 blocked by a key, 3 queued, 4 running, 5 succeeded, 6 failed, 7 cancelled, 8 skipped,
-- 9 blocked by a limit, 10 blocked by its parents.

-- Numbers every claim, so that a report of an older claim is recognized as stale.
CREATE SEQUENCE fence_seq;

-- Task, policy and payload, written once. bucket is the day of the run, and is dropped with that day's history; bucket -1
-- holds rows that outlive their day (far-off runs, unsuccessful ones) and are deleted one by one; bucket 0 is kept for ever
-- (payloads of job versions). Buckets of a retention class are n * 100000 higher: n is 1 short (by the day), 2 long (by 7
-- days), 3 audit (by 30 days). Partitions of a class are made when the first run chooses it.
CREATE TABLE body (
    bucket  integer NOT NULL,
    id      uuid NOT NULL,
    task    integer NOT NULL,
    policy  bytea,                            -- null: all defaults
    payload bytea NOT NULL,
    tenant  integer NOT NULL,
    about   bytea,                            -- name and owner of a one-off, as JSON
    PRIMARY KEY (bucket, id)
) PARTITION BY RANGE (bucket);
CREATE TABLE body_kept PARTITION OF body FOR VALUES FROM (-1) TO (0);
CREATE TABLE body_forever PARTITION OF body FOR VALUES FROM (0) TO (1);

-- Tags of one-offs, in the bucket of their body.
CREATE TABLE label (
    bucket integer NOT NULL,
    id     uuid NOT NULL,
    tenant integer NOT NULL,
    label  text NOT NULL,
    PRIMARY KEY (bucket, id, label)
) PARTITION BY RANGE (bucket);
CREATE TABLE label_kept PARTITION OF label FOR VALUES FROM (-1) TO (0);
CREATE INDEX label_label ON label (tenant, label, id);

-- Queued and running. The check holds that a running row has an owner, a fence and an end.
CREATE TABLE run (
    id            uuid PRIMARY KEY,
    shard         smallint NOT NULL,
    state         smallint NOT NULL,
    priority      smallint NOT NULL,
    attempt       smallint NOT NULL,
    lost          smallint NOT NULL,
    tenant        integer NOT NULL,
    queue         integer NOT NULL,
    claim_group   integer NOT NULL DEFAULT 0, -- the label set that it requires; 0: none; negative: that session alone
    body_bucket   integer NOT NULL,
    rank          bigint NOT NULL,
    due           bigint NOT NULL,
    created_at    bigint NOT NULL,
    timeout       bigint NOT NULL,
    fence         bigint NOT NULL DEFAULT 0,
    claim         integer,
    session       bigint,
    started_at    bigint,
    attempt_until bigint,
    start_by      bigint,
    deadline      bigint,
    cancel_at     bigint,
    key_lock      bigint,                     -- the ordering key that it holds
    scheduled_at  bigint,
    job_id        uuid,
    job_version   integer,
    body_id       uuid,                       -- null: its own id
    replay_of     uuid,
    target        integer,
    origin        smallint NOT NULL DEFAULT 1,  -- 1 submitted, 2 tick, 3 tick of a fixed delay, 4 manual, 5 backfill
    queued_at     bigint,                     -- when it last became eligible; null: created_at
    limits        bigint[],                   -- groups of five: kind, number, most, per, pause; a breaker first; null: none
    has_children  boolean,                    -- other runs wait for it
    of_task       integer,                    -- the task of its body, so that usage need not read that; null: read the body
    ready_at      bigint,                     -- since when it could start, if later than due: blocked before, or a retry
    CHECK (state <> 4 OR (session IS NOT NULL AND attempt_until IS NOT NULL AND fence > 0))
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
        autovacuum_analyze_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX run_ready ON run (queue, claim_group, rank, id) WHERE state = 3;
CREATE INDEX run_held ON run (session) WHERE state = 4;
CREATE INDEX run_start_by ON run (start_by) WHERE start_by IS NOT NULL AND state = 3;
CREATE INDEX run_deadline ON run (deadline) WHERE deadline IS NOT NULL AND state = 3;
CREATE INDEX run_target ON run (target) WHERE target IS NOT NULL;
-- For counting limits again, and for recalling queued runs when a breaker opens.
CREATE INDEX run_limited ON run (id) WHERE limits IS NOT NULL;
CREATE INDEX run_breaker ON run ((limits[2])) WHERE limits[1] = 3 AND state = 3;
CREATE INDEX run_backfilled ON run (job_id, scheduled_at) WHERE origin = 5;
CREATE INDEX run_job ON run (job_id, id) WHERE job_id IS NOT NULL;

-- Scheduled (for later, or between two attempts) and blocked.
CREATE TABLE waiting (
    id            uuid PRIMARY KEY,
    shard         smallint NOT NULL,
    state         smallint NOT NULL,
    priority      smallint NOT NULL,
    attempt       smallint NOT NULL,
    lost          smallint NOT NULL,
    tenant        integer NOT NULL,
    queue         integer NOT NULL,
    claim_group   integer NOT NULL DEFAULT 0,
    body_bucket   integer NOT NULL,
    due           bigint NOT NULL,
    created_at    bigint NOT NULL,
    timeout       bigint NOT NULL,
    fence         bigint NOT NULL DEFAULT 0,
    late          boolean NOT NULL DEFAULT false,  -- a retry, or caught up: queues behind live work
    holds         boolean NOT NULL DEFAULT false,  -- between two attempts: it keeps its ordering key
    start_by      bigint,
    deadline      bigint,
    cancel_at     bigint,
    key_lock      bigint,                     -- the ordering key that it holds or waits for
    scheduled_at  bigint,
    job_id        uuid,
    job_version   integer,
    body_id       uuid,
    replay_of     uuid,
    target        integer,
    origin        smallint NOT NULL DEFAULT 1,
    reason        text,
    limits        bigint[],
    has_children  boolean,
    waits         bigint,                     -- the limiter that blocks it
    rank          bigint                      -- the rank that it keeps when it is queued again
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX waiting_due ON waiting (shard, due) WHERE state = 1;
CREATE INDEX waiting_blocked ON waiting (key_lock, due, id) WHERE state = 2;
CREATE INDEX waiting_start_by ON waiting (start_by) WHERE start_by IS NOT NULL;
CREATE INDEX waiting_deadline ON waiting (deadline) WHERE deadline IS NOT NULL;
CREATE INDEX waiting_tenant ON waiting (tenant, id);
CREATE INDEX waiting_target ON waiting (target) WHERE target IS NOT NULL;
CREATE INDEX waiting_limit ON waiting (waits, due, id) WHERE state = 9;
CREATE INDEX waiting_parents ON waiting (id) WHERE state = 10;
-- "+ 0": otherwise the planner would use it instead of waiting_limit while it is small.
CREATE INDEX waiting_body ON waiting (body_bucket) WHERE fence > 0 OR state + 0 IN (2, 9, 10);
CREATE INDEX waiting_backfilled ON waiting (job_id, scheduled_at) WHERE origin = 5;
CREATE INDEX waiting_job ON waiting (job_id, id) WHERE job_id IS NOT NULL;

-- The newest progress report of a run.
CREATE TABLE progress (
    run_id uuid PRIMARY KEY,
    at     bigint NOT NULL,
    done   double precision NOT NULL,
    total  double precision,
    note   text NOT NULL,
    tenant integer NOT NULL
) WITH (fillfactor = 70);

-- What an attempt saves for the next one, as JSON. The newest counts; it is deleted with its run.
CREATE TABLE checkpoint (
    run_id uuid PRIMARY KEY,
    tenant integer NOT NULL,
    state  bytea NOT NULL
) WITH (fillfactor = 70);

-- Idempotency keys of callers, as hashes, and what was made with each: 1 a run, 2 a job.
CREATE TABLE idempotency (
    tenant      integer NOT NULL,
    key         bytea NOT NULL,
    kind        smallint NOT NULL,
    id          uuid NOT NULL,
    fingerprint bytea NOT NULL,
    expires_at  bigint NOT NULL,
    PRIMARY KEY (tenant, key)
);
CREATE INDEX idempotency_expires ON idempotency (expires_at);


-- Limits ------------------------------------------------------------------------------------------------------------------

-- An ordering key, which lets one run through at a time. Taking and releasing the key locks its row.
CREATE TABLE key_lock (
    key    bigint PRIMARY KEY,
    holder uuid
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- The counter of a limit. A run that passes or leaves locks its row; several are locked in the order of their numbers.
CREATE TABLE limiter (
    number     bigint PRIMARY KEY,
    kind       smallint NOT NULL,              -- 1 at a time, 2 per period, 3 breaker
    used       integer NOT NULL DEFAULT 0,
    times      bigint[] NOT NULL DEFAULT '{}',
    open_until bigint,
    head       integer,                        -- the limit as the first run in line has it; null: no run waits
    recalls    boolean NOT NULL DEFAULT false, -- a breaker has opened, and runs of its task may still be queued
    wake_at    bigint,                         -- when to look at it though no run leaves
    forget_at  bigint NOT NULL DEFAULT 0       -- until then its times count
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX limiter_wake ON limiter (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX limiter_recalls ON limiter (number) WHERE recalls;
-- Whether there is any limit per period: without one a claim has nothing to count.
CREATE INDEX limiter_per_period ON limiter (number) WHERE kind = 2;

-- Unique keys, as hashes, and the run of each. until: when the key is free again; null: when the run has ended.
CREATE TABLE unique_run (
    tenant integer NOT NULL,
    key    bytea NOT NULL,
    run_id uuid NOT NULL,
    until  bigint,
    PRIMARY KEY (tenant, key)
);

-- Settings of a queue. In a fair queue every tenant has claim groups of its own, and where workers have a pool of slots for
-- each priority every priority has: a name of kind 5, tenant:claim_group:priority, with the claim group that the run would
-- have otherwise; 0 is any tenant, any priority. Runs that are in another claim group are moved by the next claim.
CREATE TABLE queue_policy (
    queue    integer PRIMARY KEY,
    policy   bytea NOT NULL,
    closely  boolean NOT NULL,                -- a claim must lock this row, so that claims of the queue take turns
    fair     boolean NOT NULL,
    pooled   boolean NOT NULL DEFAULT false,  -- there are workers with a pool of slots for each priority
    grouped  boolean NOT NULL DEFAULT false,  -- there may be claim groups of kind 5: it is fair or pooled, or was fair
    weighted boolean NOT NULL DEFAULT false,  -- there may be runs that take more than one slot
    clock    bigint NOT NULL DEFAULT 0,       -- of fair turns: the highest tag that was served
    retries  bigint,                          -- its retry budget: so many in each period
    per      bigint
) WITH (fillfactor = 50);

-- Fair turns of tenants that are ahead of the queue's clock. The others have no row.
CREATE TABLE queue_turn (
    queue  integer NOT NULL,
    tenant integer NOT NULL,
    tag    bigint NOT NULL,
    PRIMARY KEY (queue, tenant)
) WITH (fillfactor = 50);

-- How many retries are due in a period, of queues with a retry budget. next: where to look on if the period is full.
CREATE TABLE queue_retry (
    queue  integer NOT NULL,
    period bigint NOT NULL,
    come   bigint NOT NULL,
    next   bigint,
    PRIMARY KEY (queue, period)
) WITH (fillfactor = 70);

-- Paused queues: nothing is claimed from them. 0: every tenant, every queue.
CREATE TABLE pause (
    tenant integer NOT NULL,
    queue  integer NOT NULL,
    since  bigint NOT NULL,
    author text NOT NULL,
    why    text NOT NULL,
    until  bigint,                            -- null: until a person resumes it
    PRIMARY KEY (tenant, queue)
);


-- Workflows ---------------------------------------------------------------------------------------------------------------

-- A run with parents: its rule (1 all succeeded, 2 all done, 3 any succeeded, 4 any failed), and how its parents ended.
-- start_within and deadline count from when the rule is met.
CREATE TABLE dependent (
    run_id       uuid PRIMARY KEY,
    tenant       integer NOT NULL,
    rule         smallint NOT NULL,
    parents      integer NOT NULL,
    succeeded    integer NOT NULL DEFAULT 0,
    otherwise    integer NOT NULL DEFAULT 0,
    failed       integer NOT NULL DEFAULT 0,
    start_within bigint,
    deadline     bigint
) WITH (fillfactor = 70);

CREATE TABLE edge (
    child  uuid NOT NULL,
    parent uuid NOT NULL,
    place  integer NOT NULL,                  -- the order in which the parents were named
    tenant integer NOT NULL,
    state  smallint,                          -- how the parent ended, once that was counted
    PRIMARY KEY (child, parent)
);
CREATE INDEX edge_parent ON edge (parent, child);
CREATE INDEX edge_undecided ON edge (parent, child) WHERE state IS NULL;

-- Runs that have ended and whose children are not all decided.
CREATE TABLE ended_parent (
    run_id uuid PRIMARY KEY,
    state  smallint NOT NULL,
    at     bigint NOT NULL
);


-- History -----------------------------------------------------------------------------------------------------------------

-- Runs that have ended: append-only, dropped by time. Each retention class is a partition of its own.
CREATE TABLE history (
    id           uuid NOT NULL,
    class        smallint NOT NULL,
    state        smallint NOT NULL,
    priority     smallint NOT NULL,
    attempt      smallint NOT NULL,
    lost         smallint NOT NULL,
    origin       smallint NOT NULL,
    tenant       integer NOT NULL,
    queue        integer NOT NULL,
    body_bucket  integer NOT NULL,
    finished_at  bigint NOT NULL,
    due          bigint NOT NULL,
    created_at   bigint NOT NULL,
    fence        bigint NOT NULL,
    started_at   bigint,
    session      bigint,
    scheduled_at bigint,
    job_version  integer,
    target       integer,
    job_id       uuid,
    body_id      uuid,
    replay_of    uuid,
    result       bytea,
    reason       text,
    error        text,
    queued_at    bigint,
    start_by     bigint,
    deadline     bigint,
    cpu          bigint,                      -- microseconds of CPU; null: not known
    units        text,                        -- units that the application counts, as JSON
    of_task      integer
) PARTITION BY LIST (class);
CREATE TABLE history_succeeded PARTITION OF history FOR VALUES IN (1) PARTITION BY RANGE (finished_at);
CREATE TABLE history_unsuccessful PARTITION OF history FOR VALUES IN (2) PARTITION BY RANGE (finished_at);
CREATE TABLE history_short PARTITION OF history FOR VALUES IN (3) PARTITION BY RANGE (finished_at);
CREATE TABLE history_long PARTITION OF history FOR VALUES IN (4) PARTITION BY RANGE (finished_at);
CREATE TABLE history_audit PARTITION OF history FOR VALUES IN (5) PARTITION BY RANGE (finished_at);
CREATE INDEX history_id ON history (id);
CREATE INDEX history_tenant ON history (tenant, id);
CREATE INDEX history_job ON history (job_id, id) WHERE job_id IS NOT NULL;
-- For the metrics: costs next to nothing when a run ends, since rows are stored in the order of their time.
CREATE INDEX history_finished ON history USING brin (finished_at) WITH (pages_per_range = 32, autosummarize = on);
CREATE INDEX history_backfilled ON history (job_id, scheduled_at) WHERE origin = 5;

-- Attempts that did not succeed.
CREATE TABLE attempt (
    run_id      uuid NOT NULL,
    fence       bigint NOT NULL,
    number      smallint NOT NULL,
    outcome     smallint NOT NULL,            -- 2 error, 3 timeout, 4 lost, 5 cancelled, 6 released
    session     bigint,
    started_at  bigint,
    ended_at    bigint NOT NULL,
    reason      text NOT NULL DEFAULT '',
    error       text,
    tenant      integer NOT NULL,
    queue       integer NOT NULL DEFAULT 0,   -- 0: not known
    cpu         bigint,
    units       text,
    job_id      uuid,                         -- of its run, for usage
    body_bucket integer,
    body_id     uuid
) PARTITION BY RANGE (ended_at);
CREATE INDEX attempt_run ON attempt (run_id, fence);
CREATE INDEX attempt_ended ON attempt USING brin (ended_at) WITH (pages_per_range = 32, autosummarize = on);
CREATE TABLE attempt_kept (LIKE attempt INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
CREATE INDEX attempt_kept_run ON attempt_kept (run_id, fence);

-- Log output of attempts, dropped by the day.
CREATE SEQUENCE log_position;
CREATE TABLE log (
    run_id   uuid NOT NULL,
    position bigint NOT NULL DEFAULT nextval('log_position'),
    at       bigint NOT NULL,
    attempt  smallint NOT NULL,
    text     text NOT NULL,
    tenant   integer NOT NULL
) PARTITION BY RANGE (at);
CREATE INDEX log_run ON log (run_id, position);
CREATE TABLE log_kept (LIKE log INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
CREATE INDEX log_kept_run ON log_kept (run_id, position);

-- Log bytes per day of tenants with a quota, in several rows for each tenant: concurrent reports do not wait for each other.
CREATE TABLE log_day (
    tenant integer NOT NULL,
    day    integer NOT NULL,
    slot   smallint NOT NULL,
    bytes  bigint NOT NULL,
    PRIMARY KEY (day, tenant, slot)
) WITH (fillfactor = 70);


-- Dead letters ------------------------------------------------------------------------------------------------------------

-- Runs that have failed: 1 open, 2 replayed, 3 discarded.
CREATE TABLE dead_letter (
    run_id      uuid PRIMARY KEY,
    state       smallint NOT NULL DEFAULT 1,
    tenant      integer NOT NULL,
    task        integer,
    queue       integer NOT NULL,
    at          bigint NOT NULL,
    fingerprint text NOT NULL
);
CREATE INDEX dead_letter_tenant ON dead_letter (tenant, run_id) WHERE state = 1;
CREATE INDEX dead_letter_kind ON dead_letter (fingerprint, run_id);
CREATE INDEX dead_letter_at ON dead_letter (at) WHERE state = 1;

-- Groups of dead letters that were reported, and up to when dead letters were examined.
CREATE TABLE dead_group (
    tenant      integer NOT NULL,
    task        integer NOT NULL,             -- 0: not known any more
    fingerprint text NOT NULL,
    since       bigint NOT NULL,
    count       bigint NOT NULL,              -- how many were added since then
    seen_at     bigint NOT NULL,
    grew_at     bigint,
    PRIMARY KEY (tenant, task, fingerprint)
);
CREATE TABLE dead_watch (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    until    bigint NOT NULL
);

-- Replays that are under way or have ended, as JSON. rev grows with every change.
CREATE TABLE replay (
    id       uuid PRIMARY KEY,
    tenant   text,                            -- null: of all tenants
    open     boolean NOT NULL,
    rev      integer NOT NULL,
    ended_at bigint,
    record   bytea NOT NULL
);
CREATE INDEX replay_open ON replay (id) WHERE open;


-- Events ------------------------------------------------------------------------------------------------------------------

-- One row for each batch, written while there are readers, and read in the order of (xid, id). A reader stops before the xid
-- of the oldest transaction under way. A transaction that has seen what a younger one committed must come behind that, so
-- xid is the newest that had ended when its statement began, if that is not before its own.
CREATE TABLE outbox (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid    xid8 NOT NULL DEFAULT greatest(
               pg_current_xact_id(), (pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1)::text::xid8),
    at     bigint NOT NULL,
    kind   text NOT NULL,
    runs   uuid[] NOT NULL,
    tenant integer NOT NULL,
    tasks  integer[],                         -- of a plain submit, in the order of runs, to save a lookup; null: look up
    queues integer[]
);
CREATE INDEX outbox_order ON outbox (xid, id);
-- Ids are nearly random: compressing them costs more than it saves.
ALTER TABLE outbox ALTER COLUMN runs SET STORAGE EXTERNAL;

CREATE TABLE outbox_cursor (
    reader   text PRIMARY KEY,
    xid      xid8 NOT NULL,                   -- of the last event that the reader has handled
    position bigint NOT NULL,
    until    bigint                           -- when the reader is forgotten; null: never
);

-- A reader before this position may have missed events: they were deleted, or not written while there were no readers.
CREATE TABLE outbox_horizon (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    xid      xid8 NOT NULL,
    id       bigint NOT NULL
);

-- State of alerts: open problems and unsent alerts, by name, as JSON. The row without a name counts the changes.
CREATE TABLE notification (
    name text PRIMARY KEY,
    rev  bigint NOT NULL DEFAULT 0,
    body bytea NOT NULL
);


-- Tenants and access ------------------------------------------------------------------------------------------------------

-- Tenants with settings. running is the one quota that a claim must keep.
CREATE TABLE tenant (
    number     integer PRIMARY KEY,
    created_at bigint NOT NULL,
    running    bigint,
    quotas     bytea NOT NULL
);
CREATE INDEX tenant_running ON tenant (number) WHERE running IS NOT NULL;

CREATE TABLE api_key (
    id           text PRIMARY KEY,
    tenant       text,                        -- null: not bound to a tenant
    name         text NOT NULL,
    role         text NOT NULL,
    secret_hash  bytea NOT NULL,
    queues       text[] NOT NULL,
    made_by      text NOT NULL,
    created_at   bigint NOT NULL,
    expires_at   bigint,
    revoked_at   bigint,
    last_used_at bigint
);

-- Sessions of the dashboard that were ended by a sign-out, until they would have expired.
CREATE TABLE signed_out (
    id      text PRIMARY KEY,
    ends_at bigint NOT NULL
);

-- Changes by people. The tenant is a name, since the audit may be all that is stored of a tenant; empty: no tenant.
CREATE TABLE audit (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       bigint NOT NULL,
    count    integer NOT NULL,
    tenant   text NOT NULL,
    author   text NOT NULL,
    action   text NOT NULL,
    target   text NOT NULL,
    why      text NOT NULL,
    before   bytea,
    after    bytea
);
CREATE INDEX audit_tenant ON audit (tenant, position);
CREATE INDEX audit_target ON audit (target, position);
-- Without it a page reads the whole audit for an author with few changes.
CREATE INDEX audit_author ON audit (author, position);


-- Metrics and usage -------------------------------------------------------------------------------------------------------

-- Metrics by the minute, rolled up from history until rolled_up.until.
CREATE TABLE minute (
    at         bigint NOT NULL,
    tenant     integer NOT NULL,
    queue      integer NOT NULL,
    succeeded  bigint NOT NULL,
    failed     bigint NOT NULL,
    cancelled  bigint NOT NULL,
    skipped    bigint NOT NULL,
    retried    bigint NOT NULL,
    started    bigint NOT NULL,
    late_total bigint NOT NULL,
    late_most  bigint NOT NULL,
    took_total bigint NOT NULL,
    took_most  bigint NOT NULL,
    PRIMARY KEY (at, tenant, queue)
);
CREATE TABLE rolled_up (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    until    bigint NOT NULL
);

-- How many runs started how late and took how long, by bucket, rolled up with minute.
CREATE TABLE timing (
    at     bigint NOT NULL,
    tenant integer NOT NULL,
    queue  integer NOT NULL,
    bucket integer NOT NULL,
    late   bigint NOT NULL,
    took   bigint NOT NULL,
    PRIMARY KEY (at, tenant, queue, bucket)
) WITH (fillfactor = 70);

-- Queued and running runs, sampled once a minute; tenant -1: all together. load_seen: the minutes that were sampled, which
-- every tenant may read.
CREATE TABLE load (
    at      bigint NOT NULL,
    tenant  integer NOT NULL,
    queue   integer NOT NULL,
    queued  bigint NOT NULL,
    running bigint NOT NULL,
    lag     bigint NOT NULL,
    PRIMARY KEY (at, tenant, queue)
);
CREATE TABLE load_seen (at bigint PRIMARY KEY);

-- Sums by the day, rolled up from history and attempts with minute. job_id is all zeros for one-offs.
CREATE TABLE usage (
    tenant integer NOT NULL,
    day    bigint NOT NULL,
    task   integer NOT NULL,                  -- 0: not known
    job_id uuid NOT NULL,
    unit   text NOT NULL,
    amount double precision NOT NULL,
    PRIMARY KEY (tenant, day, task, job_id, unit)
) WITH (fillfactor = 70);
CREATE INDEX usage_day ON usage (day);

CREATE TABLE budget (
    id     uuid PRIMARY KEY,
    tenant integer NOT NULL,
    name   text NOT NULL,
    spec   bytea NOT NULL,                    -- JSON
    state  text NOT NULL DEFAULT 'ok',
    since  bigint NOT NULL DEFAULT 0,
    spent  double precision NOT NULL DEFAULT 0,
    held   boolean NOT NULL DEFAULT false,    -- something is paused because of it
    UNIQUE (tenant, name)
);


-- The sharded store -------------------------------------------------------------------------------------------------------
--
-- Which server of the store this is, which placement groups it has, and which are on their way to another server. In a store
-- with one server these tables are empty.

CREATE TABLE server (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    set_id   uuid NOT NULL,                   -- the sharded store
    number   smallint NOT NULL
);

-- All placement groups of the store. The version grows with every move.
CREATE TABLE placement_group (
    id      smallint PRIMARY KEY,
    here    boolean NOT NULL,
    version bigint NOT NULL
);

-- Placement groups that have left, with all their rows, until the other server has stored them.
CREATE TABLE departure (
    placement_group smallint PRIMARY KEY,
    target  smallint NOT NULL,
    version bigint NOT NULL
);
CREATE TABLE departed (
    placement_group smallint NOT NULL,
    number integer NOT NULL,
    kind   text NOT NULL,                     -- a table
    rows   jsonb NOT NULL,
    PRIMARY KEY (placement_group, number)
);


-- Functions and triggers --------------------------------------------------------------------------------------------------

-- The store's clock. Every query that asks what is due uses it.
CREATE FUNCTION now_us() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT (extract(epoch FROM now()) * 1000000)::bigint $$;

-- now_us() is when the transaction began, which may be long ago in a transaction of the application.
CREATE FUNCTION clock_us() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- The groups of a run's limits as rows.
CREATE FUNCTION unpack_limits(limits bigint[]) RETURNS TABLE (kind bigint, number bigint, most bigint, per bigint, pause bigint)
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT limits[i], limits[i + 1], limits[i + 2], limits[i + 3], limits[i + 4]
          FROM generate_series(1, cardinality(limits), 5) AS i $$;

-- The starts that count after some more, oldest first.
CREATE FUNCTION times_after(times bigint[], now bigint, per bigint, runs integer) RETURNS bigint[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT ARRAY(SELECT t FROM unnest(times || array_fill(now, ARRAY[runs])) AS t WHERE t > now - per ORDER BY t) $$;

-- The placement group of an id and of a tenant, as core/model/cluster/placement.py computes them.
CREATE FUNCTION compute_id_placement(id uuid, groups integer) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT (((get_byte(uuid_send(id), 8) << 8) | get_byte(uuid_send(id), 9)) & 16383) % groups $$;
CREATE FUNCTION compute_tenant_placement(tenant text, groups integer) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT (('x' || left(encode(sha256(convert_to(tenant, 'UTF8')), 'hex'), 8))::bit(32)::bigint % groups)::integer $$;

-- Called by triggers that are made when a server joins a sharded store, and made again with every move. Their condition lists
-- the shards that are not here, so that a row of this server costs next to nothing.
CREATE FUNCTION refuse_elsewhere() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'its placement group is on another server' USING ERRCODE = 'MS010';
END $$;
CREATE FUNCTION refuse_tenant_elsewhere() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM placement_group p, name n
        WHERE n.id = NEW.tenant AND p.here AND p.id = compute_tenant_placement(n.name, (SELECT count(*)::integer FROM placement_group))
    ) THEN
        RAISE EXCEPTION 'its placement group is on another server' USING ERRCODE = 'MS010';
    END IF;
    RETURN NEW;
END $$;

-- A run goes to wait for its next attempt. With a retry budget its due time moves to the first period with room.
CREATE FUNCTION pace_retry() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    budget record;
    wanted bigint;
    place  bigint;
    n      bigint;
    on_to  bigint;
BEGIN
    SELECT q.retries, q.per INTO budget FROM queue_policy q WHERE q.queue = NEW.queue AND q.retries IS NOT NULL;
    IF NOT FOUND THEN
        RETURN NEW;
    END IF;
    -- Transactions take turns, because they do not lock periods in the order of their numbers.
    PERFORM pg_advisory_xact_lock(hashtext('queue_retry'), NEW.queue);
    wanted := NEW.due / budget.per;
    place := wanted;
    LOOP
        INSERT INTO queue_retry AS r (queue, period, come) VALUES (NEW.queue, place, 1)
        ON CONFLICT (queue, period) DO UPDATE SET come = r.come + 1 WHERE r.come < budget.retries
        RETURNING come INTO n;
        EXIT WHEN FOUND;
        SELECT coalesce(r.next, place + 1) INTO on_to FROM queue_retry r WHERE r.queue = NEW.queue AND r.period = place;
        place := on_to;
    END LOOP;
    IF place > wanted THEN
        NEW.due := place * budget.per + (n - 1) * budget.per / budget.retries;
        UPDATE queue_retry SET next = place WHERE queue = NEW.queue AND period = wanted;
    END IF;
    IF n = 1 THEN
        DELETE FROM queue_retry WHERE queue = NEW.queue AND period < now_us() / budget.per - 1;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER pace_retry BEFORE INSERT ON waiting FOR EACH ROW WHEN (NEW.state = 1 AND NEW.late AND NEW.fence > 0)
    EXECUTE FUNCTION pace_retry();

-- Submitting inside a transaction of the application: one statement of any driver, any language or a trigger does what the
-- store's own submit does. The functions run with the rights of their owner.

-- A run on its way into the tables.
CREATE TYPE new_run AS (
    number      integer,
    id          uuid,
    bucket      integer,
    task        integer,
    tenant      integer,
    queue       integer,
    queue_name  text,
    shard       smallint,
    priority    integer,
    claim_group        integer,
    due         bigint,
    timeout     bigint,
    start_by    bigint,
    deadline    bigint,
    key_lock        bigint,
    policy      bytea,
    payload     bytea,
    about       bytea,
    tags        text[],
    key         bytea,
    fingerprint bytea,
    limits      bigint[]
);

-- The request is JSON: {"store": ..., "runs": [{"task": ..., "payload": "...", ...}]}, made by transactions.py. The
-- answer has an entry for each run: [id, state, whether it is new, whether its key was used for something else].
-- A run with an ordering key or limits is admitted later, by a scheduler: otherwise the rows of its key and limits would stay
-- locked until the caller commits, and workers that complete its runs would wait for that.
CREATE FUNCTION submit_runs(request text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $function$
DECLARE
    asked     jsonb := request::jsonb;
    about_us  meta%ROWTYPE;
    moment    bigint := clock_us();
    a_day     constant bigint := 86400000000;
    any_shard integer;
    -- The first bits of an id made here: milliseconds, and a sequence of 12 bits.
    place     bigint;
    kinds     integer[];
    words     text[];
    runs      new_run[];
    one       new_run;
    problem   text;
    before    record;
    counts    boolean;
    taken     uuid[] := '{}';
    used      integer[] := '{}';
    answers   jsonb := '[]';
    topic     text;
BEGIN
    SELECT * INTO STRICT about_us FROM meta;
    IF asked ->> 'store' IS NOT NULL AND (asked ->> 'store')::uuid <> about_us.store_id THEN
        RAISE EXCEPTION 'this connection is to another store' USING ERRCODE = 'MS001';
    END IF;
    place := moment * 4096 / 1000;
    any_shard := floor(random() * about_us.shards);

    SELECT array_agg(n.kind), array_agg(n.name) INTO kinds, words FROM (
        SELECT DISTINCT v.kind, coalesce(v.name, '') AS name
        FROM jsonb_array_elements(asked -> 'runs') AS r,
             LATERAL (VALUES (1, r ->> 'tenant'), (2, r ->> 'task'), (3, r ->> 'queue')) AS v(kind, name)
    ) AS n;
    SELECT n.name INTO problem FROM unnest(words) AS n(name)
    WHERE n.name !~ '^[^[:cntrl:]]{1,200}$' OR n.name ~ '^\s|\s$' LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '% is not a name: 1 to 200 printable characters', quote_literal(left(problem, 40))
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO name (kind, name)
    SELECT w.kind, w.name FROM unnest(kinds, words) AS w(kind, name)
    WHERE NOT EXISTS (SELECT FROM name n WHERE n.kind = w.kind AND n.name = w.name)
    ORDER BY w.kind, w.name ON CONFLICT DO NOTHING;

    runs := ARRAY(
        SELECT ROW(
            i.number,
            coalesce(i.id, (lpad(to_hex((place + i.number) >> 12), 12, '0') || '7'
                || lpad(to_hex((place + i.number) & 4095), 3, '0') || to_hex(32768 | any_shard)
                || right(gen_random_uuid()::text, 12))::uuid),
            -- The day whose partition holds the body, if that partition exists; -1 holds days that are further away.
            CASE WHEN i.day < moment / a_day + 7 AND to_regclass('body_d' || i.bucket) IS NOT NULL THEN i.bucket
                 WHEN to_regclass('body_d' || (i.class * 100000 - 1)) IS NOT NULL THEN i.class * 100000 - 1 ELSE -1 END,
            (SELECT n.id FROM name n WHERE n.kind = 2 AND n.name = i.task),
            (SELECT n.id FROM name n WHERE n.kind = 1 AND n.name = i.tenant),
            (SELECT n.id FROM name n WHERE n.kind = 3 AND n.name = i.queue),
            i.queue, coalesce(i.shard, any_shard), i.priority, coalesce(i.claim_group, 0), i.due, i.timeout, i.due + i.start_within,
            i.due + i.deadline, i.key_lock, convert_to(i.policy, 'UTF8'), convert_to(i.payload, 'UTF8'),
            convert_to(i.about, 'UTF8'), coalesce(i.tags, '{}'), decode(i.key, 'hex'), decode(i.fingerprint, 'hex'),
            i.limits
        )::new_run
        FROM (
            SELECT e.number::integer, r.*, w.due, w.day, c.class,
                   CASE c.class WHEN 0 THEN w.day WHEN 1 THEN 100000 + w.day WHEN 2 THEN 200000 + w.day / 7
                                ELSE 300000 + w.day / 30 END AS bucket
            FROM jsonb_array_elements(asked -> 'runs') WITH ORDINALITY AS e(run, number),
                 jsonb_to_record(e.run) AS r(id uuid, shard integer, task text, tenant text, queue text, payload text,
                     policy text, about text, tags text[], priority integer, claim_group integer, timeout bigint, at bigint,
                     delay bigint, start_within bigint, deadline bigint, key_lock bigint, limits bigint[], key text,
                     fingerprint text, retention integer),
                 LATERAL (SELECT coalesce(r.at, moment + coalesce(r.delay, 0)) AS due,
                                 (greatest(moment, coalesce(r.at, moment + coalesce(r.delay, 0))) / a_day)::integer AS day) AS w,
                 -- By default the class of the tenant.
                 LATERAL (SELECT coalesce(r.retention, (
                     SELECT array_position(ARRAY['short', 'long', 'audit'], convert_from(t.quotas, 'UTF8')::jsonb ->> 'retention')
                     FROM tenant t JOIN name n ON n.id = t.number WHERE n.kind = 1 AND n.name = r.tenant), 0) AS class) AS c
        ) AS i ORDER BY i.number
    );
    SELECT CASE
        WHEN r.payload IS NULL THEN 'a payload is missing'
        WHEN octet_length(r.payload) > 262144 THEN format('a payload is %s bytes; at most 262144', octet_length(r.payload))
        WHEN octet_length(r.policy) > 16384 OR octet_length(r.about) > 65536 OR cardinality(r.tags) > 20 THEN 'it says too much'
        WHEN r.priority NOT BETWEEN 1 AND 10 THEN format('priority %s is not 1 (urgent) to 10 (idle)', r.priority)
        WHEN r.timeout NOT BETWEEN 1 AND 30 * a_day THEN 'a timeout is more than 0 and at most 30 days'
        WHEN r.due NOT BETWEEN 0 AND moment + 36600 * a_day THEN 'it is due too late, or before 1970'
        WHEN r.shard NOT BETWEEN 0 AND about_us.shards - 1 THEN format('there is no shard %s', r.shard)
        WHEN r.start_by <= r.due OR r.deadline <= r.due THEN 'a limit is more than 0'
        ELSE 'the number of a name is missing' END INTO problem
    FROM unnest(runs) AS r
    WHERE (octet_length(r.payload) <= 262144 AND r.priority BETWEEN 1 AND 10 AND r.timeout BETWEEN 1 AND 30 * a_day
        AND r.due BETWEEN 0 AND moment + 36600 * a_day AND r.shard BETWEEN 0 AND about_us.shards - 1
        AND coalesce(r.start_by > r.due, true) AND coalesce(r.deadline > r.due, true)
        AND coalesce(octet_length(r.policy) <= 16384, true) AND coalesce(octet_length(r.about) <= 65536, true)
        AND cardinality(r.tags) <= 20 AND r.task + r.tenant + r.queue IS NOT NULL) IS NOT TRUE LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '%', problem USING ERRCODE = 'invalid_parameter_value';
    END IF;

    -- In the order of the keys, so that two transactions with the same keys do not deadlock.
    FOR one IN SELECT * FROM unnest(runs) AS r WHERE r.key IS NOT NULL ORDER BY r.tenant, r.key, r.number LOOP
        LOOP
            INSERT INTO idempotency (tenant, key, kind, id, fingerprint, expires_at)
            VALUES (one.tenant, one.key, 1, one.id, one.fingerprint, moment + a_day) ON CONFLICT DO NOTHING;
            IF FOUND THEN
                taken := taken || one.id;
                EXIT;
            END IF;
            SELECT k.* INTO before FROM idempotency k WHERE k.tenant = one.tenant AND k.key = one.key FOR UPDATE;
            -- It was deleted a moment ago: try again.
            CONTINUE WHEN NOT FOUND;
            counts := before.id = ANY (taken) OR before.expires_at > moment AND CASE before.kind
                WHEN 2 THEN EXISTS (SELECT FROM job j WHERE j.id = before.id)
                ELSE EXISTS (SELECT FROM run r WHERE r.id = before.id)
                  OR EXISTS (SELECT FROM waiting w WHERE w.id = before.id)
                  OR EXISTS (SELECT FROM history h WHERE h.id = before.id) END;
            IF counts THEN
                used := used || one.number;
                answers := answers || jsonb_build_array(jsonb_build_array(
                    one.number, replace(before.id::text, '-', ''), coalesce(
                        (SELECT r.state FROM run r WHERE r.id = before.id),
                        (SELECT w.state FROM waiting w WHERE w.id = before.id),
                        (SELECT h.state FROM history h WHERE h.id = before.id LIMIT 1),
                        CASE WHEN before.kind = 2 THEN 1 ELSE 3 END
                    ), false, before.kind = 2 OR before.fingerprint <> one.fingerprint));
            ELSE
                UPDATE idempotency k SET kind = 1, id = one.id, fingerprint = one.fingerprint, expires_at = moment + a_day
                WHERE k.tenant = one.tenant AND k.key = one.key;
                taken := taken || one.id;
            END IF;
            EXIT;
        END LOOP;
    END LOOP;
    IF cardinality(used) > 0 THEN
        runs := ARRAY(SELECT r FROM unnest(runs) AS r WHERE r.number <> ALL (used));
    END IF;

    WITH bodies AS (
        INSERT INTO body (bucket, id, task, policy, payload, tenant, about)
        SELECT r.bucket, r.id, r.task, r.policy, r.payload, r.tenant, r.about FROM unnest(runs) AS r
    ), queued AS (
        INSERT INTO run (id, shard, state, priority, attempt, lost, tenant, queue, claim_group, body_bucket, rank, due, created_at,
                         timeout, start_by, deadline)
        SELECT r.id, r.shard, 3, r.priority, 0, 0, r.tenant, r.queue, r.claim_group, r.bucket, moment + r.priority * 1000000000::bigint,
               r.due, moment, r.timeout, r.start_by, r.deadline
        FROM unnest(runs) AS r WHERE r.due <= moment AND r.key_lock IS NULL AND r.limits IS NULL
    ), later AS (
        INSERT INTO waiting (id, shard, state, priority, attempt, lost, tenant, queue, claim_group, body_bucket, due, created_at,
                             timeout, start_by, deadline, key_lock, limits)
        SELECT r.id, r.shard, 1, r.priority, 0, 0, r.tenant, r.queue, r.claim_group, r.bucket, r.due, moment, r.timeout, r.start_by,
               r.deadline, r.key_lock, r.limits
        FROM unnest(runs) AS r WHERE r.due > moment OR r.key_lock IS NOT NULL OR r.limits IS NOT NULL
    ), labels AS (
        INSERT INTO label (bucket, id, tenant, label)
        SELECT r.bucket, r.id, r.tenant, t.tag FROM unnest(runs) AS r, unnest(r.tags) AS t(tag) ON CONFLICT DO NOTHING
    )
    INSERT INTO outbox (at, kind, tenant, runs)
    SELECT moment, 'run.submitted', r.tenant, array_agg(r.id) FROM unnest(runs) AS r
    WHERE EXISTS (SELECT FROM outbox_cursor) GROUP BY r.tenant;

    -- Sent when the caller commits, each topic once.
    FOR topic IN
        SELECT DISTINCT CASE WHEN r.due <= moment AND r.key_lock IS NULL AND r.limits IS NULL
                             THEN 'queue:' || r.queue_name ELSE 'schedules' END
        FROM unnest(runs) AS r WHERE r.due <= moment + 5000000
    LOOP
        PERFORM pg_notify(current_schema() || '_wakeups', 'sql ' || topic);
    END LOOP;

    SELECT answers || coalesce(jsonb_agg(jsonb_build_array(r.number, replace(r.id::text, '-', ''),
               CASE WHEN r.due <= moment AND r.key_lock IS NULL AND r.limits IS NULL THEN 3 ELSE 1 END, true, false)), '[]') INTO answers
    FROM unnest(runs) AS r;
    RETURN (SELECT coalesce(jsonb_agg(a.answer - 0 ORDER BY (a.answer ->> 0)::integer), '[]')
            FROM jsonb_array_elements(answers) AS a(answer));
END
$function$;

-- For people and triggers: one run, with the usual defaults. Returns its id.
CREATE FUNCTION submit(
    task text, payload jsonb DEFAULT '{}', queue text DEFAULT 'default', tenant text DEFAULT 'default',
    priority integer DEFAULT 5, delay interval DEFAULT '0', at timestamptz DEFAULT NULL, unique_key text DEFAULT NULL,
    retries integer DEFAULT 3, timeout interval DEFAULT '1 hour'
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $function$
DECLARE
    asked  jsonb;
    answer jsonb;
BEGIN
    IF retries NOT BETWEEN 0 AND 1000 THEN
        RAISE EXCEPTION 'retries are 0 to 1000, not %', retries USING ERRCODE = 'invalid_parameter_value';
    ELSIF delay < '0' THEN
        RAISE EXCEPTION 'a delay is not less than 0' USING ERRCODE = 'invalid_parameter_value';
    ELSIF unique_key !~ '^[^[:cntrl:]]{1,200}$' THEN
        RAISE EXCEPTION 'a unique key has 1 to 200 printable characters' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    asked := jsonb_build_object(
        'task', task, 'payload', payload::text, 'queue', queue, 'tenant', tenant, 'priority', priority,
        'at', (extract(epoch FROM at) * 1000000)::bigint, 'delay', (extract(epoch FROM delay) * 1000000)::bigint,
        'timeout', (extract(epoch FROM timeout) * 1000000)::bigint,
        'policy', jsonb_build_object('retry', jsonb_build_object('max_retries', retries),
                                     'timeout', (extract(epoch FROM timeout) * 1000000)::bigint)::text);
    IF unique_key IS NOT NULL THEN
        asked := asked || jsonb_build_object(
            'key', encode(sha256(convert_to(unique_key, 'UTF8')), 'hex'),
            'fingerprint', left(encode(sha256(convert_to(asked::text, 'UTF8')), 'hex'), 32));
    END IF;
    answer := submit_runs(jsonb_build_object('runs', jsonb_build_array(asked))::text)::jsonb -> 0;
    IF (answer ->> 3)::boolean THEN
        RAISE EXCEPTION 'unique key % was used for something else, run %', quote_literal(unique_key), answer ->> 0
            USING ERRCODE = 'unique_violation';
    END IF;
    RETURN answer ->> 0;
END
$function$;

-- The search path of a caller may contain tables with the same names. An administrator grants the right to call them.
DO $$
DECLARE
    called text;
BEGIN
    FOREACH called IN ARRAY ARRAY[
        'submit_runs(text)',
        'submit(text, jsonb, text, text, integer, interval, timestamptz, text, integer, interval)'
    ] LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', called, current_schema());
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', called);
    END LOOP;
END
$$;


-- Row-level security ------------------------------------------------------------------------------------------------------
--
-- A second barrier between tenants. It binds every role that does not own the tables; row_security.py makes the role that reads for
-- people. The tenant scope is a setting of the connection: the number of a tenant, and its name for tables that store only
-- that. Without the setting no row is visible. Only reading is allowed.
--
-- "+ 0": the policy only filters, and leaves the choice of an index to the query, which names the tenant itself. The
-- sub-select is computed once for each query, not for each row.
DO $$
DECLARE
    number constant text := $text$(SELECT nullif(current_setting('mainspring.tenant', true), '')::integer)$text$;
    name constant text := $text$(SELECT nullif(current_setting('mainspring.tenant_name', true), ''))$text$;
    scoped record;
BEGIN
    FOR scoped IN
        SELECT unnest(ARRAY[
            'job', 'job_version', 'schedule', 'calendar', 'ledger', 'ledger_kept', 'slo', 'body', 'label', 'run', 'waiting',
            'progress', 'checkpoint', 'idempotency', 'unique_run', 'queue_turn', 'dependent', 'edge', 'history', 'attempt',
            'attempt_kept', 'log', 'log_kept', 'log_day', 'dead_letter', 'dead_group', 'outbox', 'minute', 'timing', 'load',
            'usage', 'budget'
        ]) AS table_name, format('tenant + 0 = %s', number) AS visible
        UNION ALL SELECT unnest(ARRAY['audit', 'api_key', 'replay']), format('tenant = %s', name)
        UNION ALL SELECT 'tenant', format('number + 0 = %s', number)
        -- A pause of all tenants is visible to every tenant.
        UNION ALL SELECT 'pause', format('coalesce(nullif(tenant, 0), %s) = %s', number, number)
    LOOP
        EXECUTE format('CREATE POLICY of_tenant ON %I FOR SELECT USING (%s)', scoped.table_name, scoped.visible);
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', scoped.table_name);
    END LOOP;
END
$$;


-- First rows --------------------------------------------------------------------------------------------------------------

INSERT INTO rolled_up (until) VALUES (now_us());
INSERT INTO dead_watch (until) VALUES (now_us());
