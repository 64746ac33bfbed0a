-- What people and the HTTP API ask of the engine: names and tags, who did what, tenants, keys, pauses, logs, figures.
--
-- Nothing here is written for a run that uses none of it, but for a few columns of rows that are written anyway. So the
-- indexes by tenant leave out the tenant of those who have only one: its rows are found by their ids and ranks.

-- Name, owner and tags of a one-off, as JSON. A job's versions have theirs in the spec.
ALTER TABLE body ADD COLUMN about TEXT;

ALTER TABLE session ADD COLUMN queues TEXT NOT NULL DEFAULT '[]';
ALTER TABLE session ADD COLUMN tasks TEXT NOT NULL DEFAULT '[]';
ALTER TABLE session ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE session ADD COLUMN serves TEXT NOT NULL DEFAULT '';
ALTER TABLE session ADD COLUMN lease INTEGER NOT NULL DEFAULT 0;
ALTER TABLE session ADD COLUMN draining INTEGER NOT NULL DEFAULT 0;

-- From here on the session of a row is who was last given the run, also while it does not run.
ALTER TABLE run ADD COLUMN queued_at INTEGER;
UPDATE run SET queued_at = rank - priority * 1000000000 - (late OR attempt > (state = 'running')) * 60000000;
ALTER TABLE waiting ADD COLUMN session INTEGER;
CREATE INDEX run_tenant ON run (tenant, id) WHERE tenant <> 'default';
CREATE INDEX run_queued ON run (tenant, queue, rank, id) WHERE state = 'queued' AND tenant <> 'default';
CREATE INDEX waiting_tenant ON waiting (tenant, id) WHERE tenant <> 'default';
CREATE INDEX job_tenant ON job (tenant, id);

ALTER TABLE history ADD COLUMN queued_at INTEGER;
ALTER TABLE history ADD COLUMN start_by INTEGER;
ALTER TABLE history ADD COLUMN deadline INTEGER;
ALTER TABLE history ADD COLUMN executor TEXT;                   -- the name of its session, which is forgotten sooner
ALTER TABLE history ADD COLUMN ran INTEGER NOT NULL DEFAULT 0;  -- whether it was running when it ended
ALTER TABLE history ADD COLUMN fingerprint TEXT;                -- of a failed run
ALTER TABLE history ADD COLUMN dead INTEGER NOT NULL DEFAULT 0; -- failed, and neither replayed nor discarded
UPDATE history SET dead = 1 WHERE state = 'failed';
CREATE INDEX history_tenant ON history (tenant, id) WHERE tenant <> 'default';
CREATE INDEX history_job ON history (job_id, id) WHERE job_id IS NOT NULL;
CREATE INDEX history_dead ON history (id) WHERE dead = 1;
CREATE INDEX history_dead_of ON history (tenant, id) WHERE dead = 1;

-- Whether an attempt is in the figures. Those of before are in none.
ALTER TABLE attempt ADD COLUMN counted INTEGER NOT NULL DEFAULT 0;
UPDATE attempt SET counted = 1;
CREATE INDEX attempt_uncounted ON attempt (ended_at) WHERE counted = 0;

-- history_counted: history is in the figures up to this row. outbox_horizon: batches up to this one are gone, or may
-- never have been written.
ALTER TABLE meta ADD COLUMN history_counted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE meta ADD COLUMN outbox_horizon INTEGER NOT NULL DEFAULT 0;
UPDATE meta SET history_counted = (SELECT coalesce(max(seq), 0) FROM history),
                outbox_horizon = coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'outbox'), 0);

ALTER TABLE outbox ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
ALTER TABLE outbox_cursor ADD COLUMN until INTEGER;             -- when it is forgotten; null: never

-- The tags of one-offs.
CREATE TABLE label (
    tenant TEXT NOT NULL,
    label  TEXT NOT NULL,
    id     TEXT NOT NULL,
    PRIMARY KEY (tenant, label, id)
) STRICT, WITHOUT ROWID;

-- Idempotency keys, and the run or job that was made with each.
CREATE TABLE used_key (
    tenant      TEXT NOT NULL,
    key         TEXT NOT NULL,
    made        TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    at          INTEGER NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX used_key_age ON used_key (at);

-- The newest that an attempt told of its progress, as JSON.
CREATE TABLE progress (
    run_id TEXT NOT NULL PRIMARY KEY,
    told   TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- What attempts printed.
CREATE TABLE log (
    run_id   TEXT NOT NULL,
    position INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    attempt  INTEGER NOT NULL,
    text     TEXT NOT NULL,
    PRIMARY KEY (run_id, position)
) STRICT;

-- Of which nothing is claimed. Empty: every tenant, every queue.
CREATE TABLE pause (
    tenant TEXT NOT NULL,
    queue  TEXT NOT NULL,
    since  INTEGER NOT NULL,
    author TEXT NOT NULL,
    why    TEXT NOT NULL,
    PRIMARY KEY (tenant, queue)
) STRICT, WITHOUT ROWID;

CREATE TABLE tenant (
    name       TEXT NOT NULL PRIMARY KEY,
    quotas     TEXT NOT NULL,                    -- JSON
    running    INTEGER,                          -- one of them, for the claim: how many may run; null: any number
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX tenant_limited ON tenant (name, running) WHERE running IS NOT NULL;

CREATE TABLE api_key (
    id           TEXT NOT NULL PRIMARY KEY,
    tenant       TEXT,                           -- null: bound to none
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

-- What people changed, never altered.
CREATE TABLE audit (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    at       INTEGER NOT NULL,
    tenant   TEXT NOT NULL,
    author   TEXT NOT NULL,
    action   TEXT NOT NULL,
    target   TEXT NOT NULL,
    count    INTEGER NOT NULL DEFAULT 1,
    before   TEXT,                               -- JSON: what differs
    after    TEXT,
    why      TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX audit_tenant ON audit (tenant);
CREATE INDEX audit_target ON audit (target);
CREATE INDEX audit_author ON audit (author);

-- Figures by the minute, rolled up from history and attempts.
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
