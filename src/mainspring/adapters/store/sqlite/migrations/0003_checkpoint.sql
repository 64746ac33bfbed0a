-- What an attempt wants the next one to know, as JSON. The newest stands; it goes with its run.
CREATE TABLE checkpoint (
    run_id TEXT NOT NULL PRIMARY KEY,
    state  TEXT NOT NULL
) STRICT, WITHOUT ROWID;
