-- Data centres.
--
-- A tick of a job that goes to several data centres has a row in the ledger for each of them; target: its name. Of all
-- other ticks it is empty.

CREATE TABLE ledger_by_target (
    job_id       TEXT NOT NULL,
    scheduled_at INTEGER NOT NULL,
    target       TEXT NOT NULL DEFAULT '',
    decision     TEXT NOT NULL CHECK (decision IN ('run', 'skipped')),
    reason       TEXT NOT NULL,
    run_id       TEXT,
    job_version  INTEGER NOT NULL,
    epoch        INTEGER NOT NULL,
    ticks        INTEGER NOT NULL,
    last_at      INTEGER,
    PRIMARY KEY (job_id, scheduled_at, target)
) STRICT, WITHOUT ROWID;
INSERT INTO ledger_by_target (job_id, scheduled_at, decision, reason, run_id, job_version, epoch, ticks, last_at)
SELECT job_id, scheduled_at, decision, reason, run_id, job_version, epoch, ticks, last_at FROM ledger;
DROP TABLE ledger;
ALTER TABLE ledger_by_target RENAME TO ledger;
CREATE INDEX ledger_age ON ledger (scheduled_at);

-- The payload of a version for one data centre, with a policy that names it.
CREATE TABLE version_place (
    job_id  TEXT NOT NULL,
    version INTEGER NOT NULL,
    target  TEXT NOT NULL,
    body    INTEGER NOT NULL,
    PRIMARY KEY (job_id, version, target)
) STRICT, WITHOUT ROWID;

-- Orders of preference that runs require, by lane, and the data centre whose workers have that lane.
CREATE TABLE datacenter_order (
    lane    INTEGER PRIMARY KEY,
    serving TEXT NOT NULL,
    why     TEXT NOT NULL,
    since   INTEGER NOT NULL
) STRICT;
