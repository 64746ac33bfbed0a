-- Limits: the gates that runs pass before they are queued, all at once or none.
--
-- Whoever comes to its gates is put into waiting as limited, to be seen (waits is null). Whoever leaves says so here
-- (leave_gate). At the end of a request those pass who can (admit). The rules are those of core/model.

CREATE TEMP VIEW leave_gate (kind, number, most, per, pause, ending, started_at, now) AS
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL;
CREATE TEMP VIEW start_gate (number, per, now) AS SELECT NULL, NULL, NULL;
CREATE TEMP VIEW spill (number, most, now) AS SELECT NULL, NULL, NULL;
CREATE TEMP VIEW admit (now) AS SELECT NULL;
CREATE TEMP VIEW round (more, now) AS SELECT NULL, NULL;
CREATE TEMP VIEW front (number, most) AS SELECT NULL, NULL;
CREATE TEMP VIEW pass (id, now) AS SELECT NULL, NULL;
CREATE TEMP VIEW let_in (id, now) AS SELECT NULL, NULL;
CREATE TEMP VIEW look_again (number, kind, per, waits, room, surplus, now) AS
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL;

-- Gates to be looked at before the request is over, those who may pass now, and those who have.
CREATE TEMP TABLE freed (number INTEGER PRIMARY KEY);
CREATE TEMP TABLE candidate (due INTEGER, id TEXT, PRIMARY KEY (due, id)) WITHOUT ROWID;
CREATE TEMP TABLE passed (id TEXT PRIMARY KEY) WITHOUT ROWID;
-- Of whom the request tells something else than that they are queued, and what they keep if they pass in it.
CREATE TEMP TABLE quiet (id TEXT PRIMARY KEY, rank INTEGER, queued_at INTEGER, ready_at INTEGER) WITHOUT ROWID;
-- Who did not pass when it came: it could not have started before it does.
CREATE TEMP TABLE waited (id TEXT PRIMARY KEY) WITHOUT ROWID;

-- What has started counts in its period by its time, however it ends.
CREATE TEMP TRIGGER leave_one_gate INSTEAD OF INSERT ON leave_gate WHEN NEW.kind < 3 BEGIN
    UPDATE limiter SET used = max(used - 1, 0)
    WHERE number = NEW.number AND (NEW.kind = 1 OR NEW.started_at IS NULL);
    INSERT OR IGNORE INTO freed (number) VALUES (NEW.number);
END;

-- While a breaker is open only the one that went ahead counts, which cannot have started before it opened.
CREATE TEMP TRIGGER leave_breaker INSTEAD OF INSERT ON leave_gate WHEN NEW.kind = 3 BEGIN
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
    UPDATE limiter SET open_until = NEW.now + NEW.pause, used = 0, spilling = 1
    WHERE number = NEW.number AND open_until IS NULL AND NEW.ending = 'failed' AND NEW.most <= (
        SELECT count(*) FROM mark m WHERE m.number = NEW.number AND m.until > NEW.now);
    -- What led to it has done so.
    DELETE FROM mark WHERE number = NEW.number AND EXISTS (
        SELECT 1 FROM limiter l WHERE l.number = NEW.number AND l.open_until IS NOT NULL);
    INSERT INTO spill (number, most, now)
    SELECT l.number, 500, NEW.now FROM limiter l WHERE l.number = NEW.number AND l.spilling = 1;
    INSERT OR IGNORE INTO freed (number) VALUES (NEW.number);
END;

-- A breaker has opened: what is queued of its task leaves all gates, and comes to them again.
CREATE TEMP TRIGGER spill_some INSTEAD OF INSERT ON spill BEGIN
    DELETE FROM candidate;
    INSERT INTO candidate (due, id)
    SELECT r.due, r.id FROM run r INDEXED BY run_limited
    WHERE r.limits IS NOT NULL AND r.limits ->> '$[0][1]' = NEW.number AND r.state = 'queued' LIMIT NEW.most;

    INSERT INTO waiting (id, state, shard, tenant, queue, lane, rev, priority, attempt, lost, late, fence, body,
                         timeout, due, created_at, started_at, start_by, deadline, gate, job_id, job_version,
                         scheduled_at, origin, target, replay_of, session, limits)
    SELECT r.id, 'limited', r.shard, r.tenant, r.queue, r.lane, r.rev + 1, r.priority, r.attempt, r.lost, r.late,
           r.fence, r.body, r.timeout, r.due, r.created_at, r.started_at, r.start_by, r.deadline, r.gate, r.job_id,
           r.job_version, r.scheduled_at, r.origin, r.target, r.replay_of, r.session, r.limits
    FROM candidate CROSS JOIN run r ON r.id = candidate.id;
    INSERT INTO leave_gate (kind, number, most, per, pause, ending, now)
    SELECT g.value ->> 0, g.value ->> 1, g.value ->> 2, g.value ->> 3, g.value ->> 4, 'other', NEW.now
    FROM candidate CROSS JOIN run r ON r.id = candidate.id CROSS JOIN json_each(r.limits) AS g
    WHERE g.value ->> 0 < 3;
    DELETE FROM run WHERE id IN (SELECT candidate.id FROM candidate);
    UPDATE limiter SET spilling = 0
    WHERE number = NEW.number AND (SELECT count(*) FROM candidate) < NEW.most;
    INSERT OR IGNORE INTO freed (number) VALUES (NEW.number);
END;

-- A run with a limit per period starts.
CREATE TEMP TRIGGER start_one_gate INSTEAD OF INSERT ON start_gate BEGIN
    UPDATE limiter SET used = max(used - 1, 0), wake_at = coalesce(wake_at, NEW.now + NEW.per)
    WHERE number = NEW.number;
    INSERT INTO mark (number, until) VALUES (NEW.number, NEW.now + NEW.per);
END;

-- The end of a request. Who was looked at waits where there is no room, or has passed; so a line gets shorter with
-- every round. What three rounds leave is looked at when somebody stages.
CREATE TEMP TRIGGER admit_runs INSTEAD OF INSERT ON admit
WHEN EXISTS (SELECT 1 FROM freed)
  OR EXISTS (SELECT 1 FROM waiting w INDEXED BY waiting_limited WHERE w.state = 'limited' AND w.waits IS NULL) BEGIN
    DELETE FROM passed;
    INSERT INTO round (more, now) VALUES (0, NEW.now), (20, NEW.now), (100, NEW.now);

    INSERT INTO look_again (number, kind, per, waits, room, surplus, now)
    SELECT f.number, f.kind, f.per, f.most IS NOT NULL,
           CASE f.kind WHEN 1 THEN f.most - f.used
                       WHEN 2 THEN f.most - f.used - f.marks
                       ELSE f.open_until IS NULL OR (f.used = 0 AND f.spilling = 0 AND f.open_until <= NEW.now) END,
           f.used + f.marks - f.most, NEW.now
    FROM (
        SELECT freed.number AS number, coalesce(g.value ->> 0, l.kind) AS kind, coalesce(g.value ->> 3, l.per) AS per,
               g.value ->> 2 AS most, coalesce(l.used, 0) AS used, l.open_until AS open_until, l.spilling AS spilling,
               (SELECT count(*) FROM mark m WHERE m.number = freed.number AND m.until > NEW.now) AS marks
        FROM freed LEFT JOIN limiter l ON l.number = freed.number
        LEFT JOIN json_each((
            SELECT w.limits FROM waiting w INDEXED BY waiting_limited
            WHERE w.state = 'limited' AND w.waits = freed.number ORDER BY w.due, w.id LIMIT 1
        )) AS g ON g.value ->> 1 = freed.number
    ) AS f;
    DELETE FROM freed;
    DELETE FROM quiet;
    DELETE FROM waited;
END;

-- The first of each line as far as there is room by the first one's measure, and a few more in later rounds: some may
-- have gone to wait elsewhere.
CREATE TEMP TRIGGER one_round INSTEAD OF INSERT ON round BEGIN
    DELETE FROM candidate;
    INSERT INTO candidate (due, id)
    SELECT w.due, w.id FROM waiting w INDEXED BY waiting_limited WHERE w.state = 'limited' AND w.waits IS NULL;
    INSERT INTO front (number, most)
    SELECT f.number, min(f.room, 500) + NEW.more FROM (
        SELECT freed.number AS number,
               CASE g.value ->> 0
                   WHEN 1 THEN (g.value ->> 2) - coalesce(l.used, 0)
                   WHEN 2 THEN (g.value ->> 2) - coalesce(l.used, 0)
                       - (SELECT count(*) FROM mark m WHERE m.number = freed.number AND m.until > NEW.now)
                   ELSE iif(l.open_until IS NULL, 500,
                            l.used = 0 AND l.spilling = 0 AND l.open_until <= NEW.now) END AS room
        FROM freed CROSS JOIN json_each((
            SELECT w.limits FROM waiting w INDEXED BY waiting_limited
            WHERE w.state = 'limited' AND w.waits = freed.number ORDER BY w.due, w.id LIMIT 1
        )) AS g ON g.value ->> 1 = freed.number LEFT JOIN limiter l ON l.number = freed.number
    ) AS f WHERE f.room > 0;
    INSERT INTO pass (id, now) SELECT candidate.id, NEW.now FROM candidate ORDER BY candidate.due, candidate.id;
END;

CREATE TEMP TRIGGER front_of_a_line INSTEAD OF INSERT ON front BEGIN
    INSERT OR IGNORE INTO candidate (due, id)
    SELECT w.due, w.id FROM waiting w INDEXED BY waiting_limited
    WHERE w.state = 'limited' AND w.waits = NEW.number ORDER BY w.due, w.id LIMIT NEW.most;
END;

-- One run at its gates: it passes where nobody is before it in the line and there is room, or waits at the first gate
-- where it does not. That gate is looked at, too: its room may have come by time alone.
CREATE TEMP TRIGGER pass_one INSTEAD OF INSERT ON pass BEGIN
    INSERT OR IGNORE INTO waited (id)
    SELECT w.id FROM waiting w WHERE w.id = NEW.id AND w.state = 'limited' AND w.waits IS NOT NULL;
    UPDATE waiting SET waits = (
        SELECT min(g.value ->> 1) FROM json_each(waiting.limits) AS g
        WHERE EXISTS (
            SELECT 1 FROM waiting a INDEXED BY waiting_limited
            WHERE a.state = 'limited' AND a.waits = g.value ->> 1 AND (a.due, a.id) < (waiting.due, +waiting.id)
        ) OR CASE g.value ->> 0
            WHEN 1 THEN coalesce((SELECT l.used FROM limiter l WHERE l.number = g.value ->> 1), 0) >= g.value ->> 2
            WHEN 2 THEN coalesce((SELECT l.used FROM limiter l WHERE l.number = g.value ->> 1), 0)
                + (SELECT count(*) FROM mark m WHERE m.number = g.value ->> 1 AND m.until > NEW.now) >= g.value ->> 2
            ELSE EXISTS (
                SELECT 1 FROM limiter l WHERE l.number = g.value ->> 1 AND l.open_until IS NOT NULL
                  AND (l.used > 0 OR l.spilling = 1 OR l.open_until > NEW.now)) END)
    WHERE id = NEW.id AND state = 'limited';
    INSERT INTO let_in (id, now)
    SELECT w.id, NEW.now FROM waiting w WHERE w.id = NEW.id AND w.state = 'limited' AND w.waits IS NULL;
    INSERT OR IGNORE INTO freed (number)
    SELECT w.waits FROM waiting w WHERE w.id = NEW.id AND w.state = 'limited' AND w.waits IS NOT NULL;
END;

CREATE TEMP TRIGGER let_one_in INSTEAD OF INSERT ON let_in BEGIN
    INSERT INTO limiter (number, kind, per, used)
    SELECT g.value ->> 1, g.value ->> 0, g.value ->> 3, 1
    FROM waiting w CROSS JOIN json_each(w.limits) AS g WHERE w.id = NEW.id AND g.value ->> 0 < 3
    ON CONFLICT DO UPDATE SET used = used + 1;
    UPDATE limiter SET used = used + 1 WHERE open_until IS NOT NULL AND number IN (
        SELECT g.value ->> 1 FROM waiting w CROSS JOIN json_each(w.limits) AS g
        WHERE w.id = NEW.id AND g.value ->> 0 = 3);

    INSERT INTO run (id, state, shard, tenant, queue, lane, rank, rev, priority, attempt, lost, late, fence, body,
                     timeout, due, created_at, started_at, start_by, deadline, gate, job_id, job_version, scheduled_at,
                     origin, target, replay_of, session, queued_at, limits, ready_at)
    SELECT w.id, 'queued', w.shard, w.tenant, w.queue, w.lane,
           coalesce(q.rank, NEW.now + w.priority * 1000000000 + (w.late OR w.attempt > 0) * 60000000), w.rev + 1,
           w.priority, w.attempt, w.lost, w.late, w.fence, w.body, w.timeout, w.due, w.created_at, w.started_at,
           w.start_by, w.deadline, w.gate, w.job_id, w.job_version, w.scheduled_at, w.origin, w.target, w.replay_of,
           w.session, coalesce(q.queued_at, NEW.now), w.limits,
           coalesce(q.ready_at, iif(w.id IN (SELECT waited.id FROM waited), NEW.now, NULL))
    FROM waiting w LEFT JOIN quiet AS q ON q.id = w.id WHERE w.id = NEW.id;
    DELETE FROM waiting WHERE id = NEW.id;

    INSERT INTO happened (kind, tenant, run)
    SELECT 'run.queued', r.tenant, r.id FROM run r
    WHERE r.id = NEW.id AND EXISTS (SELECT 1 FROM outbox_cursor) AND r.id NOT IN (SELECT quiet.id FROM quiet);
    INSERT OR IGNORE INTO passed (id) VALUES (NEW.id);
END;

-- When a gate is to be looked at though nobody leaves: at once, if the first in line fits and was not looked at any
-- more; when a period has gone by, or the pause of a breaker. What is remembered by nobody goes.
CREATE TEMP TRIGGER look_again_at_a_gate INSTEAD OF INSERT ON look_again BEGIN
    DELETE FROM mark WHERE number = NEW.number AND until <= NEW.now;
    INSERT INTO limiter (number, kind, per) SELECT NEW.number, NEW.kind, NEW.per WHERE NEW.waits
    ON CONFLICT DO NOTHING;
    UPDATE limiter SET wake_at = CASE
        WHEN NEW.waits AND NEW.room > 0 THEN NEW.now
        WHEN open_until IS NOT NULL THEN iif(NEW.waits AND used = 0 AND spilling = 0, open_until, NULL)
        ELSE coalesce(
            (SELECT m.until FROM mark m WHERE m.number = NEW.number ORDER BY m.until
             LIMIT NEW.waits OFFSET max(coalesce(NEW.surplus, 0), 0)),
            (SELECT max(m.until) FROM mark m WHERE m.number = NEW.number)) END
    WHERE number = NEW.number;
    DELETE FROM limiter WHERE number = NEW.number AND used = 0 AND open_until IS NULL AND NOT NEW.waits
      AND NOT EXISTS (SELECT 1 FROM mark m WHERE m.number = NEW.number);
END;
