-- Limits: a run must be admitted by all of its limiters at once before it is queued.
--
-- A run with limits waits in the state limited; waits is null until its limiters were checked. release_limiter frees
-- the limiters of a run. At the end of a request, admit_runs admits the runs that now have room. The rules are in
-- core/model/limits.

CREATE TEMP VIEW release_limiter (kind, number, most, per, pause, ending, started_at, now) AS
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL;
CREATE TEMP VIEW count_start (number, per, now) AS SELECT NULL, NULL, NULL;
CREATE TEMP VIEW block_queued (number, most, now) AS SELECT NULL, NULL, NULL;
CREATE TEMP VIEW admit_runs (now) AS SELECT NULL;
CREATE TEMP VIEW admission_round (more, now) AS SELECT NULL, NULL;
CREATE TEMP VIEW pick_front (number, most) AS SELECT NULL, NULL;
CREATE TEMP VIEW try_admission (id, now) AS SELECT NULL, NULL;
CREATE TEMP VIEW admit_run (id, now) AS SELECT NULL, NULL;
CREATE TEMP VIEW update_limiter (number, kind, per, waits, room, surplus, now) AS
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL;

-- Limiters to check before the request ends, the runs that may be admitted now, and those that were.
CREATE TEMP TABLE changed_limiter (number INTEGER PRIMARY KEY);
CREATE TEMP TABLE candidate (due INTEGER, id TEXT, PRIMARY KEY (due, id)) WITHOUT ROWID;
CREATE TEMP TABLE admitted (id TEXT PRIMARY KEY) WITHOUT ROWID;
-- Runs that need no run.queued event, because another event reports them, and what they keep if they are admitted in
-- this request.
CREATE TEMP TABLE kept_position (id TEXT PRIMARY KEY, rank INTEGER, queued_at INTEGER, ready_at INTEGER) WITHOUT ROWID;
-- Runs that were blocked by a limit before, so that they are ready only since their admission.
CREATE TEMP TABLE was_blocked (id TEXT PRIMARY KEY) WITHOUT ROWID;

-- A start counts in its period by its time, regardless of the outcome.
CREATE TEMP TRIGGER release_one_limiter INSTEAD OF INSERT ON release_limiter WHEN NEW.kind <> :BREAKER BEGIN
    UPDATE limiter SET used = max(used - 1, 0)
    WHERE number = NEW.number AND (NEW.kind = :AT_A_TIME OR NEW.started_at IS NULL);
    INSERT OR IGNORE INTO changed_limiter (number) VALUES (NEW.number);
END;

-- While a breaker is open, only the trial run counts. It cannot have started before the breaker opened.
CREATE TEMP TRIGGER release_breaker INSTEAD OF INSERT ON release_limiter WHEN NEW.kind = :BREAKER BEGIN
    UPDATE limiter SET used = 0,
                       open_until = CASE NEW.ending WHEN 'succeeded' THEN NULL
                                                    WHEN 'failed' THEN NEW.now + NEW.pause ELSE open_until END
    WHERE number = NEW.number AND open_until IS NOT NULL AND used > 0
      AND (NEW.started_at IS NULL OR NEW.started_at > open_until - NEW.pause);

    INSERT INTO limiter (number, kind, per) SELECT NEW.number, NEW.kind, NEW.per WHERE NEW.ending = 'failed'
    ON CONFLICT DO NOTHING;
    INSERT INTO mark (number, until)
    SELECT l.number, NEW.now + NEW.per FROM limiter l
    WHERE l.number = NEW.number AND l.open_until IS NULL AND NEW.ending = 'failed';
    UPDATE limiter SET open_until = NEW.now + NEW.pause, used = 0, recalls = 1
    WHERE number = NEW.number AND open_until IS NULL AND NEW.ending = 'failed' AND NEW.most <= (
        SELECT count(*) FROM mark m WHERE m.number = NEW.number AND m.until > NEW.now);
    -- These failures have opened the breaker and are not needed any more.
    DELETE FROM mark WHERE number = NEW.number AND EXISTS (
        SELECT 1 FROM limiter l WHERE l.number = NEW.number AND l.open_until IS NOT NULL);
    INSERT INTO block_queued (number, most, now)
    SELECT l.number, 500, NEW.now FROM limiter l WHERE l.number = NEW.number AND l.recalls = 1;
    INSERT OR IGNORE INTO changed_limiter (number) VALUES (NEW.number);
END;

-- A breaker has opened: the queued runs of its task release all limiters and must be admitted again.
CREATE TEMP TRIGGER block_some_queued INSTEAD OF INSERT ON block_queued BEGIN
    DELETE FROM candidate;
    INSERT INTO candidate (due, id)
    SELECT r.due, r.id FROM run r INDEXED BY run_limited
    WHERE r.limits IS NOT NULL AND r.limits ->> '$[0][1]' = NEW.number AND r.state = 'queued' LIMIT NEW.most;

    INSERT INTO waiting (id, state, shard, tenant, queue, claim_group, rev, priority, attempt, lost, late, fence, body,
                         timeout, due, created_at, started_at, start_by, deadline, key_lock, job_id, job_version,
                         scheduled_at, origin, target, replay_of, session, limits)
    SELECT r.id, 'limited', r.shard, r.tenant, r.queue, r.claim_group, r.rev + 1, r.priority, r.attempt, r.lost, r.late,
           r.fence, r.body, r.timeout, r.due, r.created_at, r.started_at, r.start_by, r.deadline, r.key_lock, r.job_id,
           r.job_version, r.scheduled_at, r.origin, r.target, r.replay_of, r.session, r.limits
    FROM candidate CROSS JOIN run r ON r.id = candidate.id;
    INSERT INTO release_limiter (kind, number, most, per, pause, ending, now)
    SELECT g.value ->> 0, g.value ->> 1, g.value ->> 2, g.value ->> 3, g.value ->> 4, 'other', NEW.now
    FROM candidate CROSS JOIN run r ON r.id = candidate.id CROSS JOIN json_each(r.limits) AS g
    WHERE g.value ->> 0 <> :BREAKER;
    DELETE FROM run WHERE id IN (SELECT candidate.id FROM candidate);
    UPDATE limiter SET recalls = 0
    WHERE number = NEW.number AND (SELECT count(*) FROM candidate) < NEW.most;
    INSERT OR IGNORE INTO changed_limiter (number) VALUES (NEW.number);
END;

-- Counts the start of a run with a limit per period.
CREATE TEMP TRIGGER count_one_start INSTEAD OF INSERT ON count_start BEGIN
    UPDATE limiter SET used = max(used - 1, 0), wake_at = coalesce(wake_at, NEW.now + NEW.per)
    WHERE number = NEW.number;
    INSERT INTO mark (number, until) VALUES (NEW.number, NEW.now + NEW.per);
END;

-- Runs at the end of a request. A run that is checked is admitted, or blocked by a limiter without room, so each round
-- shortens the lines. Runs that are left after three rounds are checked by the next stage.
CREATE TEMP TRIGGER admit_all_runs INSTEAD OF INSERT ON admit_runs
WHEN EXISTS (SELECT 1 FROM changed_limiter)
  OR EXISTS (SELECT 1 FROM waiting w INDEXED BY waiting_limited WHERE w.state = 'limited' AND w.waits IS NULL) BEGIN
    DELETE FROM admitted;
    INSERT INTO admission_round (more, now) VALUES (0, NEW.now), (20, NEW.now), (100, NEW.now);

    INSERT INTO update_limiter (number, kind, per, waits, room, surplus, now)
    SELECT f.number, f.kind, f.per, f.most IS NOT NULL,
           CASE f.kind WHEN :AT_A_TIME THEN f.most - f.used
                       WHEN :PER_PERIOD THEN f.most - f.used - f.marks
                       ELSE f.open_until IS NULL OR (f.used = 0 AND f.recalls = 0 AND f.open_until <= NEW.now) END,
           f.used + f.marks - f.most, NEW.now
    FROM (
        SELECT changed_limiter.number AS number, coalesce(g.value ->> 0, l.kind) AS kind, coalesce(g.value ->> 3, l.per) AS per,
               g.value ->> 2 AS most, coalesce(l.used, 0) AS used, l.open_until AS open_until, l.recalls AS recalls,
               (SELECT count(*) FROM mark m WHERE m.number = changed_limiter.number AND m.until > NEW.now) AS marks
        FROM changed_limiter LEFT JOIN limiter l ON l.number = changed_limiter.number
        LEFT JOIN json_each((
            SELECT w.limits FROM waiting w INDEXED BY waiting_limited
            WHERE w.state = 'limited' AND w.waits = changed_limiter.number ORDER BY w.due, w.id LIMIT 1
        )) AS g ON g.value ->> 1 = changed_limiter.number
    ) AS f;
    DELETE FROM changed_limiter;
    DELETE FROM kept_position;
    DELETE FROM was_blocked;
END;

-- Checks as many runs of each line as there is room for its first run, and a few more in later rounds, because some
-- runs may be blocked by other limiters.
CREATE TEMP TRIGGER run_admission_round INSTEAD OF INSERT ON admission_round BEGIN
    DELETE FROM candidate;
    INSERT INTO candidate (due, id)
    SELECT w.due, w.id FROM waiting w INDEXED BY waiting_limited WHERE w.state = 'limited' AND w.waits IS NULL;
    INSERT INTO pick_front (number, most)
    SELECT f.number, min(f.room, 500) + NEW.more FROM (
        SELECT changed_limiter.number AS number,
               CASE g.value ->> 0
                   WHEN :AT_A_TIME THEN (g.value ->> 2) - coalesce(l.used, 0)
                   WHEN :PER_PERIOD THEN (g.value ->> 2) - coalesce(l.used, 0)
                       - (SELECT count(*) FROM mark m WHERE m.number = changed_limiter.number AND m.until > NEW.now)
                   ELSE iif(l.open_until IS NULL, 500,
                            l.used = 0 AND l.recalls = 0 AND l.open_until <= NEW.now) END AS room
        FROM changed_limiter CROSS JOIN json_each((
            SELECT w.limits FROM waiting w INDEXED BY waiting_limited
            WHERE w.state = 'limited' AND w.waits = changed_limiter.number ORDER BY w.due, w.id LIMIT 1
        )) AS g ON g.value ->> 1 = changed_limiter.number LEFT JOIN limiter l ON l.number = changed_limiter.number
    ) AS f WHERE f.room > 0;
    INSERT INTO try_admission (id, now) SELECT candidate.id, NEW.now FROM candidate ORDER BY candidate.due, candidate.id;
END;

CREATE TEMP TRIGGER pick_front_of_line INSTEAD OF INSERT ON pick_front BEGIN
    INSERT OR IGNORE INTO candidate (due, id)
    SELECT w.due, w.id FROM waiting w INDEXED BY waiting_limited
    WHERE w.state = 'limited' AND w.waits = NEW.number ORDER BY w.due, w.id LIMIT NEW.most;
END;

-- Admits one run if no other run is ahead of it at any of its limiters and all have room. Otherwise blocks it at the
-- first limiter that has none. That limiter is checked as well, because time alone may have made room.
CREATE TEMP TRIGGER try_one_admission INSTEAD OF INSERT ON try_admission BEGIN
    INSERT OR IGNORE INTO was_blocked (id)
    SELECT w.id FROM waiting w WHERE w.id = NEW.id AND w.state = 'limited' AND w.waits IS NOT NULL;
    UPDATE waiting SET waits = (
        SELECT min(g.value ->> 1) FROM json_each(waiting.limits) AS g
        WHERE EXISTS (
            SELECT 1 FROM waiting a INDEXED BY waiting_limited
            WHERE a.state = 'limited' AND a.waits = g.value ->> 1 AND (a.due, a.id) < (waiting.due, +waiting.id)
        ) OR CASE g.value ->> 0
            WHEN :AT_A_TIME THEN coalesce((SELECT l.used FROM limiter l WHERE l.number = g.value ->> 1), 0) >= g.value ->> 2
            WHEN :PER_PERIOD THEN coalesce((SELECT l.used FROM limiter l WHERE l.number = g.value ->> 1), 0)
                + (SELECT count(*) FROM mark m WHERE m.number = g.value ->> 1 AND m.until > NEW.now) >= g.value ->> 2
            ELSE EXISTS (
                SELECT 1 FROM limiter l WHERE l.number = g.value ->> 1 AND l.open_until IS NOT NULL
                  AND (l.used > 0 OR l.recalls = 1 OR l.open_until > NEW.now)) END)
    WHERE id = NEW.id AND state = 'limited';
    INSERT INTO admit_run (id, now)
    SELECT w.id, NEW.now FROM waiting w WHERE w.id = NEW.id AND w.state = 'limited' AND w.waits IS NULL;
    INSERT OR IGNORE INTO changed_limiter (number)
    SELECT w.waits FROM waiting w WHERE w.id = NEW.id AND w.state = 'limited' AND w.waits IS NOT NULL;
END;

CREATE TEMP TRIGGER admit_one_run INSTEAD OF INSERT ON admit_run BEGIN
    INSERT INTO limiter (number, kind, per, used)
    SELECT g.value ->> 1, g.value ->> 0, g.value ->> 3, 1
    FROM waiting w CROSS JOIN json_each(w.limits) AS g WHERE w.id = NEW.id AND g.value ->> 0 <> :BREAKER
    ON CONFLICT DO UPDATE SET used = used + 1;
    UPDATE limiter SET used = used + 1 WHERE open_until IS NOT NULL AND number IN (
        SELECT g.value ->> 1 FROM waiting w CROSS JOIN json_each(w.limits) AS g
        WHERE w.id = NEW.id AND g.value ->> 0 = :BREAKER);

    INSERT INTO run (id, state, shard, tenant, queue, claim_group, rank, rev, priority, attempt, lost, late, fence, body,
                     timeout, due, created_at, started_at, start_by, deadline, key_lock, job_id, job_version, scheduled_at,
                     origin, target, replay_of, session, queued_at, limits, ready_at)
    SELECT w.id, 'queued', w.shard, w.tenant, w.queue, w.claim_group,
           coalesce(q.rank, NEW.now + w.priority * :HEAD_START + (w.late OR w.attempt > 0) * :LATE_PENALTY), w.rev + 1,
           w.priority, w.attempt, w.lost, w.late, w.fence, w.body, w.timeout, w.due, w.created_at, w.started_at,
           w.start_by, w.deadline, w.key_lock, w.job_id, w.job_version, w.scheduled_at, w.origin, w.target, w.replay_of,
           w.session, coalesce(q.queued_at, NEW.now), w.limits,
           coalesce(q.ready_at, iif(w.id IN (SELECT was_blocked.id FROM was_blocked), NEW.now, NULL))
    FROM waiting w LEFT JOIN kept_position AS q ON q.id = w.id WHERE w.id = NEW.id;
    DELETE FROM waiting WHERE id = NEW.id;

    INSERT INTO new_event (kind, tenant, run)
    SELECT 'run.queued', r.tenant, r.id FROM run r
    WHERE r.id = NEW.id AND EXISTS (SELECT 1 FROM outbox_cursor) AND r.id NOT IN (SELECT kept_position.id FROM kept_position);
    INSERT OR IGNORE INTO admitted (id) VALUES (NEW.id);
END;

-- Sets when a limiter must be checked although no run releases it: at once if the first run in line fits and was not
-- checked any more, or when a period or the pause of a breaker ends. Deletes a limiter that has nothing to remember.
CREATE TEMP TRIGGER update_one_limiter INSTEAD OF INSERT ON update_limiter BEGIN
    DELETE FROM mark WHERE number = NEW.number AND until <= NEW.now;
    INSERT INTO limiter (number, kind, per) SELECT NEW.number, NEW.kind, NEW.per WHERE NEW.waits
    ON CONFLICT DO NOTHING;
    UPDATE limiter SET wake_at = CASE
        WHEN NEW.waits AND NEW.room > 0 THEN NEW.now
        WHEN open_until IS NOT NULL THEN iif(NEW.waits AND used = 0 AND recalls = 0, open_until, NULL)
        ELSE coalesce(
            (SELECT m.until FROM mark m WHERE m.number = NEW.number ORDER BY m.until
             LIMIT NEW.waits OFFSET max(coalesce(NEW.surplus, 0), 0)),
            (SELECT max(m.until) FROM mark m WHERE m.number = NEW.number)) END
    WHERE number = NEW.number;
    DELETE FROM limiter WHERE number = NEW.number AND used = 0 AND open_until IS NULL AND NOT NEW.waits
      AND NOT EXISTS (SELECT 1 FROM mark m WHERE m.number = NEW.number);
END;
