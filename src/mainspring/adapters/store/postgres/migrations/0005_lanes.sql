-- Labels of workers that runs can require, and runs for one worker alone.
--
-- What a run requires is a name of kind 4, the words of its labels in order, and the name's number is the run's lane. Lane 0
-- requires nothing. A run with a target has the negative number of that session for a lane.

-- lanes: those beside 0 that a worker may take of. Null: none, which is the rule, and then a claim does not look further.
ALTER TABLE session ADD COLUMN labels text[] NOT NULL DEFAULT '{}', ADD COLUMN lanes integer[];
CREATE INDEX run_target ON run (target) WHERE target IS NOT NULL;
CREATE INDEX waiting_target ON waiting (target) WHERE target IS NOT NULL;
