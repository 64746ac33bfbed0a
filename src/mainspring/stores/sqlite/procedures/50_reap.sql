-- Procedures of the reaper and of housekeeping.

-- Marks sessions whose lease has expired as dead. Argument: the limit. Answer: the running runs of dead sessions.
CREATE TEMP TRIGGER expire_sessions INSTEAD OF INSERT ON call WHEN NEW.procedure = 'expire_sessions' BEGIN
    INSERT INTO outbox (at, kind, tenant, runs)
    SELECT NEW.now, 'worker.lost', '', json_group_array(printf('%032x', session.id)) FROM session
    WHERE live = 1 AND lease_until <= NEW.now AND session.kind = 'worker' AND EXISTS (SELECT 1 FROM outbox_cursor)
    HAVING count(*) > 0;
    UPDATE session SET live = 0 WHERE live = 1 AND lease_until <= NEW.now;

    DELETE FROM picked;
    INSERT INTO picked (id)
    SELECT r.id FROM session CROSS JOIN run r INDEXED BY run_held ON r.session = session.id AND r.state = 'running'
    WHERE session.live = 0 LIMIT NEW.argument;

    INSERT OR REPLACE INTO reply (number, body)
    SELECT NEW.number, json_group_array(json_array(
        r.id, r.fence, b.task, b.payload, b.policy, r.queue, r.tenant, r.priority, r.attempt, r.lost, r.due,
        r.started_at, r.attempt_until, r.deadline, r.job_id, r.scheduled_at,
        r.key_lock IS NOT NULL OR r.limits IS NOT NULL OR r.origin IS 'delay', r.cancel_at IS NOT NULL))
    FROM picked CROSS JOIN run r ON r.id = picked.id CROSS JOIN body b ON b.id = r.body;
END;

-- Ends runs that missed their latest start (skipped) or their deadline (failed), and runs for a worker that has left
-- (skipped). Argument: the limit. Batch: the fingerprint of the failed runs. Answer: how many runs ended.
CREATE TEMP TRIGGER expire INSTEAD OF INSERT ON call WHEN NEW.procedure = 'expire' BEGIN
    DELETE FROM picked;
    INSERT INTO picked (id)
    SELECT id FROM (
        SELECT id FROM (SELECT r.id AS id FROM run r INDEXED BY run_start_by
                        WHERE r.start_by < NEW.now AND r.attempt = 0 AND r.state = 'queued' LIMIT NEW.argument)
        UNION
        SELECT id FROM (SELECT r.id AS id FROM run r INDEXED BY run_deadline
                        WHERE r.deadline <= NEW.now AND r.state = 'queued' LIMIT NEW.argument)
        UNION
        SELECT id FROM (SELECT w.id AS id FROM waiting w INDEXED BY waiting_start_by
                        WHERE w.start_by < NEW.now AND w.attempt = 0 LIMIT NEW.argument)
        UNION
        SELECT id FROM (SELECT w.id AS id FROM waiting w INDEXED BY waiting_deadline
                        WHERE w.deadline <= NEW.now LIMIT NEW.argument)
        UNION
        SELECT id FROM (SELECT r.id AS id FROM run r INDEXED BY run_target
                        WHERE r.target IS NOT NULL AND r.state = 'queued' AND NOT EXISTS (
                            SELECT 1 FROM session WHERE session.id = CAST(r.target AS INTEGER) AND session.live = 1)
                        LIMIT NEW.argument)
        UNION
        SELECT id FROM (SELECT w.id AS id FROM waiting w INDEXED BY waiting_target
                        WHERE w.target IS NOT NULL AND NOT EXISTS (
                            SELECT 1 FROM session WHERE session.id = CAST(w.target AS INTEGER) AND session.live = 1)
                        LIMIT NEW.argument)
    ) LIMIT NEW.argument;

    INSERT INTO end_run (id, state, reason, fingerprint, now)
    SELECT a.id, iif(a.left OR a.start_missed, 'skipped', 'failed'),
           iif(a.left, 'its worker left', iif(a.start_missed, 'expired', 'deadline')),
           iif(a.left OR a.start_missed, NULL, NEW.batch), NEW.now
    FROM (
        SELECT p.n AS n, p.id AS id, p.state AS state, p.start_missed AS start_missed,
               p.target IS NOT NULL AND NOT EXISTS (
                   SELECT 1 FROM session WHERE session.id = CAST(p.target AS INTEGER) AND session.live = 1) AS left
        FROM (
            SELECT picked.n AS n, r.id AS id, r.state AS state, r.target AS target,
                   coalesce(r.attempt = 0 AND r.start_by < NEW.now, 0) AS start_missed
            FROM picked CROSS JOIN run r ON r.id = picked.id
            UNION ALL
            SELECT picked.n, w.id, w.state, w.target, coalesce(w.attempt = 0 AND w.start_by < NEW.now, 0)
            FROM picked CROSS JOIN waiting w ON w.id = picked.id
        ) AS p
    ) AS a ORDER BY a.state <> 'blocked', a.n;
    INSERT INTO admit_runs (now) VALUES (NEW.now);
    INSERT INTO write_events (now) VALUES (NEW.now);

    INSERT OR REPLACE INTO reply (number, body) SELECT NEW.number, count(*) FROM picked;
END;

-- Frees what waits for nothing: runs behind a key lock without a holder, fixed delays without a run, limiters with a
-- wrong count, and ended parents without a note. The query of the same name found the candidates; they are checked
-- again here.
-- Batch: key locks, jobs, limiters, parents. Answer: how many were found.
CREATE TEMP TRIGGER sweep INSTEAD OF INSERT ON call WHEN NEW.procedure = 'sweep' BEGIN
    DELETE FROM picked;
    INSERT INTO picked (id)
    SELECT w.key_lock FROM json_each(NEW.batch, '$[0]') AS k CROSS JOIN waiting w INDEXED BY waiting_blocked
    ON w.key_lock = k.value AND w.state = 'blocked'
    WHERE NOT EXISTS (
        SELECT 1 FROM key_lock g WHERE g.key = k.value
          AND (EXISTS (SELECT 1 FROM run r WHERE r.id = g.holder)
               OR EXISTS (SELECT 1 FROM waiting h WHERE h.id = g.holder AND h.state <> 'blocked')))
    GROUP BY w.key_lock;
    INSERT INTO picked (id)
    SELECT s.job_id FROM json_each(NEW.batch, '$[1]') AS k CROSS JOIN schedule s ON s.job_id = k.value
    WHERE s.active = 1 AND s.delay IS NOT NULL AND s.next_fire IS NULL
      AND NOT EXISTS (SELECT 1 FROM run r WHERE r.id = s.awaits)
      AND NOT EXISTS (SELECT 1 FROM waiting w WHERE w.id = s.awaits);
    INSERT INTO sweep_limits (numbers, now) VALUES (NEW.batch -> 2, NEW.now);
    INSERT INTO sweep_parents (ids, now) VALUES (NEW.batch -> 3, NEW.now);

    UPDATE schedule SET next_fire = NEW.now + delay, awaits = NULL, rev = rev + 1
    WHERE job_id IN (SELECT id FROM picked);
    -- Release the key locks of vanished holders, also if no run waits.
    INSERT INTO release_key_lock (key, holder, now)
    SELECT k.value, coalesce((SELECT g.holder FROM key_lock g WHERE g.key = k.value), ''), NEW.now
    FROM json_each(NEW.batch, '$[0]') AS k
    WHERE NOT EXISTS (
        SELECT 1 FROM key_lock g WHERE g.key = k.value
          AND (EXISTS (SELECT 1 FROM run r WHERE r.id = g.holder)
               OR EXISTS (SELECT 1 FROM waiting h WHERE h.id = g.holder AND h.state <> 'blocked')));
    INSERT INTO admit_runs (now) VALUES (NEW.now);
    INSERT INTO write_events (now) VALUES (NEW.now);

    INSERT OR REPLACE INTO reply (number, body) SELECT NEW.number, count(*) FROM picked;
END;

-- Adds ended runs to the metrics, up to a time and at most 5,000 runs a call. There is one writer, so the order of
-- history is the order in which the runs ended.
-- unattempted: runs that ended without an attempt, until they are reported.
CREATE TEMP TABLE unattempted (task TEXT, state TEXT, runs INTEGER, PRIMARY KEY (task, state)) WITHOUT ROWID;
CREATE TEMP TRIGGER roll_up_all_metrics INSTEAD OF INSERT ON roll_up_metrics BEGIN
    DELETE FROM picked;
    INSERT INTO picked (n)
    SELECT coalesce(
        (SELECT h.seq - 1 FROM history h
         WHERE h.seq > meta.history_counted AND h.seq <= meta.history_counted + 5000 AND h.finished_at >= NEW.until
         ORDER BY h.seq LIMIT 1),
        min(meta.history_counted + 5000, coalesce((SELECT max(h.seq) FROM history h), 0)))
    FROM meta;
    INSERT INTO roll_up_usage (until) VALUES (NEW.until);
    INSERT INTO unattempted (task, state, runs)
    SELECT b.task, h.state, count(*)
    FROM meta CROSS JOIN history h ON h.seq > meta.history_counted AND h.seq <= (SELECT n FROM picked)
    CROSS JOIN body b ON b.id = h.body
    -- The + prevents SQLite from building an index of all of history in each call.
    WHERE +h.ran = 0 GROUP BY 1, 2
    ON CONFLICT DO UPDATE SET runs = runs + excluded.runs;

    INSERT INTO minute (at, queue, tenant, succeeded, failed, cancelled, skipped, late_total, late_most, took_total,
                        took_most, started)
    SELECT h.finished_at / :MINUTE * :MINUTE, h.queue, h.tenant, sum(h.state = 'succeeded'), sum(h.state = 'failed'),
           sum(h.state = 'cancelled'), sum(h.state = 'skipped'), sum(iif(h.ran, h.started_at - h.due, 0)),
           max(iif(h.ran, h.started_at - h.due, 0)), sum(iif(h.ran, h.finished_at - h.started_at, 0)),
           max(iif(h.ran, h.finished_at - h.started_at, 0)), sum(h.ran)
    FROM meta CROSS JOIN history h ON h.seq > meta.history_counted AND h.seq <= (SELECT n FROM picked)
    WHERE true
    GROUP BY 1, 2, 3
    ON CONFLICT DO UPDATE SET
        succeeded = succeeded + excluded.succeeded, failed = failed + excluded.failed,
        cancelled = cancelled + excluded.cancelled, skipped = skipped + excluded.skipped,
        late_total = late_total + excluded.late_total, late_most = max(late_most, excluded.late_most),
        took_total = took_total + excluded.took_total, took_most = max(took_most, excluded.took_most),
        started = started + excluded.started;
    -- Buckets: two for each power of two, from 100 us.
    INSERT INTO timing (at, queue, tenant, bucket, late)
    SELECT h.finished_at / :TIMINGS_STEP * :TIMINGS_STEP, h.queue, h.tenant, CAST(2 * log2(max(h.started_at - h.due, 100) / 100.0) AS INTEGER),
           count(*)
    FROM meta CROSS JOIN history h ON h.seq > meta.history_counted AND h.seq <= (SELECT n FROM picked)
    WHERE h.ran GROUP BY 1, 2, 3, 4 ON CONFLICT DO UPDATE SET late = late + excluded.late;
    INSERT INTO timing (at, queue, tenant, bucket, took)
    SELECT h.finished_at / :TIMINGS_STEP * :TIMINGS_STEP, h.queue, h.tenant,
           CAST(2 * log2(max(h.finished_at - h.started_at, 100) / 100.0) AS INTEGER), count(*)
    FROM meta CROSS JOIN history h ON h.seq > meta.history_counted AND h.seq <= (SELECT n FROM picked)
    WHERE h.ran GROUP BY 1, 2, 3, 4 ON CONFLICT DO UPDATE SET took = took + excluded.took;
    UPDATE meta SET history_counted = (SELECT n FROM picked) WHERE history_counted < (SELECT n FROM picked);

    INSERT INTO minute (at, queue, tenant, retried)
    SELECT a.ended_at / :MINUTE * :MINUTE, a.queue, a.tenant, count(*) FROM (
        SELECT e.ended_at AS ended_at, coalesce(r.queue, w.queue, h.queue) AS queue,
               coalesce(r.tenant, w.tenant, h.tenant) AS tenant
        FROM attempt e INDEXED BY attempt_uncounted LEFT JOIN run r ON r.id = e.run_id
        LEFT JOIN waiting w ON w.id = e.run_id LEFT JOIN history h ON h.id = e.run_id
        WHERE e.counted = 0 AND e.ended_at < NEW.until AND e.outcome IN ('error', 'timeout', 'lost')
    ) AS a
    WHERE a.queue IS NOT NULL
    GROUP BY 1, 2, 3
    ON CONFLICT DO UPDATE SET retried = retried + excluded.retried;
    UPDATE attempt SET counted = 1 WHERE (run_id, fence) IN (
        SELECT e.run_id, e.fence FROM attempt e INDEXED BY attempt_uncounted
        WHERE e.counted = 0 AND e.ended_at < NEW.until);
END;

-- Deletes the picked runs of history with all their rows. The payload of a tick belongs to its job; if the job was
-- purged, the payload is deleted with its last run.
CREATE TEMP TRIGGER delete_each_picked_run INSTEAD OF INSERT ON delete_picked_runs BEGIN
    DELETE FROM label WHERE (tenant, label, id) IN (
        SELECT h.tenant, t.value, h.id FROM picked CROSS JOIN history h ON h.seq = picked.n
        CROSS JOIN body b ON b.id = h.body CROSS JOIN json_each(b.about, '$.tags') AS t);
    DELETE FROM body WHERE id IN (
        SELECT h.body FROM picked CROSS JOIN history h ON h.seq = picked.n
        WHERE h.origin IS NULL OR (
            NOT EXISTS (SELECT 1 FROM job_version v WHERE v.job_id = h.job_id AND v.version = h.job_version)
            AND NOT EXISTS (SELECT 1 FROM run r WHERE r.job_id = h.job_id AND r.body = h.body)
            AND NOT EXISTS (SELECT 1 FROM waiting w WHERE w.job_id = h.job_id AND w.body = h.body)
            AND NOT EXISTS (SELECT 1 FROM history o INDEXED BY history_job
                            WHERE o.job_id = h.job_id AND o.body = h.body AND o.seq NOT IN (SELECT n FROM picked))));
    DELETE FROM attempt WHERE run_id IN (SELECT id FROM picked);
    DELETE FROM progress WHERE run_id IN (SELECT id FROM picked);
    DELETE FROM checkpoint WHERE run_id IN (SELECT id FROM picked);
    DELETE FROM log WHERE run_id IN (SELECT id FROM picked);
    DELETE FROM edge WHERE child IN (SELECT id FROM picked);
    DELETE FROM dependent WHERE run_id IN (SELECT id FROM picked);
    DELETE FROM unique_run WHERE run_id IN (SELECT id FROM picked);
    DELETE FROM history WHERE seq IN (SELECT n FROM picked);
    -- The next run that ends gets the number after the last row.
    UPDATE meta SET history_counted = coalesce((SELECT max(h.seq) FROM history h), 0)
    WHERE history_counted > coalesce((SELECT max(h.seq) FROM history h), 0);
END;

-- Runs every few seconds. Batch: how long idempotency keys and events are kept, and how far the metrics lag.
-- Answer: more (there is more to roll up), unattempted.
CREATE TEMP TRIGGER tidy INSTEAD OF INSERT ON call WHEN NEW.procedure = 'tidy' BEGIN
    INSERT INTO roll_up_metrics (until) VALUES (NEW.now - (NEW.batch ->> 2));
    DELETE FROM outbox_cursor WHERE until < NEW.now;
    INSERT INTO drop_old_events (until) VALUES (NEW.now - (NEW.batch ->> 1));
    DELETE FROM idempotency WHERE at <= NEW.now - (NEW.batch ->> 0);
    DELETE FROM unique_run WHERE until <= NEW.now;
    DELETE FROM log_day WHERE day < NEW.now / :DAY;
    -- Resume jobs whose pause has ended.
    DELETE FROM picked;
    INSERT INTO picked (id)
    SELECT s.job_id FROM schedule s INDEXED BY schedule_resumes CROSS JOIN job j ON j.id = s.job_id
    WHERE s.resume_at <= NEW.now AND s.active = 1 AND j.state = 'paused' ORDER BY s.resume_at LIMIT 1000;
    UPDATE job SET state = 'scheduled', updated_at = NEW.now WHERE id IN (SELECT id FROM picked);
    UPDATE schedule
    SET paused_until = max(coalesce(paused_until, resume_at), resume_at), resume_at = NULL, rev = rev + 1
    WHERE job_id IN (SELECT id FROM picked);
    -- After a day, an ended pause no longer matters: a run that still waits is late by any count.
    DELETE FROM pause WHERE until <= NEW.now - :DAY;
    -- Workers without runs for them alone claim like all others again.
    UPDATE session
    SET claim_groups = (SELECT json_group_array(l.value) FROM json_each(session.claim_groups) AS l WHERE l.value <> -session.id)
    WHERE claim_groups IS NOT NULL AND NOT EXISTS (SELECT 1 FROM run r WHERE r.target = CAST(session.id AS TEXT))
      AND NOT EXISTS (SELECT 1 FROM waiting w WHERE w.target = CAST(session.id AS TEXT));
    UPDATE session SET claim_groups = NULL WHERE claim_groups = '[0]';
    INSERT OR REPLACE INTO reply (number, body)
    SELECT NEW.number, json_object(
        'more', json(iif(EXISTS (
            SELECT 1 FROM meta CROSS JOIN history h ON h.seq = meta.history_counted + 1
            WHERE h.finished_at < NEW.now - (NEW.batch ->> 2)), 'true', 'false')),
        'unattempted', json((
            SELECT json_group_array(json_object('task', task, 'state', state, 'runs', runs)) FROM unattempted)));
    DELETE FROM unattempted;
END;

-- Stores the sampled load of a minute, unless there is one already. Batch: the minute, the load, and before when
-- samples are deleted.
CREATE TEMP TRIGGER sample_load INSTEAD OF INSERT ON call WHEN NEW.procedure = 'sample_load' BEGIN
    INSERT INTO load (at, tenant, queue, queued, running, lag)
    SELECT NEW.batch ->> 0, l.value ->> 0, l.value ->> 1, l.value ->> 2, l.value ->> 3, l.value ->> 4
    FROM json_each(NEW.batch, '$[1]') AS l
    WHERE NOT EXISTS (SELECT 1 FROM load WHERE load.at = (NEW.batch ->> 0));
    DELETE FROM load WHERE at < (NEW.batch ->> 2);
    INSERT OR REPLACE INTO reply (number, body) VALUES (NEW.number, '');
END;

-- Deletes rows whose retention is over: runs with their payloads and attempts, ticks, metrics and sums.
-- Argument: the limit. Batch: the cut-off times of succeeded runs, unsuccessful runs, the classes short, long and
-- audit, the ledger, minute, usage and timing. A tick is kept at least as long as its run. Answer: how many rows were
-- deleted.
CREATE TEMP TRIGGER prune INSTEAD OF INSERT ON call WHEN NEW.procedure = 'prune' BEGIN
    INSERT INTO roll_up_metrics (until) VALUES (NEW.now);
    DELETE FROM picked;
    INSERT INTO picked (n, id)
    SELECT h.seq, h.id FROM history h INDEXED BY history_standard_succeeded
    WHERE h.state = 'succeeded' AND h.retention IS NULL AND h.finished_at < (NEW.batch ->> 0)
    ORDER BY h.finished_at LIMIT NEW.argument;
    INSERT INTO picked (n, id)
    SELECT h.seq, h.id FROM history h INDEXED BY history_standard_unsuccessful
    WHERE h.state <> 'succeeded' AND h.retention IS NULL AND h.finished_at < (NEW.batch ->> 1)
    ORDER BY h.finished_at LIMIT max(0, NEW.argument - (SELECT count(*) FROM picked));
    INSERT INTO picked (n, id)
    SELECT h.seq, h.id FROM (VALUES ('short', NEW.batch ->> 2), ('long', NEW.batch ->> 3), ('audit', NEW.batch ->> 4)) AS c
    CROSS JOIN history h INDEXED BY history_class
    ON h.retention = c.column1 AND h.finished_at < c.column2
    LIMIT max(0, NEW.argument - (SELECT count(*) FROM picked));

    INSERT INTO delete_picked_runs (now) VALUES (NEW.now);
    DELETE FROM minute WHERE at < (NEW.batch ->> 6);
    DELETE FROM usage WHERE day < (NEW.batch ->> 7);
    DELETE FROM timing WHERE at < (NEW.batch ->> 8);

    INSERT OR REPLACE INTO reply (number, body) SELECT NEW.number, count(*) FROM picked;

    DELETE FROM ledger WHERE (job_id, scheduled_at) IN (
        SELECT l.job_id, l.scheduled_at FROM ledger l INDEXED BY ledger_age
        WHERE l.scheduled_at < (NEW.batch ->> 5)
          AND NOT EXISTS (SELECT 1 FROM history h WHERE h.id = l.run_id AND h.retention IN ('long', 'audit'))
        ORDER BY l.scheduled_at LIMIT max(0, NEW.argument - (SELECT r.body + 0 FROM reply r WHERE r.number = NEW.number)));
    UPDATE reply SET body = body + changes() WHERE number = NEW.number;

    -- Dead sessions are kept for a day, and as long as they have running runs.
    DELETE FROM session WHERE live = 0 AND lease_until < NEW.now - :DAY
      AND NOT EXISTS (SELECT 1 FROM run r INDEXED BY run_held WHERE r.session = session.id AND r.state = 'running');
END;
