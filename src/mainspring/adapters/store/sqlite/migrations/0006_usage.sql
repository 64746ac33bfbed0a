-- Backfilled runs by the tick that they make up for. Nothing else is in these.
CREATE INDEX run_backfilled ON run (job_id, scheduled_at) WHERE scheduled_at IS NOT NULL AND origin IS NULL;
CREATE INDEX waiting_backfilled ON waiting (job_id, scheduled_at) WHERE scheduled_at IS NOT NULL AND origin IS NULL;
CREATE INDEX history_backfilled ON history (job_id, scheduled_at) WHERE scheduled_at IS NOT NULL AND origin IS NULL;

-- What an attempt cost beyond its time: microseconds of CPU, and units of the application's own as JSON. Null: not known.
ALTER TABLE history ADD COLUMN cpu INTEGER;
ALTER TABLE history ADD COLUMN units TEXT;
ALTER TABLE attempt ADD COLUMN cpu INTEGER;
ALTER TABLE attempt ADD COLUMN units TEXT;

-- Sums by the day, rolled up from history and attempts with the figures by the minute. job_id is empty for one-offs.
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
