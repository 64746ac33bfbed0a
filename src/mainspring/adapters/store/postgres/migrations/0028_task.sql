-- expand
-- The task catalog: what workers declare of the tasks that they run, as JSON. rev grows with every change of the table, so
-- that a reader asks only for what is new.
CREATE TABLE task (
    name          text PRIMARY KEY,
    rev           bigint NOT NULL UNIQUE,
    version       integer NOT NULL,
    body          bytea NOT NULL,
    registered_by text NOT NULL,
    registered_at bigint NOT NULL
);
