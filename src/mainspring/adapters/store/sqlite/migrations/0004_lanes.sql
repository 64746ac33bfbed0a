-- Labels of workers that runs can require, and runs for one worker alone.
--
-- What a run requires is a row of lane, whose number is the run's lane. Lane 0 requires nothing. A run with a target, which
-- is the number of a session as text, has that number's negative for a lane.

CREATE TABLE lane (
    id       INTEGER PRIMARY KEY,
    requires TEXT NOT NULL UNIQUE                -- words in order, a JSON array
) STRICT;

-- lanes: those that a worker may take of, 0 among them, a JSON array. Null: only 0, which is the rule.
ALTER TABLE session ADD COLUMN labels TEXT NOT NULL DEFAULT '[]';
ALTER TABLE session ADD COLUMN lanes TEXT;

DROP INDEX run_queued;
CREATE INDEX run_queued ON run (tenant, queue, lane, rank, id) WHERE state = 'queued' AND tenant <> 'default';
CREATE INDEX run_target ON run (target) WHERE target IS NOT NULL;
CREATE INDEX waiting_target ON waiting (target) WHERE target IS NOT NULL;
