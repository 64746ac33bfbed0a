-- What workers ask for.

-- Batch: name, kind, ttl, version, datacenter. Answer: the id of the session.
CREATE TEMP TRIGGER open_session INSTEAD OF INSERT ON call WHEN NEW.kind = 'open_session' BEGIN
    INSERT INTO session (name, kind, version, datacenter, started_at, lease_until)
    VALUES (NEW.batch ->> 0, NEW.batch ->> 1, NEW.batch ->> 3, NEW.batch ->> 4, NEW.now, NEW.now + (NEW.batch ->> 2));
    INSERT OR REPLACE INTO reply (number, body) SELECT NEW.number, max(id) FROM session;
END;

CREATE TEMP TRIGGER close_session INSTEAD OF INSERT ON call WHEN NEW.kind = 'close_session' BEGIN
    UPDATE session SET dead = 1 WHERE id = NEW.who AND dead = 0;
    INSERT OR REPLACE INTO reply (number, body) VALUES (NEW.number, 'null');
END;

-- The lease is extended, and what the worker does not know of is queued again as if it had never been claimed.
-- Batch: ttl, held ids, pending claims. Size: the newest claim. Answer: now, alive, cancels, how many were returned.
CREATE TEMP TRIGGER beat INSTEAD OF INSERT ON call WHEN NEW.kind = 'beat' BEGIN
    UPDATE session SET lease_until = NEW.now + (NEW.batch ->> 0) WHERE id = NEW.who AND dead = 0;

    DELETE FROM picked;
    INSERT INTO picked (id)
    SELECT r.id FROM run r INDEXED BY run_held
    WHERE r.state = 'running' AND r.session = NEW.who AND r.claim <= NEW.size
      AND r.id NOT IN (SELECT value FROM json_each(NEW.batch, '$[1]'))
      AND r.claim NOT IN (SELECT value FROM json_each(NEW.batch, '$[2]'))
      AND EXISTS (SELECT 1 FROM session s WHERE s.id = NEW.who AND s.dead = 0);

    UPDATE run SET state = 'queued', attempt = attempt - 1, rev = rev + 1, session = NULL, claim = NULL,
                   attempt_until = NULL
    WHERE id IN (SELECT p.id FROM picked p);

    INSERT INTO happened (kind, run)
    SELECT 'run.released', r.id FROM picked p CROSS JOIN run r ON r.id = p.id
    WHERE r.cancel_at IS NULL AND EXISTS (SELECT 1 FROM outbox_cursor);
    INSERT INTO end_run (id, state, reason, now)
    SELECT r.id, 'cancelled', 'cancelled', NEW.now FROM picked p CROSS JOIN run r ON r.id = p.id
    WHERE r.cancel_at IS NOT NULL;
    INSERT INTO tell (now) VALUES (NEW.now);

    INSERT OR REPLACE INTO reply (number, body)
    SELECT NEW.number, json_array(
        NEW.now,
        (SELECT count(*) FROM session s WHERE s.id = NEW.who AND s.dead = 0),
        json((SELECT json_group_array(r.id) FROM run r INDEXED BY run_held
              WHERE r.state = 'running' AND r.session = NEW.who AND r.cancel_at IS NOT NULL
                AND r.id IN (SELECT value FROM json_each(NEW.batch, '$[1]'))
                AND EXISTS (SELECT 1 FROM session s WHERE s.id = NEW.who AND s.dead = 0))),
        (SELECT count(*) FROM picked));
END;

-- The best of one queue. What missed its start or its deadline is left for the reaper.
CREATE TEMP TRIGGER pick INSTEAD OF INSERT ON want BEGIN
    INSERT INTO picked (id)
    SELECT r.id FROM run r INDEXED BY run_ready
    WHERE r.state = 'queued' AND r.queue = NEW.queue AND r.lane = 0
      AND (r.start_by IS NULL OR r.start_by >= NEW.now OR r.attempt > 0)
      AND (r.deadline IS NULL OR r.deadline > NEW.now)
    ORDER BY r.rank, r.id LIMIT NEW.most;
END;

-- Batch: (queue, limit) pairs, each queue once. Size: the number of the claim. Answer: held runs, best first.
CREATE TEMP TRIGGER claim INSTEAD OF INSERT ON call WHEN NEW.kind = 'claim' BEGIN
    DELETE FROM picked;
    INSERT INTO want (queue, most, now)
    SELECT w.value ->> 0, w.value ->> 1, NEW.now FROM json_each(NEW.batch) AS w
    WHERE EXISTS (SELECT 1 FROM session s WHERE s.id = NEW.who AND s.dead = 0 AND s.lease_until >= NEW.now);

    UPDATE meta SET fence_seq = fence_seq + 1 WHERE EXISTS (SELECT 1 FROM picked);

    UPDATE run SET state = 'running', attempt = attempt + 1, rev = rev + 1,
                   fence = (SELECT m.store_epoch << 40 | m.fence_seq FROM meta m), session = NEW.who, claim = NEW.size,
                   started_at = NEW.now, attempt_until = min(NEW.now + timeout, coalesce(deadline, NEW.now + timeout))
    WHERE id IN (SELECT p.id FROM picked p);

    INSERT INTO outbox (at, kind, runs)
    SELECT NEW.now, 'run.started', (SELECT json_group_array(p.id ORDER BY p.n) FROM picked p)
    WHERE EXISTS (SELECT 1 FROM outbox_cursor) AND EXISTS (SELECT 1 FROM picked);

    INSERT OR REPLACE INTO reply (number, body)
    SELECT NEW.number, json_group_array(json_array(
        r.id, r.fence, b.task, b.payload, b.policy, r.queue, r.tenant, r.priority, r.attempt, r.lost, r.due, r.started_at,
        r.attempt_until, r.deadline, r.job_id, r.scheduled_at, r.gate IS NOT NULL OR r.origin IS 'delay',
        r.cancel_at IS NOT NULL))
    FROM picked p CROSS JOIN run r ON r.id = p.id CROSS JOIN body b ON b.id = r.body;
END;

-- Attempts end, each under its own fence.
-- Item: run, fence, outcome, state, reason, delay, result, error.
-- Answer: (place, verdict) of all that were not applied.
CREATE TEMP TRIGGER settle INSTEAD OF INSERT ON call WHEN NEW.kind = 'settle' BEGIN
    DELETE FROM settling;

    -- What was asked to stop and would go on has stopped now; the attempt that saw to it did not end it by itself.
    INSERT INTO settling (id, n, fence, outcome, state, reason, delay, result, error, gate, origin, by_attempt)
    SELECT r.id, i.n, r.fence, i.v ->> 2,
           iif(r.cancel_at IS NOT NULL AND i.v ->> 3 IN ('scheduled', 'queued'), 'cancelled', i.v ->> 3),
           i.v ->> 4, i.v ->> 5, i.v ->> 6, i.v ->> 7, r.gate, r.origin,
           r.cancel_at IS NULL OR i.v ->> 3 NOT IN ('scheduled', 'queued')
    FROM (WITH item AS MATERIALIZED (SELECT key AS n, value AS v FROM json_each(NEW.batch)) SELECT n, v FROM item) AS i
    CROSS JOIN run r ON r.id = i.v ->> 0
    WHERE r.fence = i.v ->> 1 AND +r.state = 'running'
    ON CONFLICT DO NOTHING;

    INSERT INTO attempt (run_id, fence, number, outcome, reason, error, session, started_at, ended_at)
    SELECT r.id, r.fence, r.attempt, s.outcome, s.reason, s.error, r.session, r.started_at, NEW.now
    FROM settling s CROSS JOIN run r ON r.id = s.id
    WHERE s.outcome <> 'success';

    INSERT INTO history (id, state, tenant, queue, rev, priority, attempt, lost, fence, by_attempt, session, body, due,
                         created_at, started_at, finished_at, cancel_at, job_id, job_version, scheduled_at, origin, target,
                         replay_of, reason, result, error)
    SELECT r.id, s.state, r.tenant, r.queue, r.rev + 1, r.priority, r.attempt - (s.outcome = 'released'),
           r.lost + (s.outcome = 'lost'), r.fence, s.by_attempt, r.session, r.body, r.due, r.created_at, r.started_at,
           NEW.now, r.cancel_at, r.job_id, r.job_version, r.scheduled_at, r.origin, r.target, r.replay_of,
           iif(s.by_attempt, s.reason, 'cancelled'), iif(s.by_attempt, s.result, NULL),
           iif(s.by_attempt, s.error, NULL)
    FROM settling s CROSS JOIN run r ON r.id = s.id
    WHERE s.state NOT IN ('scheduled', 'queued');

    INSERT INTO waiting (id, state, shard, tenant, queue, lane, rev, priority, attempt, lost, late, fence, body, timeout,
                         due, created_at, started_at, start_by, deadline, gate, job_id, job_version, scheduled_at, origin,
                         target, replay_of)
    SELECT r.id, 'scheduled', r.shard, r.tenant, r.queue, r.lane, r.rev + 1, r.priority,
           r.attempt - (s.outcome = 'released'), r.lost + (s.outcome = 'lost'), r.late, r.fence, r.body, r.timeout,
           NEW.now + s.delay, r.created_at, r.started_at, r.start_by, r.deadline, r.gate, r.job_id, r.job_version,
           r.scheduled_at, r.origin, r.target, r.replay_of
    FROM settling s CROSS JOIN run r ON r.id = s.id
    WHERE s.state = 'scheduled';

    DELETE FROM run WHERE id IN (SELECT s.id FROM settling s WHERE s.state <> 'queued');

    -- A release keeps its rank; whatever else goes on at once queues behind what is eligible now.
    UPDATE run SET state = 'queued', rev = rev + 1, session = NULL, claim = NULL, attempt_until = NULL,
                   attempt = attempt - (s.outcome = 'released'), lost = lost + (s.outcome = 'lost'),
                   rank = iif(s.outcome = 'released', rank, NEW.now + priority * 1000000000 + 60000000)
    FROM settling s WHERE s.state = 'queued' AND run.id = s.id;

    INSERT INTO happened (kind, run)
    SELECT CASE WHEN s.state NOT IN ('scheduled', 'queued') THEN 'run.' || s.state
                WHEN s.outcome IN ('released', 'lost') THEN 'run.' || s.outcome
                ELSE 'run.retried' END, s.id
    FROM settling s WHERE EXISTS (SELECT 1 FROM outbox_cursor) ORDER BY s.n;

    UPDATE schedule SET next_fire = NEW.now + delay, awaits = NULL, rev = rev + 1
    WHERE job_id IN (SELECT h.job_id FROM settling s CROSS JOIN history h ON h.id = s.id WHERE s.origin = 'delay')
      AND awaits IN (SELECT s.id FROM settling s WHERE s.state NOT IN ('scheduled', 'queued'))
      AND next_fire IS NULL AND delay IS NOT NULL AND active = 1;

    INSERT INTO free_gate (key, holder, now)
    SELECT s.gate, s.id, NEW.now FROM settling s
    WHERE s.gate IS NOT NULL AND s.state NOT IN ('scheduled', 'queued') ORDER BY s.n;

    INSERT INTO tell (now) VALUES (NEW.now);

    INSERT OR REPLACE INTO reply (number, body)
    SELECT NEW.number, json_group_array(json_array(i.n, iif(
               EXISTS (SELECT 1 FROM settling s WHERE s.id = i.id AND s.fence = i.fence)
               OR EXISTS (SELECT 1 FROM attempt a WHERE a.run_id = i.id AND a.fence = i.fence)
               OR EXISTS (SELECT 1 FROM history h WHERE h.id = i.id AND h.fence = i.fence AND h.by_attempt),
               'already applied', 'fenced')))
    FROM (SELECT key AS n, value ->> 0 AS id, value ->> 1 AS fence FROM json_each(NEW.batch)) AS i
    WHERE (SELECT count(*) FROM settling) < NEW.size
      AND i.n IS NOT (SELECT s.n FROM settling s WHERE s.id = i.id);
END;
