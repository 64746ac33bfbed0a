-- The engine: what waits, what is live, what has ended, who works on it, and the ledger of ticks.
--
-- Times are microseconds since 1970 (bigint): one meaning in SQL, in Python and in SQLite.
-- Live rows are slim and few: names are integers, payloads lie in body, what has ended is appended to history.
-- States: 1 scheduled, 2 blocked, 3 queued, 4 running, 5 succeeded, 6 failed, 7 cancelled, 8 skipped.

CREATE TABLE meta (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    store_id    uuid NOT NULL DEFAULT gen_random_uuid(),
    store_epoch integer NOT NULL DEFAULT 1,   -- raised by a restore or a promotion: fences stay monotone across it
    engine_gen  integer NOT NULL DEFAULT 1,   -- raised when the coordination engine changes
    shards      integer NOT NULL
);

-- The store's clock. Everything that asks what is due asks this.
CREATE FUNCTION now_us() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT (extract(epoch FROM now()) * 1000000)::bigint $$;

CREATE SEQUENCE fence_seq;

-- Tenants (1), tasks (2) and queues (3) by number.
CREATE TABLE name (
    id   integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind smallint NOT NULL,
    name text NOT NULL,
    UNIQUE (kind, name)
);

-- A process that works: a worker or a scheduler. No index on lease_until, so that a beat is a HOT update.
CREATE TABLE session (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind        smallint NOT NULL,            -- 1 worker, 2 scheduler
    live        boolean NOT NULL DEFAULT true,
    name        text NOT NULL,
    datacenter  text NOT NULL,
    version     text NOT NULL,
    started_at  bigint NOT NULL,
    lease_until bigint NOT NULL,
    ended_at    bigint
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX session_live ON session (kind, id) WHERE live;

CREATE TABLE shard (
    id    smallint PRIMARY KEY,
    owner bigint,                             -- a session
    epoch bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

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

CREATE TABLE job_version (
    job_id  uuid NOT NULL,
    version integer NOT NULL,
    spec    bytea NOT NULL,
    made_by text NOT NULL DEFAULT '',
    why     text NOT NULL DEFAULT '',
    made_at bigint NOT NULL,
    PRIMARY KEY (job_id, version)
);

-- Where a recurring job stands. rev grows with every change; whoever fires a tick must have seen the newest.
CREATE TABLE schedule (
    job_id    uuid PRIMARY KEY,
    shard     smallint NOT NULL,
    rev       bigint NOT NULL DEFAULT 1,
    active    boolean NOT NULL DEFAULT true,
    next_fire bigint,
    delay     bigint,                         -- fixed delay: next_fire is set when the run ends
    tick_no   bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX schedule_due ON schedule (shard, next_fire) WHERE active AND next_fire IS NOT NULL;
CREATE INDEX schedule_waits ON schedule (job_id) WHERE active AND next_fire IS NULL AND delay IS NOT NULL;

-- What to do, written once. bucket is the day it is for, dropped with that day's history; -1 holds what outlives its day
-- (far-off runs, unsuccessful ones) and is deleted row by row; 0 is kept for ever (payloads of job versions).
CREATE TABLE body (
    bucket  integer NOT NULL,
    id      uuid NOT NULL,
    task    integer NOT NULL,
    policy  bytea,                            -- null: all defaults
    payload bytea NOT NULL,
    PRIMARY KEY (bucket, id)
) PARTITION BY RANGE (bucket);
CREATE TABLE body_kept PARTITION OF body FOR VALUES FROM (-1) TO (0);
CREATE TABLE body_forever PARTITION OF body FOR VALUES FROM (0) TO (1);

-- Queued and running. check: whatever runs has an owner, a fence and an end.
CREATE TABLE run (
    id            uuid PRIMARY KEY,
    shard         smallint NOT NULL,
    state         smallint NOT NULL,
    priority      smallint NOT NULL,
    attempt       smallint NOT NULL,
    lost          smallint NOT NULL,
    tenant        integer NOT NULL,
    queue         integer NOT NULL,
    lane          integer NOT NULL DEFAULT 0,
    body_bucket   integer NOT NULL,
    rank          bigint NOT NULL,
    due           bigint NOT NULL,
    created_at    bigint NOT NULL,
    timeout       bigint NOT NULL,
    rev           integer NOT NULL DEFAULT 1,
    fence         bigint NOT NULL DEFAULT 0,
    claim         integer,
    session       bigint,
    started_at    bigint,
    attempt_until bigint,
    start_by      bigint,
    deadline      bigint,
    cancel_at     bigint,
    gate          bigint,                     -- the key that it holds, or waits for
    scheduled_at  bigint,
    job_id        uuid,
    job_version   integer,
    body_id       uuid,                       -- null: its own id
    replay_of     uuid,
    target        integer,
    origin        smallint NOT NULL DEFAULT 1,  -- 1 submitted, 2 tick, 3 tick of a fixed delay, 4 manual, 5 backfill
    CHECK (state <> 4 OR (session IS NOT NULL AND attempt_until IS NOT NULL AND fence > 0))
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
        autovacuum_analyze_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX run_ready ON run (queue, lane, rank, id) WHERE state = 3;
CREATE INDEX run_held ON run (session) WHERE state = 4;
CREATE INDEX run_job ON run (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX run_start_by ON run (start_by) WHERE start_by IS NOT NULL AND state = 3;
CREATE INDEX run_deadline ON run (deadline) WHERE deadline IS NOT NULL AND state = 3;

-- Scheduled (for later, or between two attempts) and blocked (behind its gate).
CREATE TABLE waiting (
    id            uuid PRIMARY KEY,
    shard         smallint NOT NULL,
    state         smallint NOT NULL,
    priority      smallint NOT NULL,
    attempt       smallint NOT NULL,
    lost          smallint NOT NULL,
    tenant        integer NOT NULL,
    queue         integer NOT NULL,
    lane          integer NOT NULL DEFAULT 0,
    body_bucket   integer NOT NULL,
    due           bigint NOT NULL,
    created_at    bigint NOT NULL,
    timeout       bigint NOT NULL,
    rev           integer NOT NULL DEFAULT 1,
    fence         bigint NOT NULL DEFAULT 0,
    late          boolean NOT NULL DEFAULT false,  -- a retry, or caught up: queues behind live work
    holds         boolean NOT NULL DEFAULT false,  -- between two attempts: it keeps its gate
    start_by      bigint,
    deadline      bigint,
    cancel_at     bigint,
    gate          bigint,
    scheduled_at  bigint,
    job_id        uuid,
    job_version   integer,
    body_id       uuid,
    replay_of     uuid,
    target        integer,
    origin        smallint NOT NULL DEFAULT 1,
    reason        text
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX waiting_due ON waiting (shard, due) WHERE state = 1;
CREATE INDEX waiting_blocked ON waiting (gate, due, id) WHERE state = 2;
CREATE INDEX waiting_job ON waiting (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX waiting_body ON waiting (body_bucket) WHERE fence > 0 OR state = 2;
CREATE INDEX waiting_start_by ON waiting (start_by) WHERE start_by IS NOT NULL;
CREATE INDEX waiting_deadline ON waiting (deadline) WHERE deadline IS NOT NULL;

-- A key that lets one run through at a time. The row is locked by whoever takes it and by whoever lets it go.
CREATE TABLE gate (
    key    bigint PRIMARY KEY,
    holder uuid
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- One row a tick of a recurring job: the decision, immutable. The result comes by join with history.
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
    PRIMARY KEY (job_id, scheduled_at)
) PARTITION BY RANGE (scheduled_at);

-- What has ended, append-only, dropped by time: class 1 succeeded, 2 failed, cancelled, skipped.
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
    error        text
) PARTITION BY LIST (class);
CREATE TABLE history_succeeded PARTITION OF history FOR VALUES IN (1) PARTITION BY RANGE (finished_at);
CREATE TABLE history_unsuccessful PARTITION OF history FOR VALUES IN (2) PARTITION BY RANGE (finished_at);
CREATE INDEX history_id ON history (id);
CREATE INDEX history_job ON history (job_id, scheduled_at) WHERE job_id IS NOT NULL;

-- Attempts that did not succeed.
CREATE TABLE attempt (
    run_id     uuid NOT NULL,
    fence      bigint NOT NULL,
    number     smallint NOT NULL,
    outcome    smallint NOT NULL,             -- 2 error, 3 timeout, 4 lost, 5 cancelled, 6 released
    session    bigint,
    started_at bigint,
    ended_at   bigint NOT NULL,
    reason     text NOT NULL DEFAULT '',
    error      text
) PARTITION BY RANGE (ended_at);
CREATE INDEX attempt_run ON attempt (run_id, fence);

-- Events, one row a batch, written while somebody reads, and read in the order of (xid, id): a reader stops before the
-- xid of transactions under way. One that has seen what a younger one committed takes its place behind that: the
-- newest xid that had ended when its statement began, if that is not before its own.
CREATE TABLE outbox (
    id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid  xid8 NOT NULL DEFAULT greatest(
             pg_current_xact_id(), (pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1)::text::xid8),
    at   bigint NOT NULL,
    kind text NOT NULL,
    runs uuid[] NOT NULL
);
CREATE INDEX outbox_order ON outbox (xid, id);
CREATE TABLE outbox_cursor (
    reader   text PRIMARY KEY,
    xid      xid8 NOT NULL,                   -- of the last event that the reader has done with
    position bigint NOT NULL
);
