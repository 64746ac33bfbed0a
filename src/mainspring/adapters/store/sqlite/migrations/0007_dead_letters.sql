-- Dead letters that are watched and replayed at a pace, and pauses that end by themselves.

-- resume_at: when a paused job goes on by itself. paused_until: ticks before it belong to a pause that is over.
ALTER TABLE schedule ADD COLUMN resume_at INTEGER;
ALTER TABLE schedule ADD COLUMN paused_until INTEGER;
ALTER TABLE schedule ADD COLUMN pause_why TEXT NOT NULL DEFAULT '';
CREATE INDEX schedule_resumes ON schedule (resume_at) WHERE resume_at IS NOT NULL;
-- Null: until somebody says so.
ALTER TABLE pause ADD COLUMN until INTEGER;

-- Groups of dead letters that somebody was told of, and up to when they were looked at.
CREATE TABLE dead_group (
    tenant      TEXT NOT NULL,
    task        TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    since       INTEGER NOT NULL,                -- count is how many came since then
    count       INTEGER NOT NULL,
    seen_at     INTEGER NOT NULL,
    grew_at     INTEGER,
    PRIMARY KEY (tenant, task, fingerprint)
) STRICT, WITHOUT ROWID;
CREATE TABLE dead_watch (until INTEGER NOT NULL) STRICT;
INSERT INTO dead_watch (until) SELECT coalesce(max(finished_at) + 1, 0) FROM history WHERE state = 'failed';

-- Replays that are under way, or were: JSON. rev grows with every change.
CREATE TABLE replay (
    id       TEXT NOT NULL PRIMARY KEY,
    tenant   TEXT,                               -- null: of all
    open     INTEGER NOT NULL,
    rev      INTEGER NOT NULL,
    ended_at INTEGER,
    record   TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX replay_open ON replay (id) WHERE open = 1;
