-- Limits: a run must be admitted by all of its limiters at once before it is queued.
--
-- A run with limits waits in the state limited; waits is null until its limiters were checked. Procedures note which
-- runs release their limiters. At the end of a request, admit_limited runs the rule, which is core/rules/limits.py.

CREATE TEMP VIEW count_start (number, per, now) AS SELECT NULL, NULL, NULL;
CREATE TEMP VIEW admit_runs (now) AS SELECT NULL;

-- Runs that release their limiters in this request, limiters that block one run less, and the runs that were admitted.
CREATE TEMP TABLE limit_release (n INTEGER PRIMARY KEY, limits TEXT, ending TEXT, started_at INTEGER);
CREATE TEMP TABLE changed_limiter (number INTEGER PRIMARY KEY);
CREATE TEMP TABLE admitted (id TEXT PRIMARY KEY) WITHOUT ROWID;
-- Runs that need no run.queued event, because another event reports them, and what they keep if they are admitted in
-- this request.
CREATE TEMP TABLE kept_position (id TEXT PRIMARY KEY, rank INTEGER, queued_at INTEGER, ready_at INTEGER) WITHOUT ROWID;
-- Runs that were blocked by a key before, so that they are ready only since their admission.
CREATE TEMP TABLE was_blocked (id TEXT PRIMARY KEY) WITHOUT ROWID;

-- Counts the start of a run with a limit per period, as `started` of core/model/limits does.
CREATE TEMP TRIGGER count_one_start INSTEAD OF INSERT ON count_start BEGIN
    UPDATE limiter SET used = max(used - 1, 0), wake_at = coalesce(wake_at, NEW.now + NEW.per)
    WHERE number = NEW.number;
    INSERT INTO mark (number, until) VALUES (NEW.number, NEW.now + NEW.per);
END;

CREATE TEMP TRIGGER admit_all_runs INSTEAD OF INSERT ON admit_runs
WHEN EXISTS (SELECT 1 FROM changed_limiter) OR EXISTS (SELECT 1 FROM limit_release)
  OR EXISTS (SELECT 1 FROM waiting w INDEXED BY waiting_limited WHERE w.state = 'limited' AND w.waits IS NULL) BEGIN
    DELETE FROM admitted;
    SELECT admit_limited(NEW.now);
    DELETE FROM limit_release;
    DELETE FROM changed_limiter;
    DELETE FROM kept_position;
    DELETE FROM was_blocked;
END;
