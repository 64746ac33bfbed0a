-- Where procedures keep what they are working on, and how they are called. All of it lives in memory, per connection.
--
-- A procedure is a trigger on a view: INSERT INTO call is one statement, so all that a request does is one step of the
-- database engine, atomic by itself, and the interpreter is asked for once and not once a row. Several requests are
-- several rows of the same INSERT, and share a commit.

-- number: where the answer goes. who: the session that asks. size: a limit, or how many items there are in the batch.
CREATE TEMP VIEW call (number, procedure, now, session, argument, batch) AS SELECT NULL, NULL, NULL, NULL, NULL, NULL;
CREATE TEMP TABLE reply (number INTEGER PRIMARY KEY, body TEXT);

-- Parts that procedures share; see 10_moves.sql.
CREATE TEMP VIEW enter_fresh (now) AS SELECT NULL;
CREATE TEMP VIEW enter_the_rest (now) AS SELECT NULL;
CREATE TEMP VIEW settle_the_rest (now) AS SELECT NULL;
CREATE TEMP VIEW come_due (now) AS SELECT NULL;
CREATE TEMP VIEW free_gate (key, holder, now) AS SELECT NULL, NULL, NULL;
CREATE TEMP VIEW end_run (id, state, reason, fingerprint, now) AS SELECT NULL, NULL, NULL, NULL, NULL;
CREATE TEMP VIEW stop_run (id, now) AS SELECT NULL, NULL;
CREATE TEMP VIEW tell (now) AS SELECT NULL;
CREATE TEMP VIEW roll_up (until) AS SELECT NULL;
CREATE TEMP VIEW forget_picked (now) AS SELECT NULL;
CREATE TEMP VIEW forget_events (until) AS SELECT NULL;

-- What happened to runs in this request, for the outbox; empty while nobody reads it.
CREATE TEMP TABLE happened (n INTEGER PRIMARY KEY, kind TEXT, tenant TEXT, run TEXT);

-- Runs about to enter, in the order they were given. Their limits count from when they are due.
CREATE TEMP TABLE fresh (
    id TEXT PRIMARY KEY, n INTEGER, shard INTEGER, tenant TEXT, queue TEXT, priority INTEGER, task TEXT, policy TEXT,
    payload TEXT, body INTEGER, timeout INTEGER, due INTEGER, start_within INTEGER, deadline INTEGER, gate INTEGER,
    late INTEGER DEFAULT 0, job_id TEXT, job_version INTEGER, scheduled_at INTEGER, origin TEXT, replay_of TEXT,
    about TEXT, author TEXT, lane INTEGER DEFAULT 0, target TEXT, limits TEXT, rule TEXT
) WITHOUT ROWID;

-- Runs with more than the engine asks for, one at a time; and those among them whose idempotency key was used before.
CREATE TEMP VIEW submit_one (
    n, id, shard, tenant, queue, priority, task, policy, payload, body, timeout, due, start_within, deadline, gate,
    replay_of, about, job_id, job_version, scheduled_at, late, key, fingerprint, author, lane, target, limits, rule, now
) AS SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
            NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL;
CREATE TEMP TABLE taken (n INTEGER PRIMARY KEY, made TEXT, conflict INTEGER);

-- Runs chosen, best first.
CREATE TEMP TABLE picked (n INTEGER PRIMARY KEY, id TEXT);
CREATE TEMP VIEW want (queue, most, tenant, now) AS SELECT NULL, NULL, NULL, NULL;
-- The lanes that whoever claims may take of: 0, and those of its own.
CREATE TEMP TABLE serving (lane INTEGER PRIMARY KEY);
INSERT INTO serving (lane) VALUES (0);

-- Attempts that end, with what becomes of their runs.
CREATE TEMP TABLE settling (
    id TEXT PRIMARY KEY, n INTEGER, fence INTEGER, outcome TEXT, state TEXT, reason TEXT, delay INTEGER, result TEXT,
    error TEXT, gate INTEGER, origin TEXT, by_attempt INTEGER, fingerprint TEXT, limits TEXT, started_at INTEGER
) WITHOUT ROWID;

-- Fires and their ticks, one at a time.
CREATE TEMP VIEW fire_job (
    n, job_id, rev, next_fire, finished, delay, overlap, queue, lane, priority, timeout, gate, start_within, deadline,
    ticks, limits, tick, now, session
) AS SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
            NULL;
CREATE TEMP VIEW fire_tick (
    n, job_id, overlap, queue, lane, priority, timeout, gate, start_within, deadline, origin, scheduled_at, decision,
    reason, run_id, due, late, ticks, last_at, limits, now, target, policy
) AS SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
            NULL, NULL, NULL;
-- Runs of the job of a tick that are for other data centres than the tick is.
CREATE TEMP TABLE elsewhere (id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TEMP TABLE fired (n INTEGER PRIMARY KEY);
CREATE TEMP TABLE made (place INTEGER PRIMARY KEY, n INTEGER, id TEXT, queue TEXT);
CREATE INDEX temp.made_by ON made (n);

-- Jobs whose state is changed, one at a time.
CREATE TEMP VIEW set_job (id, state, resume_at, why, now) AS SELECT NULL, NULL, NULL, NULL, NULL;
