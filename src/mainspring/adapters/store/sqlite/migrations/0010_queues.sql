-- What an operator says of a queue: how many run at once, how fast its retries come, whose turn it is.

CREATE TABLE queue_policy (
    queue    TEXT NOT NULL PRIMARY KEY,
    policy   TEXT NOT NULL,                      -- JSON
    closely  INTEGER NOT NULL,                   -- a claim must look at it
    weighted INTEGER NOT NULL DEFAULT 0,         -- there may be runs that take more than one slot
    pooled   INTEGER NOT NULL DEFAULT 0,         -- there are workers with a pool of slots for each priority
    clock    INTEGER NOT NULL DEFAULT 0,         -- of its turns: the highest tag that was served
    retries  INTEGER,                            -- its budget of retries, if it has one
    per      INTEGER
) STRICT, WITHOUT ROWID;

-- Whose turn it is: of tenants that are ahead of the clock. The others have none.
CREATE TABLE queue_turn (
    queue  TEXT NOT NULL,
    tenant TEXT NOT NULL,
    tag    INTEGER NOT NULL,
    PRIMARY KEY (queue, tenant)
) STRICT, WITHOUT ROWID;

-- How many retries come in a period, of queues with a budget.
CREATE TABLE queue_retry (
    queue  TEXT NOT NULL,
    period INTEGER NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (queue, period)
) STRICT, WITHOUT ROWID;

-- Of a worker with slots for each priority: those that it takes.
ALTER TABLE session ADD COLUMN priorities TEXT NOT NULL DEFAULT '[]';
