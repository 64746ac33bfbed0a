-- The engine: what waits, what is live, what has ended, who works on it, and the ledger of ticks.
--
-- Times are microseconds since 1970. Ids are 32 hexadecimal digits. States and outcomes are the words of the domain.
-- Live rows are slim and few: payloads lie in body, what has ended is appended to history.

CREATE TABLE meta (
    only_row       INTEGER PRIMARY KEY CHECK (only_row = 1),
    schema_version INTEGER NOT NULL,
    store_id       TEXT NOT NULL,
    store_epoch    INTEGER NOT NULL DEFAULT 1,   -- raised by a restore: fences stay monotone across it
    engine_gen     INTEGER NOT NULL DEFAULT 1,   -- raised when the coordination engine changes
    fence_seq      INTEGER NOT NULL DEFAULT 0,
    shards         INTEGER NOT NULL
) STRICT;

-- A process that works. Dead ones stay dead: a process that comes back gets a new id, and ids are never used twice.
CREATE TABLE session (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    kind        TEXT NOT NULL CHECK (kind IN ('worker', 'scheduler')),
    dead        INTEGER NOT NULL DEFAULT 0,
    name        TEXT NOT NULL,
    datacenter  TEXT NOT NULL,
    version     TEXT NOT NULL,
    started_at  INTEGER NOT NULL,
    lease_until INTEGER NOT NULL
) STRICT;

CREATE TABLE shard (
    id    INTEGER PRIMARY KEY,
    owner INTEGER,                               -- a session
    epoch INTEGER NOT NULL DEFAULT 0
) STRICT;

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

CREATE TABLE job_version (
    job_id  TEXT NOT NULL,
    version INTEGER NOT NULL,
    spec    TEXT NOT NULL,
    body    INTEGER NOT NULL,                    -- its payload, once for all its ticks
    made_by TEXT NOT NULL DEFAULT '',
    why     TEXT NOT NULL DEFAULT '',
    made_at INTEGER NOT NULL,
    PRIMARY KEY (job_id, version)
) STRICT, WITHOUT ROWID;

-- Where a recurring job stands. rev grows with every change; whoever fires a tick must have seen the newest.
CREATE TABLE schedule (
    job_id    TEXT NOT NULL PRIMARY KEY,
    shard     INTEGER NOT NULL,
    rev       INTEGER NOT NULL DEFAULT 1,
    active    INTEGER NOT NULL DEFAULT 1,        -- its job is scheduled or paused
    next_fire INTEGER,
    delay     INTEGER,                           -- of a fixed delay
    awaits    TEXT,                              -- the run whose end sets the next tick of a fixed delay
    tick_no   INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE INDEX schedule_due ON schedule (shard, next_fire, job_id) WHERE active = 1 AND next_fire IS NOT NULL;
CREATE INDEX schedule_delayed ON schedule (job_id) WHERE active = 1 AND delay IS NOT NULL AND next_fire IS NULL;

-- What to do, written once and forgotten with the history of its run. A version of a job has one for all its ticks.
CREATE TABLE body (
    id      INTEGER PRIMARY KEY,
    task    TEXT NOT NULL,
    policy  TEXT,                                -- null: all defaults
    payload TEXT NOT NULL
) STRICT;

-- Queued and running. Whatever runs has an owner, a fence and an end.
CREATE TABLE run (
    id            TEXT NOT NULL PRIMARY KEY,
    state         TEXT NOT NULL CHECK (state IN ('queued', 'running')),
    shard         INTEGER NOT NULL,
    tenant        TEXT NOT NULL,
    queue         TEXT NOT NULL,
    lane          INTEGER NOT NULL DEFAULT 0,
    rank          INTEGER NOT NULL,
    rev           INTEGER NOT NULL DEFAULT 1,
    priority      INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    lost          INTEGER NOT NULL,
    late          INTEGER NOT NULL,              -- caught up on: queues behind live work
    fence         INTEGER NOT NULL,              -- the newest it was ever claimed under
    session       INTEGER,
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
    gate          INTEGER,                       -- the key that it holds
    job_id        TEXT,
    job_version   INTEGER,
    scheduled_at  INTEGER,
    origin        TEXT,                          -- null: submitted; tick; delay: a tick whose end sets the next one
    target        TEXT,
    replay_of     TEXT,
    CHECK (state = 'queued' OR (session IS NOT NULL AND claim IS NOT NULL AND attempt_until IS NOT NULL AND fence > 0))
) STRICT, WITHOUT ROWID;
CREATE INDEX run_ready ON run (queue, lane, rank, id) WHERE state = 'queued';
CREATE INDEX run_held ON run (session) WHERE state = 'running';
CREATE INDEX run_job ON run (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX run_start_by ON run (start_by) WHERE start_by IS NOT NULL;
CREATE INDEX run_deadline ON run (deadline) WHERE deadline IS NOT NULL;

-- Scheduled (for later, or between two attempts) and blocked (behind its gate).
CREATE TABLE waiting (
    id            TEXT NOT NULL PRIMARY KEY,
    state         TEXT NOT NULL CHECK (state IN ('scheduled', 'blocked')),
    shard         INTEGER NOT NULL,
    tenant        TEXT NOT NULL,
    queue         TEXT NOT NULL,
    lane          INTEGER NOT NULL DEFAULT 0,
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
    gate          INTEGER,                       -- the key that it waits for, or holds between two attempts
    job_id        TEXT,
    job_version   INTEGER,
    scheduled_at  INTEGER,
    origin        TEXT,
    target        TEXT,
    replay_of     TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX waiting_due ON waiting (shard, due, id) WHERE state = 'scheduled';
CREATE INDEX waiting_blocked ON waiting (gate, due, id) WHERE state = 'blocked';
CREATE INDEX waiting_job ON waiting (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX waiting_start_by ON waiting (start_by) WHERE start_by IS NOT NULL;
CREATE INDEX waiting_deadline ON waiting (deadline) WHERE deadline IS NOT NULL;

-- A key that lets one run through at a time. A row is there while somebody holds it: queued, running, between attempts.
CREATE TABLE gate (
    key    INTEGER PRIMARY KEY,
    holder TEXT NOT NULL
) STRICT;

-- One row a tick of a recurring job: the decision, immutable. The result comes by join with history.
CREATE TABLE ledger (
    job_id       TEXT NOT NULL,
    scheduled_at INTEGER NOT NULL,
    decision     TEXT NOT NULL CHECK (decision IN ('run', 'skipped')),
    reason       TEXT NOT NULL,
    run_id       TEXT,
    job_version  INTEGER NOT NULL,
    epoch        INTEGER NOT NULL,
    ticks        INTEGER NOT NULL,
    last_at      INTEGER,
    PRIMARY KEY (job_id, scheduled_at)
) STRICT, WITHOUT ROWID;
CREATE INDEX ledger_age ON ledger (scheduled_at);

-- What has ended, in the order it ended.
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
    error        TEXT
) STRICT;
CREATE UNIQUE INDEX history_id ON history (id);
CREATE INDEX history_succeeded ON history (finished_at) WHERE state = 'succeeded';
CREATE INDEX history_unsuccessful ON history (finished_at) WHERE state <> 'succeeded';

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
    PRIMARY KEY (run_id, fence)
) STRICT, WITHOUT ROWID;

-- Events, one row a batch and kind, written while somebody reads. Commits are serial, so positions are in their order.
CREATE TABLE outbox (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    at       INTEGER NOT NULL,
    kind     TEXT NOT NULL,
    runs     TEXT NOT NULL                       -- a JSON array of ids
) STRICT;
CREATE TABLE outbox_cursor (
    reader   TEXT NOT NULL PRIMARY KEY,
    position INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
