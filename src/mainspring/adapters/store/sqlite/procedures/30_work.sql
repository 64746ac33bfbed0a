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
      AND EXISTS (SELECT 1 FROM session WHERE id = NEW.who AND dead = 0);

    UPDATE run SET state = 'queued', attempt = attempt - 1, rev = rev + 1, session = NULL, claim = NULL,
                   attempt_until = NULL
    WHERE id IN (SELECT id FROM picked);

    INSERT INTO happened (kind, run)
    SELECT 'run.released', r.id FROM picked CROSS JOIN run r ON r.id = picked.id
    WHERE r.cancel_at IS NULL AND EXISTS (SELECT 1 FROM outbox_cursor);
    INSERT INTO end_run (id, state, reason, now)
    SELECT r.id, 'cancelled', 'cancelled', NEW.now FROM picked CROSS JOIN run r ON r.id = picked.id
    WHERE r.cancel_at IS NOT NULL;
    INSERT INTO tell (now) VALUES (NEW.now);

    INSERT OR REPLACE INTO reply (number, body)
    SELECT NEW.number, json_array(
        NEW.now,
        (SELECT count(*) FROM session WHERE id = NEW.who AND dead = 0),
        json((SELECT json_group_array(r.id) FROM run r INDEXED BY run_held
              WHERE r.state = 'running' AND r.session = NEW.who AND r.cancel_at IS NOT NULL
                AND r.id IN (SELECT value FROM json_each(NEW.batch, '$[1]'))
                AND EXISTS (SELECT 1 FROM session WHERE id = NEW.who AND dead = 0))),
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
    SELECT i.value ->> 0, i.value ->> 1, NEW.now FROM json_each(NEW.batch) AS i
    WHERE EXISTS (SELECT 1 FROM session WHERE id = NEW.who AND dead = 0 AND lease_until >= NEW.now);

    UPDATE meta SET fence_seq = fence_seq + 1 WHERE EXISTS (SELECT 1 FROM picked);

    UPDATE run SET state = 'running', attempt = attempt + 1, rev = rev + 1,
                   fence = (SELECT store_epoch << 40 | fence_seq FROM meta), session = NEW.who, claim = NEW.size,
                   started_at = NEW.now, attempt_until = min(NEW.now + timeout, coalesce(deadline, NEW.now + timeout))
    WHERE id IN (SELECT id FROM picked);

    INSERT INTO outbox (at, kind, runs)
    SELECT NEW.now, 'run.started', (SELECT json_group_array(id ORDER BY n) FROM picked)
    WHERE EXISTS (SELECT 1 FROM outbox_cursor) AND EXISTS (SELECT 1 FROM picked);

    INSERT OR REPLACE INTO reply (number, body)
    SELECT NEW.number, json_group_array(json_array(
        r.id, r.fence, b.task, b.payload, b.policy, r.queue, r.tenant, r.priority, r.attempt, r.lost, r.due,
        r.started_at, r.attempt_until, r.deadline, r.job_id, r.scheduled_at,
        r.gate IS NOT NULL OR r.origin IS 'delay', r.cancel_at IS NOT NULL))
    FROM picked CROSS JOIN run r ON r.id = picked.id CROSS JOIN body b ON b.id = r.body;
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
    SELECT r.id, r.fence, r.attempt, settling.outcome, settling.reason, settling.error, r.session, r.started_at, NEW.now
    FROM settling CROSS JOIN run r ON r.id = settling.id
    WHERE settling.outcome <> 'success';

    INSERT INTO history (id, state, tenant, queue, rev, priority, attempt, lost, fence, by_attempt, session, body, due,
                         created_at, started_at, finished_at, cancel_at, job_id, job_version, scheduled_at, origin,
                         target, replay_of, reason, result, error)
    SELECT r.id, settling.state, r.tenant, r.queue, r.rev + 1, r.priority, r.attempt - (settling.outcome = 'released'),
           r.lost + (settling.outcome = 'lost'), r.fence, settling.by_attempt, r.session, r.body, r.due, r.created_at,
           r.started_at, NEW.now, r.cancel_at, r.job_id, r.job_version, r.scheduled_at, r.origin, r.target, r.replay_of,
           iif(settling.by_attempt, settling.reason, 'cancelled'), iif(settling.by_attempt, settling.result, NULL),
           iif(settling.by_attempt, settling.error, NULL)
    FROM settling CROSS JOIN run r ON r.id = settling.id
    WHERE settling.state NOT IN ('scheduled', 'queued');

    INSERT INTO waiting (id, state, shard, tenant, queue, lane, rev, priority, attempt, lost, late, fence, body,
                         timeout, due, created_at, started_at, start_by, deadline, gate, job_id, job_version,
                         scheduled_at, origin, target, replay_of)
    SELECT r.id, 'scheduled', r.shard, r.tenant, r.queue, r.lane, r.rev + 1, r.priority,
           r.attempt - (settling.outcome = 'released'), r.lost + (settling.outcome = 'lost'), r.late, r.fence, r.body,
           r.timeout, NEW.now + settling.delay, r.created_at, r.started_at, r.start_by, r.deadline, r.gate, r.job_id,
           r.job_version, r.scheduled_at, r.origin, r.target, r.replay_of
    FROM settling CROSS JOIN run r ON r.id = settling.id
    WHERE settling.state = 'scheduled';

    DELETE FROM run WHERE id IN (SELECT settling.id FROM settling WHERE settling.state <> 'queued');

    -- A release keeps its rank; whatever else goes on at once queues behind what is eligible now.
    UPDATE run SET state = 'queued', rev = rev + 1, session = NULL, claim = NULL, attempt_until = NULL,
                   attempt = attempt - (settling.outcome = 'released'), lost = lost + (settling.outcome = 'lost'),
                   rank = iif(settling.outcome = 'released', rank, NEW.now + priority * 1000000000 + 60000000)
    FROM settling WHERE settling.state = 'queued' AND run.id = settling.id;

    INSERT INTO happened (kind, run)
    SELECT CASE WHEN settling.state NOT IN ('scheduled', 'queued') THEN 'run.' || settling.state
                WHEN settling.outcome IN ('released', 'lost') THEN 'run.' || settling.outcome
                ELSE 'run.retried' END, settling.id
    FROM settling WHERE EXISTS (SELECT 1 FROM outbox_cursor) ORDER BY settling.n;

    UPDATE schedule SET next_fire = NEW.now + delay, awaits = NULL, rev = rev + 1
    WHERE job_id IN (SELECT h.job_id FROM settling CROSS JOIN history h ON h.id = settling.id
                     WHERE settling.origin = 'delay')
      AND awaits IN (SELECT settling.id FROM settling WHERE settling.state NOT IN ('scheduled', 'queued'))
      AND next_fire IS NULL AND delay IS NOT NULL AND active = 1;

    INSERT INTO free_gate (key, holder, now)
    SELECT settling.gate, settling.id, NEW.now FROM settling
    WHERE settling.gate IS NOT NULL AND settling.state NOT IN ('scheduled', 'queued') ORDER BY settling.n;

    INSERT INTO tell (now) VALUES (NEW.now);

    INSERT OR REPLACE INTO reply (number, body)
    SELECT NEW.number, json_group_array(json_array(i.n, iif(
               EXISTS (SELECT 1 FROM settling WHERE settling.id = i.id AND settling.fence = i.fence)
               OR EXISTS (SELECT 1 FROM attempt a WHERE a.run_id = i.id AND a.fence = i.fence)
               OR EXISTS (SELECT 1 FROM history h WHERE h.id = i.id AND h.fence = i.fence AND h.by_attempt),
               'already applied', 'fenced')))
    FROM (SELECT key AS n, value ->> 0 AS id, value ->> 1 AS fence FROM json_each(NEW.batch)) AS i
    WHERE (SELECT count(*) FROM settling) < NEW.size
      AND i.n IS NOT (SELECT settling.n FROM settling WHERE settling.id = i.id);
END;
