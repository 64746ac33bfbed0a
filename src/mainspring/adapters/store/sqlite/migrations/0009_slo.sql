-- What schedules owe: how each stands, as JSON, and when it is looked at again.
CREATE TABLE slo (
    job_id     TEXT PRIMARY KEY,
    tenant     TEXT NOT NULL,
    rev        INTEGER NOT NULL DEFAULT 1,
    next_check INTEGER NOT NULL,
    state      TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX slo_check ON slo (next_check);
