-- Moves of runs that several procedures share.

-- What is fresh is queued if it is due and its gate is free, blocked if it is not, scheduled if its time is ahead.
-- Those of one gate stand in the order of (due, id), inside a batch too.
CREATE TEMP TRIGGER enter_fresh_runs INSTEAD OF INSERT ON enter_fresh BEGIN
    INSERT INTO gate (key, holder)
    SELECT fresh.gate, fresh.id FROM fresh
    WHERE fresh.gate IS NOT NULL AND fresh.due <= NEW.now AND NOT EXISTS (
        SELECT 1 FROM waiting w INDEXED BY waiting_blocked WHERE w.state = 'blocked' AND w.gate = fresh.gate)
    ORDER BY fresh.due, fresh.id
    ON CONFLICT DO NOTHING;

    INSERT INTO run (id, state, shard, tenant, queue, lane, rank, priority, attempt, lost, late, fence, body, timeout,
                     due, created_at, start_by, deadline, gate, job_id, job_version, scheduled_at, origin, target,
                     replay_of, queued_at)
    SELECT id, 'queued', shard, tenant, queue, lane, NEW.now + priority * 1000000000 + late * 60000000, priority, 0, 0,
           late, 0, body, timeout, due, NEW.now, due + start_within, due + deadline, gate, job_id, job_version,
           scheduled_at, origin, target, replay_of, NEW.now
    FROM fresh
    WHERE due <= NEW.now AND (gate IS NULL OR id = (SELECT g.holder FROM gate g WHERE g.key = fresh.gate));

    INSERT INTO waiting (id, state, shard, tenant, queue, lane, priority, attempt, lost, late, fence, body, timeout,
                         due, created_at, start_by, deadline, gate, job_id, job_version, scheduled_at, origin, target,
                         replay_of)
    SELECT id, iif(due <= NEW.now, 'blocked', 'scheduled'), shard, tenant, queue, lane, priority, 0, 0, late, 0, body,
           timeout, due, NEW.now, due + start_within, due + deadline, gate, job_id, job_version, scheduled_at, origin,
           target, replay_of
    FROM fresh
    WHERE due > NEW.now
       OR (gate IS NOT NULL AND id IS NOT (SELECT g.holder FROM gate g WHERE g.key = fresh.gate));

    INSERT INTO happened (kind, tenant, run)
    SELECT 'run.submitted', tenant, id FROM fresh WHERE EXISTS (SELECT 1 FROM outbox_cursor) ORDER BY n;
END;

-- A set of labels is required for the first time: the workers that have all of them will look for it.
CREATE TEMP TRIGGER widen_lanes AFTER INSERT ON main.lane BEGIN
    UPDATE session SET lanes = json_insert(coalesce(lanes, '[0]'), '$[#]', NEW.id)
    WHERE dead = 0 AND labels <> '[]' AND NOT EXISTS (
        SELECT 1 FROM json_each(NEW.requires) AS q
        WHERE q.value NOT IN (SELECT l.value FROM json_each(session.labels) AS l));
END;

-- A gate that a run held is free: the first in its line is queued and holds it now.
CREATE TEMP TRIGGER free_one_gate INSTEAD OF INSERT ON free_gate BEGIN
    DELETE FROM gate WHERE key = NEW.key AND holder = NEW.holder;

    INSERT INTO gate (key, holder)
    SELECT NEW.key, w.id FROM waiting w INDEXED BY waiting_blocked
    WHERE w.state = 'blocked' AND w.gate = NEW.key AND NOT EXISTS (SELECT 1 FROM gate g WHERE g.key = NEW.key)
    ORDER BY w.due, w.id LIMIT 1;

    INSERT INTO run (id, state, shard, tenant, queue, lane, rank, rev, priority, attempt, lost, late, fence, body,
                     timeout, due, created_at, started_at, start_by, deadline, gate, job_id, job_version, scheduled_at,
                     origin, target, replay_of, session, queued_at)
    SELECT w.id, 'queued', w.shard, w.tenant, w.queue, w.lane,
           NEW.now + w.priority * 1000000000 + (w.late OR w.attempt > 0) * 60000000, w.rev + 1, w.priority, w.attempt,
           w.lost, w.late, w.fence, w.body, w.timeout, w.due, w.created_at, w.started_at, w.start_by, w.deadline,
           w.gate, w.job_id, w.job_version, w.scheduled_at, w.origin, w.target, w.replay_of, w.session, NEW.now
    FROM gate g CROSS JOIN waiting w ON w.id = g.holder
    WHERE g.key = NEW.key AND w.state = 'blocked';

    INSERT INTO happened (kind, tenant, run)
    SELECT 'run.queued', w.tenant, w.id FROM gate g CROSS JOIN waiting w ON w.id = g.holder
    WHERE g.key = NEW.key AND w.state = 'blocked' AND EXISTS (SELECT 1 FROM outbox_cursor);

    DELETE FROM waiting WHERE id = (SELECT g.holder FROM gate g WHERE g.key = NEW.key) AND state = 'blocked';
END;

-- A run that is queued or waits ends without an attempt.
CREATE TEMP TRIGGER end_one_run INSTEAD OF INSERT ON end_run BEGIN
    INSERT INTO history (id, state, tenant, queue, rev, priority, attempt, lost, fence, by_attempt, body, due,
                         created_at, started_at, finished_at, cancel_at, job_id, job_version, scheduled_at, origin,
                         target, replay_of, reason, session, executor, start_by, deadline, fingerprint, dead)
    SELECT r.id, NEW.state, r.tenant, r.queue, r.rev + 1, r.priority, r.attempt, r.lost, r.fence, 0, r.body, r.due,
           r.created_at, r.started_at, NEW.now, iif(NEW.state = 'cancelled', coalesce(r.cancel_at, NEW.now), NULL),
           r.job_id, r.job_version, r.scheduled_at, r.origin, r.target, r.replay_of, NEW.reason, r.session,
           (SELECT session.name FROM session WHERE session.id = r.session), r.start_by, r.deadline, NEW.fingerprint,
           NEW.state = 'failed'
    FROM run r WHERE r.id = NEW.id AND r.state = 'queued'
    UNION ALL
    SELECT w.id, NEW.state, w.tenant, w.queue, w.rev + 1, w.priority, w.attempt, w.lost, w.fence, 0, w.body, w.due,
           w.created_at, w.started_at, NEW.now, iif(NEW.state = 'cancelled', NEW.now, NULL), w.job_id, w.job_version,
           w.scheduled_at, w.origin, w.target, w.replay_of, NEW.reason, w.session,
           (SELECT session.name FROM session WHERE session.id = w.session), w.start_by, w.deadline, NEW.fingerprint,
           NEW.state = 'failed'
    FROM waiting w WHERE w.id = NEW.id;

    INSERT INTO happened (kind, tenant, run)
    SELECT 'run.' || NEW.state, h.tenant, h.id FROM history h
    WHERE h.id = NEW.id AND EXISTS (SELECT 1 FROM outbox_cursor);

    UPDATE schedule SET next_fire = NEW.now + delay, awaits = NULL, rev = rev + 1
    WHERE job_id = (SELECT h.job_id FROM history h WHERE h.id = NEW.id) AND awaits = NEW.id AND next_fire IS NULL
      AND delay IS NOT NULL AND active = 1;

    -- A blocked run holds nothing, so the line is not disturbed by its end.
    INSERT INTO free_gate (key, holder, now)
    SELECT g.key, g.holder, NEW.now
    FROM (SELECT r.gate FROM run r WHERE r.id = NEW.id
          UNION ALL SELECT w.gate FROM waiting w WHERE w.id = NEW.id) AS its
    CROSS JOIN gate g ON g.key = its.gate
    WHERE g.holder = NEW.id;

    DELETE FROM run WHERE id = NEW.id AND state = 'queued';
    DELETE FROM waiting WHERE id = NEW.id;
END;

-- What runs is asked to stop, what has not started ends at once.
CREATE TEMP TRIGGER stop_one_run INSTEAD OF INSERT ON stop_run BEGIN
    INSERT INTO happened (kind, tenant, run)
    SELECT 'run.cancel_requested', r.tenant, r.id FROM run r
    WHERE r.id = NEW.id AND r.state = 'running' AND r.cancel_at IS NULL AND EXISTS (SELECT 1 FROM outbox_cursor);

    UPDATE run SET cancel_at = NEW.now, rev = rev + 1 WHERE id = NEW.id AND state = 'running' AND cancel_at IS NULL;

    INSERT INTO end_run (id, state, reason, now)
    SELECT NEW.id, 'cancelled', 'cancelled', NEW.now
    WHERE EXISTS (SELECT 1 FROM run r WHERE r.id = NEW.id AND r.state = 'queued')
       OR EXISTS (SELECT 1 FROM waiting w WHERE w.id = NEW.id);
END;

-- The end of a request: what happened is written down, one row a kind and tenant.
CREATE TEMP TRIGGER tell_what_happened INSTEAD OF INSERT ON tell WHEN EXISTS (SELECT 1 FROM happened) BEGIN
    INSERT INTO outbox (at, kind, tenant, runs)
    SELECT NEW.now, kind, tenant, json_group_array(run ORDER BY n) FROM happened GROUP BY kind, tenant ORDER BY min(n);
    DELETE FROM happened;
END;
