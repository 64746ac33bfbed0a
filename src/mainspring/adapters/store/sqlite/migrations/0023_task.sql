-- expand
-- The task catalog: what workers declare of the tasks that they run, as JSON. rev grows with every change of the table, so
-- that a reader asks only for what is new.
CREATE TABLE task (
    name          TEXT PRIMARY KEY,
    rev           INTEGER NOT NULL UNIQUE,
    version       INTEGER NOT NULL,
    body          TEXT NOT NULL,
    registered_by TEXT NOT NULL,
    registered_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
