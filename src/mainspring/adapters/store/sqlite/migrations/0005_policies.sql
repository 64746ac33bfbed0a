-- Limits, dependencies and unique runs.
--
-- What waits for a gate of a limit is limited, what waits for other runs is after; people see both as blocked. To say
-- so in the table's own rule it is made anew. limits is null, which is the rule, or a JSON array of gates, each a kind,
-- a number, how many, a period and a pause; a breaker stands first.

CREATE TABLE waiting_anew (
    id            TEXT NOT NULL PRIMARY KEY,
    state         TEXT NOT NULL CHECK (state IN ('scheduled', 'blocked', 'limited', 'after')),
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
    gate          INTEGER,                       -- the key that it waits for, or holds (between attempts, or limited)
    job_id        TEXT,
    job_version   INTEGER,
    scheduled_at  INTEGER,
    origin        TEXT,
    target        TEXT,
    replay_of     TEXT,
    session       INTEGER,
    limits        TEXT,
    waits         INTEGER                        -- of what is limited: the first gate without room; null: to be seen
) STRICT, WITHOUT ROWID;
INSERT INTO waiting_anew
SELECT id, state, shard, tenant, queue, lane, rev, priority, attempt, lost, late, fence, body, timeout, due,
       created_at, started_at, start_by, deadline, gate, job_id, job_version, scheduled_at, origin, target, replay_of,
       session, NULL, NULL
FROM waiting;
DROP TABLE waiting;
ALTER TABLE waiting_anew RENAME TO waiting;
CREATE INDEX waiting_due ON waiting (shard, due, id) WHERE state = 'scheduled';
CREATE INDEX waiting_blocked ON waiting (gate, due, id) WHERE state = 'blocked';
CREATE INDEX waiting_limited ON waiting (waits, due, id) WHERE state = 'limited';
CREATE INDEX waiting_job ON waiting (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX waiting_start_by ON waiting (start_by) WHERE start_by IS NOT NULL;
CREATE INDEX waiting_deadline ON waiting (deadline) WHERE deadline IS NOT NULL;
CREATE INDEX waiting_tenant ON waiting (tenant, id) WHERE tenant <> 'default';
CREATE INDEX waiting_target ON waiting (target) WHERE target IS NOT NULL;

ALTER TABLE run ADD COLUMN limits TEXT;
-- By the first gate: what is queued of a task is found by its breaker.
CREATE INDEX run_limited ON run (limits ->> '$[0][1]', id) WHERE limits IS NOT NULL;

-- The state of a gate; no row: nobody is inside, and nothing is remembered.
CREATE TABLE limiter (
    number     INTEGER PRIMARY KEY,
    kind       INTEGER NOT NULL,                 -- 1: at a time, 2: per period, 3: a breaker
    per        INTEGER NOT NULL,
    used       INTEGER NOT NULL DEFAULT 0,
    open_until INTEGER,
    spilling   INTEGER NOT NULL DEFAULT 0,       -- of a breaker that has just opened: some are still queued
    wake_at    INTEGER                           -- when to look again though nobody leaves
) STRICT;
CREATE INDEX limiter_wake ON limiter (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX limiter_spilling ON limiter (number) WHERE spilling = 1;

-- Starts of a limit per period, and failures that a breaker counts, each until when.
CREATE TABLE mark (
    id     INTEGER PRIMARY KEY,
    number INTEGER NOT NULL,
    until  INTEGER NOT NULL
) STRICT;
CREATE INDEX mark_of ON mark (number, until);

-- What a run with dependencies waits for, or waited for. Its start_by and deadline count from when its rule is met.
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
    state  TEXT,                                 -- how the parent ended, once the child knows
    PRIMARY KEY (child, parent)
) STRICT, WITHOUT ROWID;
CREATE INDEX edge_of_parent ON edge (parent, child);
CREATE INDEX edge_undecided ON edge (parent, child) WHERE state IS NULL;
-- Runs that have ended and whose children do not all know yet.
CREATE TABLE ended_parent (
    run_id TEXT NOT NULL PRIMARY KEY,
    state  TEXT NOT NULL,
    at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Which run has a unique key, and until when; null: while it has not ended.
CREATE TABLE unique_run (
    tenant TEXT NOT NULL,
    key    TEXT NOT NULL,
    run_id TEXT NOT NULL,
    until  INTEGER,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX unique_run_of ON unique_run (run_id);
CREATE INDEX unique_run_age ON unique_run (until) WHERE until IS NOT NULL;
