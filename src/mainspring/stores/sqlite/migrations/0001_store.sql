-- The schema of a store in a file.
--
-- Tables are grouped by idea: the store, processes, jobs and schedules, runs, limits, workflows, history, dead letters,
-- events, tenants and access, metrics and usage.
--
-- Times are microseconds since 1970. Ids are 32 hexadecimal digits. States and outcomes are the words of core/model.
-- A run writes rows and index entries only for the features that it uses. So the indexes by tenant leave out the tenant
-- "default": where it is the only one, its rows are found by their ids and ranks.

-- "MSP2": with it connection.py recognizes a file of Mainspring. Files from before the first release lack it.
PRAGMA application_id = 1297305650;


-- The store ---------------------------------------------------------------------------------------------------------------

CREATE TABLE meta (
    only_row        INTEGER PRIMARY KEY CHECK (only_row = 1),
    schema_version  INTEGER NOT NULL,
    store_id        TEXT NOT NULL,
    store_epoch     INTEGER NOT NULL DEFAULT 1,  -- raised by a restore, so that fences keep growing
    fence_seq       INTEGER NOT NULL DEFAULT 0,  -- numbers every claim
    shards          INTEGER NOT NULL,
    history_counted INTEGER NOT NULL DEFAULT 0,  -- metrics include history up to this row
    outbox_horizon  INTEGER NOT NULL DEFAULT 0,  -- events up to this position were deleted, or never written
    -- Signs hints where the settings name no key. store_id would not do: it is part of the names of queues, groups and keys.
    hint_key        TEXT NOT NULL DEFAULT ''
) STRICT;

-- Label sets that runs require. The id is the run's claim group; claim group 0 requires nothing. A run with a target, which
-- is the number of a session as text, has that number's negative as its claim group.
CREATE TABLE label_set (
    id       INTEGER PRIMARY KEY,
    requires TEXT NOT NULL UNIQUE                -- words in order, a JSON array
) STRICT;

-- The task catalog: what workers declare about their tasks. rev grows with every change of the table, so that a reader
-- asks only for what is new.
CREATE TABLE task (
    name          TEXT PRIMARY KEY,
    rev           INTEGER NOT NULL UNIQUE,
    version       INTEGER NOT NULL,
    body          TEXT NOT NULL,                 -- JSON
    registered_by TEXT NOT NULL,
    registered_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;


-- Processes: workers and schedulers ---------------------------------------------------------------------------------------

-- A session that has ended stays so: its process registers again under a new id, and no id is used twice.
CREATE TABLE session (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    kind         TEXT NOT NULL CHECK (kind IN ('worker', 'scheduler')),
    live         INTEGER NOT NULL DEFAULT 1,
    name         TEXT NOT NULL,
    datacenter   TEXT NOT NULL,
    version      TEXT NOT NULL,
    started_at   INTEGER NOT NULL,
    lease_until  INTEGER NOT NULL,
    queues       TEXT NOT NULL DEFAULT '[]',     -- JSON arrays, as tasks, labels and priorities
    tasks        TEXT NOT NULL DEFAULT '[]',
    owner        TEXT NOT NULL DEFAULT '',
    serves       TEXT NOT NULL DEFAULT '',
    lease        INTEGER NOT NULL DEFAULT 0,
    draining     INTEGER NOT NULL DEFAULT 0,
    labels       TEXT NOT NULL DEFAULT '[]',
    claim_groups TEXT,                           -- that it may claim from, 0 among them, a JSON array; null: only 0
    priorities   TEXT NOT NULL DEFAULT '[]',     -- of a worker with a pool of slots for each priority
    clock_offset INTEGER,                        -- how far the clock of its node is ahead of the store's; null: not reported
    clock_error  INTEGER,                        -- the error bound of clock_offset
    slots        INTEGER,                        -- how many runs it has room for, over all its queues; null: not reported
    tzdata       TEXT NOT NULL DEFAULT ''        -- version of its time zone database, such as 2026f; empty: not reported
) STRICT;

CREATE TABLE shard (
    id    INTEGER PRIMARY KEY,
    owner INTEGER,                               -- a session
    epoch INTEGER NOT NULL DEFAULT 0
) STRICT;

-- Preference orders of data centers that runs require, by claim group, and the data center that serves that group now.
CREATE TABLE datacenter_order (
    claim_group INTEGER PRIMARY KEY,
    serving     TEXT NOT NULL,
    why         TEXT NOT NULL,
    since       INTEGER NOT NULL
) STRICT;


-- Jobs and schedules ------------------------------------------------------------------------------------------------------

CREATE TABLE job (
    id         TEXT NOT NULL PRIMARY KEY,
    tenant     TEXT NOT NULL,
    name       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('scheduled', 'paused', 'finished', 'cancelled')),
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    UNIQUE (tenant, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX job_tenant ON job (tenant, id);

CREATE TABLE job_version (
    job_id  TEXT NOT NULL,
    version INTEGER NOT NULL,
    spec    TEXT NOT NULL,
    body    INTEGER NOT NULL,                    -- its payload, shared by all its ticks
    made_by TEXT NOT NULL DEFAULT '',
    why     TEXT NOT NULL DEFAULT '',
    made_at INTEGER NOT NULL,
    PRIMARY KEY (job_id, version)
) STRICT, WITHOUT ROWID;

-- The payload of a version for one data center, with a policy that names it.
CREATE TABLE version_target (
    job_id  TEXT NOT NULL,
    version INTEGER NOT NULL,
    target  TEXT NOT NULL,
    body    INTEGER NOT NULL,
    PRIMARY KEY (job_id, version, target)
) STRICT, WITHOUT ROWID;

-- The state of a recurring job. rev grows with every change; a scheduler that fires a tick must have read the newest.
CREATE TABLE schedule (
    job_id       TEXT NOT NULL PRIMARY KEY,
    shard        INTEGER NOT NULL,
    rev          INTEGER NOT NULL DEFAULT 1,
    active       INTEGER NOT NULL DEFAULT 1,     -- its job is scheduled or paused
    next_fire    INTEGER,
    delay        INTEGER,                        -- of a fixed delay
    awaits       TEXT,                           -- of a fixed delay: the run whose end sets the next tick
    tick_no      INTEGER NOT NULL DEFAULT 0,
    resume_at    INTEGER,                        -- when a paused job resumes by itself
    paused_until INTEGER,                        -- ticks before it belong to a pause that is over
    pause_why    TEXT NOT NULL DEFAULT '',
    tick         INTEGER,                        -- of a job that looks ahead: its next tick; next_fire is when to plan it
    calendar_rev INTEGER NOT NULL DEFAULT 0      -- how many changes its tenant's calendars have had; a planner must know all
) STRICT, WITHOUT ROWID;
CREATE INDEX schedule_due ON schedule (shard, next_fire, job_id) WHERE active = 1 AND next_fire IS NOT NULL;
CREATE INDEX schedule_delayed ON schedule (job_id) WHERE active = 1 AND delay IS NOT NULL AND next_fire IS NULL;
CREATE INDEX schedule_resumes ON schedule (resume_at) WHERE resume_at IS NOT NULL;

-- Calendars, one row for each version. A change is written into the schedules that use the calendar at once.
CREATE TABLE calendar (
    tenant  TEXT NOT NULL,
    name    TEXT NOT NULL,
    version INTEGER NOT NULL,
    spec    TEXT NOT NULL,
    deleted INTEGER NOT NULL DEFAULT 0,
    made_by TEXT NOT NULL DEFAULT '',
    why     TEXT NOT NULL DEFAULT '',
    made_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, name, version)
) STRICT, WITHOUT ROWID;

-- The decision about each tick, immutable. The result of its run comes from history. A tick that goes to several data
-- centers has one row for each of them; target names it and is empty for all other ticks.
CREATE TABLE ledger (
    job_id       TEXT NOT NULL,
    scheduled_at INTEGER NOT NULL,
    target       TEXT NOT NULL DEFAULT '',
    decision     TEXT NOT NULL CHECK (decision IN ('run', 'skipped')),
    reason       TEXT NOT NULL,
    run_id       TEXT,
    job_version  INTEGER NOT NULL,
    epoch        INTEGER NOT NULL,
    ticks        INTEGER NOT NULL,
    last_at      INTEGER,
    PRIMARY KEY (job_id, scheduled_at, target)
) STRICT, WITHOUT ROWID;
CREATE INDEX ledger_age ON ledger (scheduled_at);

-- Service level objectives of schedules: the state of each, as JSON, and when it is checked next.
CREATE TABLE slo (
    job_id     TEXT PRIMARY KEY,
    tenant     TEXT NOT NULL,
    rev        INTEGER NOT NULL DEFAULT 1,
    next_check INTEGER NOT NULL,
    state      TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX slo_check ON slo (next_check);


-- Runs --------------------------------------------------------------------------------------------------------------------
--
-- Rows of live runs are slim and few: payloads are in body, and a run that has ended moves to history.

-- Task, policy and payload, written once and deleted with the history of the run. All ticks of a job version share one.
CREATE TABLE body (
    id      INTEGER PRIMARY KEY,
    task    TEXT NOT NULL,
    policy  TEXT,                                -- null: all defaults
    payload TEXT NOT NULL,
    about   TEXT                                 -- name, owner and tags of a one-off, as JSON
) STRICT;

-- Tags of one-offs.
CREATE TABLE label (
    tenant TEXT NOT NULL,
    label  TEXT NOT NULL,
    id     TEXT NOT NULL,
    PRIMARY KEY (tenant, label, id)
) STRICT, WITHOUT ROWID;

-- Queued and running. The check holds that a running row has an owner, a fence and an end.
CREATE TABLE run (
    id            TEXT NOT NULL PRIMARY KEY,
    state         TEXT NOT NULL CHECK (state IN ('queued', 'running')),
    shard         INTEGER NOT NULL,
    tenant        TEXT NOT NULL,
    queue         TEXT NOT NULL,
    claim_group   INTEGER NOT NULL DEFAULT 0,
    rank          INTEGER NOT NULL,
    rev           INTEGER NOT NULL DEFAULT 1,
    priority      INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    lost          INTEGER NOT NULL,
    late          INTEGER NOT NULL,              -- caught up: queues behind live work
    fence         INTEGER NOT NULL,              -- of its newest claim
    session       INTEGER,                       -- of its newest claim, also while it does not run
    claim         INTEGER,
    attempt_until INTEGER,
    body          INTEGER NOT NULL,
    timeout       INTEGER NOT NULL,
    due           INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    started_at    INTEGER,
    start_by      INTEGER,
    deadline      INTEGER,
    cancel_at     INTEGER,
    key_lock      INTEGER,                       -- the ordering key that it holds
    job_id        TEXT,
    job_version   INTEGER,
    scheduled_at  INTEGER,
    origin        TEXT,                          -- null: submitted; tick; delay: a tick whose end sets the next one
    target        TEXT,
    replay_of     TEXT,
    queued_at     INTEGER,                       -- when it last became eligible
    limits        TEXT,                          -- a JSON array of [kind, number, most, per, pause]; a breaker first
    ready_at      INTEGER,                       -- since when it could start, if later than due: blocked before, or a retry
    CHECK (state = 'queued' OR (session IS NOT NULL AND claim IS NOT NULL AND attempt_until IS NOT NULL AND fence > 0))
) STRICT, WITHOUT ROWID;
CREATE INDEX run_ready ON run (queue, claim_group, rank, id) WHERE state = 'queued';
CREATE INDEX run_held ON run (session) WHERE state = 'running';
CREATE INDEX run_job ON run (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX run_start_by ON run (start_by) WHERE start_by IS NOT NULL;
CREATE INDEX run_deadline ON run (deadline) WHERE deadline IS NOT NULL;
CREATE INDEX run_tenant ON run (tenant, id) WHERE tenant <> 'default';
CREATE INDEX run_queued ON run (tenant, queue, claim_group, rank, id) WHERE state = 'queued' AND tenant <> 'default';
CREATE INDEX run_target ON run (target) WHERE target IS NOT NULL;
-- By the first limit: finds the queued runs of a task by its breaker.
CREATE INDEX run_limited ON run (limits ->> '$[0][1]', id) WHERE limits IS NOT NULL;
-- Backfilled runs by the tick that they make up for.
CREATE INDEX run_backfilled ON run (job_id, scheduled_at) WHERE scheduled_at IS NOT NULL AND origin IS NULL;

-- Scheduled (for later, or between two attempts) and blocked: by a key, limited by a limit, or after its parents.
CREATE TABLE waiting (
    id            TEXT NOT NULL PRIMARY KEY,
    state         TEXT NOT NULL CHECK (state IN ('scheduled', 'blocked', 'limited', 'after')),
    shard         INTEGER NOT NULL,
    tenant        TEXT NOT NULL,
    queue         TEXT NOT NULL,
    claim_group   INTEGER NOT NULL DEFAULT 0,
    rev           INTEGER NOT NULL DEFAULT 1,
    priority      INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    lost          INTEGER NOT NULL,
    late          INTEGER NOT NULL,
    fence         INTEGER NOT NULL,
    body          INTEGER NOT NULL,
    timeout       INTEGER NOT NULL,
    due           INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    started_at    INTEGER,
    start_by      INTEGER,
    deadline      INTEGER,
    key_lock      INTEGER,                       -- the ordering key that it waits for, or holds (between attempts, or limited)
    job_id        TEXT,
    job_version   INTEGER,
    scheduled_at  INTEGER,
    origin        TEXT,
    target        TEXT,
    replay_of     TEXT,
    session       INTEGER,
    limits        TEXT,
    waits         INTEGER                        -- of a limited run: the first limiter without room; null: not checked yet
) STRICT, WITHOUT ROWID;
CREATE INDEX waiting_due ON waiting (shard, due, id) WHERE state = 'scheduled';
CREATE INDEX waiting_blocked ON waiting (key_lock, due, id) WHERE state = 'blocked';
CREATE INDEX waiting_limited ON waiting (waits, due, id) WHERE state = 'limited';
CREATE INDEX waiting_job ON waiting (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX waiting_start_by ON waiting (start_by) WHERE start_by IS NOT NULL;
CREATE INDEX waiting_deadline ON waiting (deadline) WHERE deadline IS NOT NULL;
CREATE INDEX waiting_tenant ON waiting (tenant, id) WHERE tenant <> 'default';
CREATE INDEX waiting_target ON waiting (target) WHERE target IS NOT NULL;
CREATE INDEX waiting_backfilled ON waiting (job_id, scheduled_at) WHERE scheduled_at IS NOT NULL AND origin IS NULL;

-- The newest progress report of a run, as JSON.
CREATE TABLE progress (
    run_id TEXT NOT NULL PRIMARY KEY,
    report TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- What an attempt saves for the next one, as JSON. The newest counts; it is deleted with its run.
CREATE TABLE checkpoint (
    run_id TEXT NOT NULL PRIMARY KEY,
    state  TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Idempotency keys, and the run or job that was made with each.
CREATE TABLE idempotency (
    tenant      TEXT NOT NULL,
    key         TEXT NOT NULL,
    made        TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    at          INTEGER NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_age ON idempotency (at);


-- Limits ------------------------------------------------------------------------------------------------------------------

-- Key locks: an ordering key and the run that holds it, which is queued, running or between attempts.
CREATE TABLE key_lock (
    key    INTEGER PRIMARY KEY,
    holder TEXT NOT NULL
) STRICT;

-- The counter of a limit. No row: nothing counts against it.
CREATE TABLE limiter (
    number     INTEGER PRIMARY KEY,
    kind       INTEGER NOT NULL,                 -- 1 at a time, 2 per period, 3 breaker
    per        INTEGER NOT NULL,
    used       INTEGER NOT NULL DEFAULT 0,
    open_until INTEGER,
    recalls    INTEGER NOT NULL DEFAULT 0,       -- a breaker has opened, and runs of its task are still queued
    wake_at    INTEGER                           -- when to check it although no run releases it
) STRICT;
CREATE INDEX limiter_wake ON limiter (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX limiter_recalls ON limiter (number) WHERE recalls = 1;

-- Starts that a limit per period counts, and failures that a breaker counts, and until when each counts.
CREATE TABLE mark (
    id     INTEGER PRIMARY KEY,
    number INTEGER NOT NULL,
    until  INTEGER NOT NULL
) STRICT;
CREATE INDEX mark_number ON mark (number, until);

-- Unique keys, and the run of each. until: when the key is free again; null: when the run has ended.
CREATE TABLE unique_run (
    tenant TEXT NOT NULL,
    key    TEXT NOT NULL,
    run_id TEXT NOT NULL,
    until  INTEGER,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX unique_run_run ON unique_run (run_id);
CREATE INDEX unique_run_age ON unique_run (until) WHERE until IS NOT NULL;

-- Settings of a queue.
CREATE TABLE queue_policy (
    queue    TEXT NOT NULL PRIMARY KEY,
    policy   TEXT NOT NULL,                      -- JSON
    closely  INTEGER NOT NULL,                   -- a claim must read it
    weighted INTEGER NOT NULL DEFAULT 0,         -- there may be runs that take more than one slot
    pooled   INTEGER NOT NULL DEFAULT 0,         -- there are workers with a pool of slots for each priority
    clock    INTEGER NOT NULL DEFAULT 0,         -- of fair turns: the highest tag that was served
    retries  INTEGER,                            -- its retry budget: so many in each period
    per      INTEGER
) STRICT, WITHOUT ROWID;

-- Fair turns of tenants that are ahead of the queue's clock. The others have no row.
CREATE TABLE queue_turn (
    queue  TEXT NOT NULL,
    tenant TEXT NOT NULL,
    tag    INTEGER NOT NULL,
    PRIMARY KEY (queue, tenant)
) STRICT, WITHOUT ROWID;

-- How many retries are due in a period, of queues with a retry budget.
CREATE TABLE queue_retry (
    queue  TEXT NOT NULL,
    period INTEGER NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (queue, period)
) STRICT, WITHOUT ROWID;

-- Paused queues: nothing is claimed from them. Empty: every tenant, every queue.
CREATE TABLE pause (
    tenant TEXT NOT NULL,
    queue  TEXT NOT NULL,
    since  INTEGER NOT NULL,
    author TEXT NOT NULL,
    why    TEXT NOT NULL,
    until  INTEGER,                              -- null: until a person resumes it
    PRIMARY KEY (tenant, queue)
) STRICT, WITHOUT ROWID;


-- Workflows ---------------------------------------------------------------------------------------------------------------

-- A run with parents. start_within and deadline count from when its rule is met.
CREATE TABLE dependent (
    run_id       TEXT NOT NULL PRIMARY KEY,
    rule         TEXT NOT NULL,
    parents      INTEGER NOT NULL DEFAULT 0,
    start_within INTEGER,
    deadline     INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE edge (
    child  TEXT NOT NULL,
    parent TEXT NOT NULL,
    place  INTEGER NOT NULL,                     -- the order in which the parents were named
    state  TEXT,                                 -- how the parent ended, once the child has counted it
    PRIMARY KEY (child, parent)
) STRICT, WITHOUT ROWID;
CREATE INDEX edge_parent ON edge (parent, child);
CREATE INDEX edge_undecided ON edge (parent, child) WHERE state IS NULL;

-- Runs that have ended and whose children have not all counted it.
CREATE TABLE ended_parent (
    run_id TEXT NOT NULL PRIMARY KEY,
    state  TEXT NOT NULL,
    at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;


-- History -----------------------------------------------------------------------------------------------------------------

-- Runs that have ended, in the order in which they ended.
CREATE TABLE history (
    seq          INTEGER PRIMARY KEY,
    id           TEXT NOT NULL,
    state        TEXT NOT NULL CHECK (state IN ('succeeded', 'failed', 'cancelled', 'skipped')),
    tenant       TEXT NOT NULL,
    queue        TEXT NOT NULL,
    rev          INTEGER NOT NULL,
    priority     INTEGER NOT NULL,
    attempt      INTEGER NOT NULL,
    lost         INTEGER NOT NULL,
    fence        INTEGER NOT NULL,
    by_attempt   INTEGER NOT NULL,               -- whether the attempt of that fence ended it
    session      INTEGER,
    body         INTEGER NOT NULL,
    due          INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    started_at   INTEGER,
    finished_at  INTEGER NOT NULL,
    cancel_at    INTEGER,
    job_id       TEXT,
    job_version  INTEGER,
    scheduled_at INTEGER,
    origin       TEXT,
    target       TEXT,
    replay_of    TEXT,
    reason       TEXT NOT NULL,
    result       TEXT,
    error        TEXT,
    queued_at    INTEGER,
    start_by     INTEGER,
    deadline     INTEGER,
    executor     TEXT,                           -- the name of its session, which is deleted sooner
    ran          INTEGER NOT NULL DEFAULT 0,     -- whether it was running when it ended
    fingerprint  TEXT,                           -- of a failed run
    dead         INTEGER NOT NULL DEFAULT 0,     -- failed, and neither replayed nor discarded
    cpu          INTEGER,                        -- microseconds of CPU; null: not known
    units        TEXT,                           -- units that the application counts, as JSON
    retention    TEXT                            -- its retention class; null: the standard one
) STRICT;
CREATE UNIQUE INDEX history_id ON history (id);
CREATE INDEX history_unsuccessful ON history (finished_at) WHERE state <> 'succeeded';
CREATE INDEX history_tenant ON history (tenant, id) WHERE tenant <> 'default';
CREATE INDEX history_job ON history (job_id, id) WHERE job_id IS NOT NULL;
CREATE INDEX history_dead ON history (id) WHERE dead = 1;
CREATE INDEX history_dead_tenant ON history (tenant, id) WHERE dead = 1;
CREATE INDEX history_backfilled ON history (job_id, scheduled_at) WHERE scheduled_at IS NOT NULL AND origin IS NULL;
-- By age, one for each retention class, so that pruning one class does not read the rows that others keep for longer.
CREATE INDEX history_class ON history (retention, finished_at) WHERE retention IS NOT NULL;
CREATE INDEX history_standard_succeeded ON history (finished_at) WHERE state = 'succeeded' AND retention IS NULL;
CREATE INDEX history_standard_unsuccessful ON history (finished_at) WHERE state <> 'succeeded' AND retention IS NULL;

-- Attempts that did not succeed.
CREATE TABLE attempt (
    run_id     TEXT NOT NULL,
    fence      INTEGER NOT NULL,
    number     INTEGER NOT NULL,
    outcome    TEXT NOT NULL CHECK (outcome IN ('error', 'timeout', 'lost', 'cancelled', 'released')),
    reason     TEXT NOT NULL,
    error      TEXT,
    session    INTEGER,
    started_at INTEGER NOT NULL,
    ended_at   INTEGER NOT NULL,
    counted    INTEGER NOT NULL DEFAULT 0,       -- whether the metrics include it
    cpu        INTEGER,
    units      TEXT,
    PRIMARY KEY (run_id, fence)
) STRICT, WITHOUT ROWID;
CREATE INDEX attempt_uncounted ON attempt (ended_at) WHERE counted = 0;

-- Log output of attempts.
CREATE TABLE log (
    run_id   TEXT NOT NULL,
    position INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    attempt  INTEGER NOT NULL,
    text     TEXT NOT NULL,
    PRIMARY KEY (run_id, position)
) STRICT;

-- Log bytes per day of tenants with a quota.
CREATE TABLE log_day (
    tenant TEXT NOT NULL,
    day    INTEGER NOT NULL,
    bytes  INTEGER NOT NULL,
    PRIMARY KEY (day, tenant)
) STRICT, WITHOUT ROWID;


-- Dead letters ------------------------------------------------------------------------------------------------------------

-- Groups of dead letters that were reported, and up to when dead letters were examined.
CREATE TABLE dead_group (
    tenant      TEXT NOT NULL,
    task        TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    since       INTEGER NOT NULL,
    count       INTEGER NOT NULL,                -- how many were added since then
    seen_at     INTEGER NOT NULL,
    grew_at     INTEGER,
    PRIMARY KEY (tenant, task, fingerprint)
) STRICT, WITHOUT ROWID;
CREATE TABLE dead_watch (until INTEGER NOT NULL) STRICT;
INSERT INTO dead_watch (until) VALUES (0);

-- Replays that are under way or have ended, as JSON. rev grows with every change.
CREATE TABLE replay (
    id       TEXT NOT NULL PRIMARY KEY,
    tenant   TEXT,                               -- null: of all tenants
    open     INTEGER NOT NULL,
    rev      INTEGER NOT NULL,
    ended_at INTEGER,
    record   TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX replay_open ON replay (id) WHERE open = 1;


-- Events ------------------------------------------------------------------------------------------------------------------

-- One row for each batch and kind, written while there are readers. Commits are serial, so positions are in their order.
CREATE TABLE outbox (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    at       INTEGER NOT NULL,
    kind     TEXT NOT NULL,
    runs     TEXT NOT NULL,                      -- a JSON array of ids
    tenant   TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE TABLE outbox_cursor (
    reader   TEXT NOT NULL PRIMARY KEY,
    position INTEGER NOT NULL,
    until    INTEGER                             -- when the reader is forgotten; null: never
) STRICT, WITHOUT ROWID;

-- State of alerts: open problems and unsent alerts, by name, as JSON. The row without a name counts the changes.
CREATE TABLE notification (
    name TEXT PRIMARY KEY,
    rev  INTEGER NOT NULL DEFAULT 0,
    body TEXT NOT NULL
) STRICT, WITHOUT ROWID;


-- Tenants and access ------------------------------------------------------------------------------------------------------

CREATE TABLE tenant (
    name       TEXT NOT NULL PRIMARY KEY,
    quotas     TEXT NOT NULL,                    -- JSON
    running    INTEGER,                          -- the one quota that a claim must keep; null: any number may run
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX tenant_limited ON tenant (name, running) WHERE running IS NOT NULL;

CREATE TABLE api_key (
    id           TEXT NOT NULL PRIMARY KEY,
    tenant       TEXT,                           -- null: not bound to a tenant
    name         TEXT NOT NULL,
    role         TEXT NOT NULL,
    secret_hash  TEXT NOT NULL,                  -- hexadecimal
    queues       TEXT NOT NULL,                  -- a JSON array
    made_by      TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER,
    revoked_at   INTEGER,
    last_used_at INTEGER
) STRICT, WITHOUT ROWID;

-- Sessions of the dashboard that were ended by a sign-out, until they would have expired.
CREATE TABLE signed_out (
    id      TEXT PRIMARY KEY,
    ends_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Changes by people, never altered.
CREATE TABLE audit (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    at       INTEGER NOT NULL,
    tenant   TEXT NOT NULL,
    author   TEXT NOT NULL,
    action   TEXT NOT NULL,
    target   TEXT NOT NULL,
    count    INTEGER NOT NULL DEFAULT 1,
    before   TEXT,                               -- JSON: the fields that differ
    after    TEXT,
    why      TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX audit_tenant ON audit (tenant);
CREATE INDEX audit_target ON audit (target);
CREATE INDEX audit_author ON audit (author);


-- Metrics and usage -------------------------------------------------------------------------------------------------------

-- Metrics by the minute, rolled up from history and attempts.
CREATE TABLE minute (
    at         INTEGER NOT NULL,
    queue      TEXT NOT NULL,
    tenant     TEXT NOT NULL,
    succeeded  INTEGER NOT NULL DEFAULT 0,
    failed     INTEGER NOT NULL DEFAULT 0,
    cancelled  INTEGER NOT NULL DEFAULT 0,
    skipped    INTEGER NOT NULL DEFAULT 0,
    retried    INTEGER NOT NULL DEFAULT 0,
    late_total INTEGER NOT NULL DEFAULT 0,
    late_most  INTEGER NOT NULL DEFAULT 0,
    took_total INTEGER NOT NULL DEFAULT 0,
    took_most  INTEGER NOT NULL DEFAULT 0,
    started    INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (at, queue, tenant)
) STRICT, WITHOUT ROWID;

-- How many runs started how late and took how long, by bucket, rolled up with minute.
CREATE TABLE timing (
    at     INTEGER NOT NULL,
    queue  TEXT NOT NULL,
    tenant TEXT NOT NULL,
    bucket INTEGER NOT NULL,
    late   INTEGER NOT NULL DEFAULT 0,
    took   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (at, queue, tenant, bucket)
) STRICT, WITHOUT ROWID;

-- Queued and running runs, sampled once a minute; without a tenant: all together.
CREATE TABLE load (
    at      INTEGER NOT NULL,
    tenant  TEXT NOT NULL,
    queue   TEXT NOT NULL,
    queued  INTEGER NOT NULL,
    running INTEGER NOT NULL,
    lag     INTEGER NOT NULL,
    PRIMARY KEY (at, tenant, queue)
) STRICT, WITHOUT ROWID;

-- Sums by the day, rolled up with minute. job_id is empty for one-offs.
CREATE TABLE usage (
    tenant TEXT NOT NULL,
    day    INTEGER NOT NULL,
    task   TEXT NOT NULL,
    job_id TEXT NOT NULL,
    unit   TEXT NOT NULL,
    amount REAL NOT NULL,
    PRIMARY KEY (tenant, day, task, job_id, unit)
) STRICT, WITHOUT ROWID;
CREATE INDEX usage_day ON usage (day);

CREATE TABLE budget (
    id     TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL,
    name   TEXT NOT NULL,
    spec   TEXT NOT NULL,                        -- JSON
    state  TEXT NOT NULL DEFAULT 'ok',
    since  INTEGER NOT NULL DEFAULT 0,
    spent  REAL NOT NULL DEFAULT 0,
    held   INTEGER NOT NULL DEFAULT 0,           -- something is paused because of it
    UNIQUE (tenant, name)
) STRICT, WITHOUT ROWID;

-- The generations of the file: file_guard.py compares them with the header to detect a file that was overwritten.

CREATE TABLE file_generation (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    stamp  INTEGER NOT NULL                      -- random; the header's user_version while it is the newest
) STRICT;
