-- How much waits and runs, looked at once a minute. Without a tenant: what was seen of all together.
CREATE TABLE load (
    at      INTEGER NOT NULL,
    tenant  TEXT NOT NULL,
    queue   TEXT NOT NULL,
    queued  INTEGER NOT NULL,
    running INTEGER NOT NULL,
    lag     INTEGER NOT NULL,
    PRIMARY KEY (at, tenant, queue)
) STRICT, WITHOUT ROWID;
