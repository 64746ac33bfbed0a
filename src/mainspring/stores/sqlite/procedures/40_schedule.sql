-- Procedures of schedulers.

-- Admits the scheduled runs of owned shards that are due, oldest first, and checks the limiters whose time has come.
-- Session: the owner. Argument: the limit. Batch: shards. Answer: now, runs, queues, more, schedules_due.
CREATE TEMP TRIGGER stage INSTEAD OF INSERT ON call WHEN NEW.procedure = 'stage' BEGIN
    DELETE FROM picked;
    -- Merges the lines of the shards, so that it reads no more rows than it picks, however many are due. (The + lets
    -- SQLite use the index for both columns of the comparison.)
    INSERT INTO picked (id)
    SELECT id FROM (
        WITH RECURSIVE mine (shard) AS MATERIALIZED (
            SELECT shard.id FROM shard
            WHERE shard.id IN (SELECT value FROM json_each(NEW.batch)) AND shard.owner = NEW.session AND EXISTS (
                SELECT 1 FROM session WHERE id = NEW.session AND live = 1 AND lease_until > NEW.now)
        ), line (shard, due, id) AS (
            SELECT w.shard, w.due, w.id FROM mine CROSS JOIN waiting w ON w.id = (
                SELECT f.id FROM waiting f INDEXED BY waiting_due
                WHERE f.state = 'scheduled' AND f.shard = mine.shard AND f.due <= NEW.now
                ORDER BY f.due, f.id LIMIT 1)
            UNION ALL
            SELECT w.shard, w.due, w.id FROM line CROSS JOIN waiting w ON w.id = (
                SELECT f.id FROM waiting f INDEXED BY waiting_due
                WHERE f.state = 'scheduled' AND f.shard = line.shard AND f.due <= NEW.now
                  AND (f.due, f.id) > (line.due, +line.id)
                ORDER BY f.due, f.id LIMIT 1)
            ORDER BY 2, 3
            LIMIT NEW.argument + 1
        )
        SELECT id FROM line
    );

    INSERT OR REPLACE INTO reply (number, body) SELECT NEW.number, count(*) > NEW.argument FROM picked;
    DELETE FROM picked WHERE n > NEW.argument;

    INSERT INTO admit_picked (now) VALUES (NEW.now);
    DELETE FROM admitted;
    INSERT INTO admit_runs (now) VALUES (NEW.now);
    SELECT check_due_limiters(NEW.now)
    WHERE EXISTS (SELECT 1 FROM limiter l INDEXED BY limiter_wake WHERE l.wake_at <= NEW.now);
    INSERT INTO picked (id) SELECT id FROM admitted;
    INSERT INTO write_events (now) VALUES (NEW.now);

    UPDATE reply SET body = json_object(
        'now', NEW.now,
        'runs', (SELECT count(*) FROM picked),
        'queues', json((SELECT json_group_array(DISTINCT r.queue ORDER BY r.queue)
                        FROM picked CROSS JOIN run r ON r.id = picked.id)),
        'more', json(iif(body + 0 OR EXISTS (
            SELECT 1 FROM limiter l INDEXED BY limiter_wake WHERE l.wake_at <= NEW.now), 'true', 'false')),
        'schedules_due', json(iif(EXISTS (
            SELECT 1 FROM shard CROSS JOIN schedule s INDEXED BY schedule_due ON s.shard = shard.id
            WHERE shard.id IN (SELECT value FROM json_each(NEW.batch)) AND shard.owner = NEW.session AND s.active = 1
              AND s.next_fire <= NEW.now
              AND EXISTS (SELECT 1 FROM session WHERE id = NEW.session AND live = 1 AND lease_until > NEW.now)),
            'true', 'false')))
    WHERE number = NEW.number;
END;

-- Records ticks, creates their runs and moves the schedules.
-- Session: the owner. Item: job, rev, next_fire, finished, delay, overlap, queue, priority, timeout, key lock,
-- start_within, deadline, ticks, requires, limits, next tick, whether it has several data centers. Tick: scheduled_at,
-- decision, reason, run, due, late, ticks, last_at, happens_at; for a data center also its name, requires, key lock,
-- policy.
-- Answer: index, runs and queues of the fires that were applied.
CREATE TEMP TRIGGER fire INSTEAD OF INSERT ON call WHEN NEW.procedure = 'fire' BEGIN
    DELETE FROM fired_job;
    DELETE FROM created_run;
    INSERT INTO label_set (requires)
    SELECT DISTINCT i.value ->> 13 FROM json_each(NEW.batch) AS i WHERE i.value ->> 13 IS NOT NULL
    ON CONFLICT DO NOTHING;
    INSERT INTO label_set (requires)
    SELECT DISTINCT t.value ->> 10 FROM json_each(NEW.batch) AS i CROSS JOIN json_each(i.value, '$[12]') AS t
    WHERE i.value ->> 16 AND t.value ->> 10 IS NOT NULL
    ON CONFLICT DO NOTHING;
    INSERT INTO fire_job (n, job_id, rev, next_fire, finished, delay, overlap, queue, claim_group, priority, timeout, key_lock,
                          start_within, deadline, ticks, limits, tick, now, session)
    SELECT i.key, i.value ->> 0, i.value ->> 1, i.value ->> 2, i.value ->> 3, i.value ->> 4, i.value ->> 5,
           i.value ->> 6, coalesce((SELECT l.id FROM label_set l WHERE l.requires = i.value ->> 13), 0), i.value ->> 7, i.value ->> 8, i.value ->> 9, i.value ->> 10, i.value ->> 11,
           i.value -> 12, i.value ->> 14, i.value ->> 15, NEW.now, NEW.session
    FROM json_each(NEW.batch) AS i;
    INSERT INTO admit_runs (now) VALUES (NEW.now);
    INSERT INTO write_events (now) VALUES (NEW.now);

    INSERT OR REPLACE INTO reply (number, body)
    SELECT NEW.number, json_group_array(json_object(
        'index', fired_job.n,
        'runs', (SELECT count(*) FROM created_run WHERE created_run.n = fired_job.n),
        'queues', json((SELECT json_group_array(DISTINCT created_run.queue ORDER BY created_run.queue)
                        FROM created_run CROSS JOIN run r ON r.id = created_run.id
                        WHERE created_run.n = fired_job.n AND r.state = 'queued'))))
    FROM fired_job;
END;

-- Applies a fire completely or not at all, and never before its time. The revision shows whether the schedule has
-- changed.
CREATE TEMP TRIGGER fire_one_job INSTEAD OF INSERT ON fire_job
WHEN EXISTS (
    SELECT 1 FROM schedule s CROSS JOIN shard ON shard.id = s.shard CROSS JOIN session ON session.id = shard.owner
    WHERE s.job_id = NEW.job_id AND s.active = 1 AND s.rev = NEW.rev AND shard.owner = NEW.session AND session.live = 1
      AND session.lease_until > NEW.now
) AND NOT EXISTS (SELECT 1 FROM json_each(NEW.ticks) AS t WHERE t.value ->> 8 > NEW.now) BEGIN
    INSERT INTO fired_job (n) VALUES (NEW.n);
    INSERT INTO fire_tick (n, job_id, overlap, queue, claim_group, priority, timeout, key_lock, start_within, deadline, origin,
                           scheduled_at, decision, reason, run_id, due, late, ticks, last_at, limits, now, target, policy)
    SELECT NEW.n, NEW.job_id, NEW.overlap, NEW.queue,
           iif(t.value ->> 9 IS NULL, NEW.claim_group, (SELECT l.id FROM label_set l WHERE l.requires = t.value ->> 10)), NEW.priority,
           NEW.timeout, iif(t.value ->> 9 IS NULL, NEW.key_lock, t.value ->> 11), NEW.start_within,
           NEW.deadline, iif(NEW.delay IS NULL, 'tick', 'delay'), t.value ->> 0, t.value ->> 1, t.value ->> 2,
           t.value ->> 3, t.value ->> 4, t.value ->> 5, t.value ->> 6, t.value ->> 7, NEW.limits, NEW.now,
           coalesce(t.value ->> 9, ''), t.value ->> 12
    FROM json_each(NEW.ticks) AS t;

    -- A fixed delay counts from the end of its only run; without a run (overlap rule), it counts from now.
    UPDATE schedule SET next_fire = NEW.next_fire, tick = NEW.tick, awaits = NULL, rev = rev + 1, active = NOT NEW.finished,
                        tick_no = tick_no + json_array_length(NEW.ticks)
    WHERE job_id = NEW.job_id;
    UPDATE schedule SET awaits = (SELECT created_run.id FROM created_run WHERE created_run.n = NEW.n)
    WHERE job_id = NEW.job_id AND NEW.delay IS NOT NULL AND NEW.next_fire IS NULL AND active = 1;
    UPDATE schedule SET awaits = NULL, next_fire = NEW.now + NEW.delay
    WHERE job_id = NEW.job_id AND NEW.delay IS NOT NULL AND next_fire IS NULL AND active = 1
      AND NOT EXISTS (SELECT 1 FROM run r WHERE r.id = awaits)
      AND NOT EXISTS (SELECT 1 FROM waiting w WHERE w.id = awaits);
    UPDATE job SET state = 'finished', updated_at = NEW.now WHERE id = NEW.job_id AND NEW.finished;
END;

CREATE TEMP TRIGGER fire_one_tick INSTEAD OF INSERT ON fire_tick
WHEN NOT EXISTS (
    SELECT 1 FROM ledger l
    WHERE l.job_id = NEW.job_id AND l.scheduled_at = NEW.scheduled_at AND l.target = NEW.target) BEGIN
    -- The overlap rule applies to each data center separately.
    DELETE FROM other_target;
    INSERT OR IGNORE INTO other_target (id)
    SELECT l.run_id FROM (
        SELECT w.id AS id, w.scheduled_at AS scheduled_at FROM waiting w WHERE w.job_id = NEW.job_id
        UNION ALL SELECT r.id, r.scheduled_at FROM run r WHERE r.job_id = NEW.job_id
    ) AS a CROSS JOIN ledger l ON l.job_id = NEW.job_id AND l.scheduled_at = a.scheduled_at AND l.run_id = a.id
    WHERE NEW.target <> '' AND l.target NOT IN ('', NEW.target);

    INSERT INTO cancel_run (id, now)
    SELECT a.id, NEW.now FROM (
        SELECT w.id AS id, w.state AS state FROM waiting w WHERE w.job_id = NEW.job_id
        UNION ALL SELECT r.id, r.state FROM run r WHERE r.job_id = NEW.job_id
    ) AS a
    WHERE NEW.overlap = 'cancel' AND NEW.decision = 'run' AND a.id NOT IN (SELECT e.id FROM other_target e)
    ORDER BY a.state <> 'blocked';

    -- A run of an older version with another rule or key is in another line, so this run could not wait for it.
    INSERT INTO ledger (job_id, scheduled_at, decision, reason, run_id, job_version, epoch, ticks, last_at, target)
    SELECT NEW.job_id, NEW.scheduled_at, iif(o.overlaps, 'skipped', NEW.decision),
           iif(o.overlaps, 'overlap', NEW.reason), iif(o.overlaps, NULL, NEW.run_id), j.version, shard.epoch,
           NEW.ticks, NEW.last_at, NEW.target
    FROM job j CROSS JOIN schedule s ON s.job_id = j.id CROSS JOIN shard ON shard.id = s.shard CROSS JOIN (
        SELECT NEW.decision = 'run' AND CASE NEW.overlap
            WHEN 'allow' THEN 0
            WHEN 'skip' THEN EXISTS (SELECT 1 FROM run r WHERE r.job_id = NEW.job_id
                                       AND r.id NOT IN (SELECT e.id FROM other_target e))
                          OR EXISTS (SELECT 1 FROM waiting w WHERE w.job_id = NEW.job_id
                                       AND w.id NOT IN (SELECT e.id FROM other_target e))
            ELSE EXISTS (SELECT 1 FROM run r WHERE r.job_id = NEW.job_id AND r.key_lock IS NOT NEW.key_lock
                           AND r.id NOT IN (SELECT e.id FROM other_target e))
              OR EXISTS (SELECT 1 FROM waiting w WHERE w.job_id = NEW.job_id AND w.key_lock IS NOT NEW.key_lock
                           AND w.id NOT IN (SELECT e.id FROM other_target e))
              OR (NEW.overlap = 'queue' AND (
                  EXISTS (SELECT 1 FROM waiting w WHERE w.job_id = NEW.job_id AND w.state = 'blocked'
                            AND w.id NOT IN (SELECT e.id FROM other_target e))
                  OR (SELECT count(*) FROM run r WHERE r.job_id = NEW.job_id)
                   + (SELECT count(*) FROM waiting w WHERE w.job_id = NEW.job_id)
                   - (SELECT count(*) FROM other_target) > 1))
            END AS overlaps) AS o
    WHERE j.id = NEW.job_id;

    INSERT INTO version_target (job_id, version, target, body)
    SELECT j.id, j.version, NEW.target, (SELECT coalesce(max(b.id), 0) FROM body b) + 1 FROM job j
    WHERE NEW.target <> '' AND NEW.decision = 'run' AND j.id = NEW.job_id
    ON CONFLICT DO NOTHING;
    INSERT INTO body (id, task, policy, payload)
    SELECT p.body, b.task, NEW.policy, b.payload
    FROM job j CROSS JOIN version_target p ON p.job_id = j.id AND p.version = j.version AND p.target = NEW.target
    CROSS JOIN job_version v ON v.job_id = j.id AND v.version = j.version CROSS JOIN body b ON b.id = v.body
    WHERE NEW.target <> '' AND NEW.decision = 'run' AND j.id = NEW.job_id
    ON CONFLICT DO NOTHING;

    DELETE FROM new_run;
    INSERT INTO new_run (id, n, shard, tenant, queue, claim_group, priority, body, timeout, due, start_within, deadline, key_lock,
                       late, job_id, job_version, scheduled_at, origin, limits)
    SELECT NEW.run_id, 0, s.shard, j.tenant, NEW.queue, NEW.claim_group, NEW.priority,
           iif(NEW.target = '', v.body, (SELECT p.body FROM version_target p WHERE p.job_id = j.id
                                         AND p.version = j.version AND p.target = NEW.target)), NEW.timeout, NEW.due,
           NEW.start_within, NEW.deadline, NEW.key_lock, NEW.late, j.id, j.version, NEW.scheduled_at, NEW.origin,
           NEW.limits
    FROM ledger l CROSS JOIN job j ON j.id = l.job_id CROSS JOIN schedule s ON s.job_id = j.id
    CROSS JOIN job_version v ON v.job_id = j.id AND v.version = j.version
    WHERE l.job_id = NEW.job_id AND l.scheduled_at = NEW.scheduled_at AND l.target = NEW.target AND l.decision = 'run'
      AND NOT EXISTS (SELECT 1 FROM run r WHERE r.id = NEW.run_id)
      AND NOT EXISTS (SELECT 1 FROM waiting w WHERE w.id = NEW.run_id)
      AND NOT EXISTS (SELECT 1 FROM history h WHERE h.id = NEW.run_id);

    INSERT INTO insert_new_runs (now) VALUES (NEW.now);
    INSERT OR IGNORE INTO kept_position (id)
    SELECT w.id FROM new_run CROSS JOIN waiting w ON w.id = new_run.id
    WHERE new_run.limits IS NOT NULL AND w.state = 'limited';
    INSERT INTO created_run (n, id, queue) SELECT NEW.n, new_run.id, new_run.queue FROM new_run;
END;

-- Pauses, resumes or cancels jobs. Batch: state, ids, resume time, reason. Answer: id and state of the jobs that exist.
CREATE TEMP TRIGGER set_jobs INSTEAD OF INSERT ON call WHEN NEW.procedure = 'set_jobs' BEGIN
    INSERT INTO set_job_state (id, state, resume_at, why, now)
    SELECT i.value, NEW.batch ->> 0, NEW.batch ->> 2, NEW.batch ->> 3, NEW.now FROM json_each(NEW.batch, '$[1]') AS i;
    INSERT INTO admit_runs (now) VALUES (NEW.now);
    INSERT INTO write_events (now) VALUES (NEW.now);

    INSERT OR REPLACE INTO reply (number, body)
    SELECT NEW.number, json_group_array(json_object('id', j.id, 'state', j.state))
    FROM json_each(NEW.batch, '$[1]') AS i CROSS JOIN job j ON j.id = i.value;
END;

CREATE TEMP TRIGGER set_one_job INSTEAD OF INSERT ON set_job_state
WHEN (SELECT j.state IN ('scheduled', 'paused') AND (j.state <> NEW.state OR (
          NEW.state = 'paused' AND s.resume_at IS NOT NEW.resume_at))
      FROM job j JOIN schedule s ON s.job_id = j.id WHERE j.id = NEW.id) BEGIN
    -- The schedule is closed first, so that no run is created after the cancellation.
    UPDATE schedule SET rev = rev + 1, active = NEW.state <> 'cancelled',
                        next_fire = iif(NEW.state = 'cancelled', NULL, next_fire),
                        tick = iif(NEW.state = 'cancelled', NULL, tick),
                        awaits = iif(NEW.state = 'cancelled', NULL, awaits),
                        resume_at = iif(NEW.state = 'paused', NEW.resume_at, NULL),
                        pause_why = iif(NEW.state = 'paused', NEW.why, pause_why),
                        -- A pause ends now or at its end time, whichever came first; its ticks stay paused.
                        paused_until = iif((SELECT j.state FROM job j WHERE j.id = NEW.id) = 'paused',
                                           max(coalesce(paused_until, 0), min(coalesce(resume_at, NEW.now), NEW.now)),
                                           paused_until)
    WHERE job_id = NEW.id;
    UPDATE job SET state = NEW.state, updated_at = NEW.now WHERE id = NEW.id;
    INSERT INTO cancel_run (id, now)
    SELECT a.id, NEW.now FROM (
        SELECT w.id AS id, w.state AS state FROM waiting w WHERE w.job_id = NEW.id
        UNION ALL SELECT r.id, r.state FROM run r WHERE r.job_id = NEW.id
    ) AS a
    WHERE NEW.state = 'cancelled'
    ORDER BY a.state <> 'blocked';
END;
