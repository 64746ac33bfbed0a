-- expand
-- What is kept of notifications: open problems and what waits to be told, by name, as JSON. The row without a name says
-- how many changes there were.
CREATE TABLE notification (
    name text PRIMARY KEY,
    rev  bigint NOT NULL DEFAULT 0,
    body bytea NOT NULL
);
