-- How many runs began how late and took how long, by bucket, rolled up from history with the figures by the minute.
CREATE TABLE timing (
    at     INTEGER NOT NULL,
    queue  TEXT NOT NULL,
    tenant TEXT NOT NULL,
    bucket INTEGER NOT NULL,
    late   INTEGER NOT NULL DEFAULT 0,
    took   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (at, queue, tenant, bucket)
) STRICT, WITHOUT ROWID;
