-- Sessions of the dashboard that were ended by a sign-out, until they would have ended anyway.
CREATE TABLE signed_out (
    id      TEXT PRIMARY KEY,
    ends_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
