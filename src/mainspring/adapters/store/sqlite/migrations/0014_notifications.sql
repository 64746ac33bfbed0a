-- What is kept of notifications: open problems and what waits to be told, by name, as JSON. The row without a name says
-- how many changes there were.
CREATE TABLE notification (
    name TEXT PRIMARY KEY,
    rev  INTEGER NOT NULL DEFAULT 0,
    body TEXT NOT NULL
) STRICT, WITHOUT ROWID;
