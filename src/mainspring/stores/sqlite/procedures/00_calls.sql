-- How procedures are called, and the tables that they work with. All of it lives in memory, per connection.
--
-- A procedure is a trigger on a view. INSERT INTO call is one statement, so a request is one atomic step of the
-- database, and Python is entered once for each request, not once for each row. Several requests are several rows of
-- one INSERT and share a commit.
--
-- Views with an INSTEAD OF trigger are subroutines: inserting a row calls them with the columns as arguments.

-- number: the position of the answer in reply. session: the session that calls. argument: a number that the procedure
-- documents, often a limit. batch: JSON. "Item" below means an element of the batch.
CREATE TEMP VIEW call (number, procedure, now, session, argument, batch) AS SELECT NULL, NULL, NULL, NULL, NULL, NULL;
CREATE TEMP TABLE reply (number INTEGER PRIMARY KEY, body TEXT);

-- Subroutines of several procedures; see 10_moves.sql.
CREATE TEMP VIEW insert_new_runs (now) AS SELECT NULL;
CREATE TEMP VIEW insert_waiting_runs (now) AS SELECT NULL;
CREATE TEMP VIEW complete_special_runs (now) AS SELECT NULL;
CREATE TEMP VIEW admit_picked (now) AS SELECT NULL;
CREATE TEMP VIEW release_key_lock (key, holder, now) AS SELECT NULL, NULL, NULL;
CREATE TEMP VIEW end_run (id, state, reason, fingerprint, now) AS SELECT NULL, NULL, NULL, NULL, NULL;
CREATE TEMP VIEW cancel_run (id, now) AS SELECT NULL, NULL;
CREATE TEMP VIEW write_events (now) AS SELECT NULL;
CREATE TEMP VIEW roll_up_metrics (until) AS SELECT NULL;
CREATE TEMP VIEW delete_picked_runs (now) AS SELECT NULL;
CREATE TEMP VIEW drop_old_events (until) AS SELECT NULL;

-- Events of runs in this request. They are written to the outbox at its end; empty while there is no reader.
CREATE TEMP TABLE new_event (n INTEGER PRIMARY KEY, kind TEXT, tenant TEXT, run TEXT);

-- Runs to insert, in the order of the request. Their time limits count from when they are due.
CREATE TEMP TABLE new_run (
    id TEXT PRIMARY KEY, n INTEGER, shard INTEGER, tenant TEXT, queue TEXT, priority INTEGER, task TEXT, policy TEXT,
    payload TEXT, body INTEGER, timeout INTEGER, due INTEGER, start_within INTEGER, deadline INTEGER, key_lock INTEGER,
    late INTEGER DEFAULT 0, job_id TEXT, job_version INTEGER, scheduled_at INTEGER, origin TEXT, replay_of TEXT,
    about TEXT, author TEXT, claim_group INTEGER DEFAULT 0, target TEXT, limits TEXT, rule TEXT
) WITHOUT ROWID;

-- Runs with fields that the basic submit does not take, one at a time, and those whose idempotency key is known.
CREATE TEMP VIEW submit_one_run (
    n, id, shard, tenant, queue, priority, task, policy, payload, body, timeout, due, start_within, deadline, key_lock,
    replay_of, about, job_id, job_version, scheduled_at, late, key, fingerprint, author, claim_group, target, limits, rule, now
) AS SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
            NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL;
CREATE TEMP TABLE known_key (n INTEGER PRIMARY KEY, made TEXT, conflict INTEGER);

-- The runs that a procedure works on, best first.
CREATE TEMP TABLE picked (n INTEGER PRIMARY KEY, id TEXT);
CREATE TEMP VIEW demand (queue, most, tenant, now) AS SELECT NULL, NULL, NULL, NULL;
-- The claim groups that the calling worker may claim from: 0, and those of its label sets.
CREATE TEMP TABLE own_claim_group (id INTEGER PRIMARY KEY);
INSERT INTO own_claim_group (id) VALUES (0);

-- Attempts that are completed, and the next state of their runs.
CREATE TEMP TABLE completion (
    id TEXT PRIMARY KEY, n INTEGER, fence INTEGER, outcome TEXT, state TEXT, reason TEXT, delay INTEGER, result TEXT,
    error TEXT, key_lock INTEGER, origin TEXT, by_attempt INTEGER, fingerprint TEXT, limits TEXT, started_at INTEGER
) WITHOUT ROWID;

-- Fires and their ticks, one at a time.
CREATE TEMP VIEW fire_job (
    n, job_id, rev, next_fire, finished, delay, overlap, queue, claim_group, priority, timeout, key_lock, start_within, deadline,
    ticks, limits, tick, now, session
) AS SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
            NULL;
CREATE TEMP VIEW fire_tick (
    n, job_id, overlap, queue, claim_group, priority, timeout, key_lock, start_within, deadline, origin, scheduled_at, decision,
    reason, run_id, due, late, ticks, last_at, limits, now, target, policy
) AS SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
            NULL, NULL, NULL;
-- Active runs of a job that are for other data centers than the tick.
CREATE TEMP TABLE other_target (id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TEMP TABLE fired_job (n INTEGER PRIMARY KEY);
CREATE TEMP TABLE created_run (position INTEGER PRIMARY KEY, n INTEGER, id TEXT, queue TEXT);
CREATE INDEX temp.created_run_by_fire ON created_run (n);

-- Jobs whose state is changed, one at a time.
CREATE TEMP VIEW set_job_state (id, state, resume_at, why, now) AS SELECT NULL, NULL, NULL, NULL, NULL;
