-- Transitions of runs that several procedures share.

-- Inserts new runs: queued if due and their key lock is free, blocked if it is held, scheduled if their time is ahead.
-- Runs with limits are limited until they are admitted. Runs with parents wait for these first, and their time limits
-- do not count yet. Runs of one ordering key are ordered by (due, id), also within a batch.
CREATE TEMP TRIGGER insert_each_new_run INSTEAD OF INSERT ON insert_new_runs BEGIN
    INSERT INTO insert_waiting_runs (now)
    SELECT NEW.now WHERE EXISTS (
        SELECT 1 FROM new_run WHERE due > NEW.now OR key_lock IS NOT NULL OR limits IS NOT NULL OR rule IS NOT NULL);

    INSERT INTO run (id, state, shard, tenant, queue, claim_group, rank, priority, attempt, lost, late, fence, body, timeout,
                     due, created_at, start_by, deadline, key_lock, job_id, job_version, scheduled_at, origin, target,
                     replay_of, queued_at)
    SELECT id, 'queued', shard, tenant, queue, claim_group, NEW.now + priority * :HEAD_START + late * :LATE_PENALTY, priority, 0, 0,
           late, 0, body, timeout, due, NEW.now, due + start_within, due + deadline, key_lock, job_id, job_version,
           scheduled_at, origin, target, replay_of, NEW.now
    FROM new_run
    WHERE due <= NEW.now AND limits IS NULL AND rule IS NULL
      AND (key_lock IS NULL OR id = (SELECT g.holder FROM key_lock g WHERE g.key = new_run.key_lock));

    INSERT INTO new_event (kind, tenant, run)
    SELECT 'run.submitted', tenant, id FROM new_run WHERE EXISTS (SELECT 1 FROM outbox_cursor) ORDER BY n;
END;

-- Takes key locks, and inserts the runs that are not queued.
CREATE TEMP TRIGGER insert_each_waiting_run INSTEAD OF INSERT ON insert_waiting_runs BEGIN
    INSERT INTO key_lock (key, holder)
    SELECT new_run.key_lock, new_run.id FROM new_run
    WHERE new_run.key_lock IS NOT NULL AND new_run.due <= NEW.now AND new_run.rule IS NULL AND NOT EXISTS (
        SELECT 1 FROM waiting w INDEXED BY waiting_blocked WHERE w.state = 'blocked' AND w.key_lock = new_run.key_lock)
    ORDER BY new_run.due, new_run.id
    ON CONFLICT DO NOTHING;

    INSERT INTO waiting (id, state, shard, tenant, queue, claim_group, priority, attempt, lost, late, fence, body, timeout,
                         due, created_at, start_by, deadline, key_lock, job_id, job_version, scheduled_at, origin, target,
                         replay_of, limits)
    SELECT id, CASE WHEN rule IS NOT NULL THEN 'after' WHEN due > NEW.now THEN 'scheduled'
                    WHEN key_lock IS NULL OR id = (SELECT g.holder FROM key_lock g WHERE g.key = new_run.key_lock) THEN 'limited'
                    ELSE 'blocked' END, shard, tenant, queue, claim_group, priority, 0, 0, late, 0, body,
           timeout, due, NEW.now, iif(rule IS NULL, due + start_within, NULL), iif(rule IS NULL, due + deadline, NULL),
           key_lock, job_id, job_version, scheduled_at, origin, target, replay_of, limits
    FROM new_run
    WHERE due > NEW.now OR limits IS NOT NULL OR rule IS NOT NULL
       OR (key_lock IS NOT NULL AND id IS NOT (SELECT g.holder FROM key_lock g WHERE g.key = new_run.key_lock));
END;

-- Admits scheduled runs that are due: they are queued, or wait for their key lock, or for their limits. The queued ones
-- stay in picked.
CREATE TEMP TRIGGER admit_each_picked_run INSTEAD OF INSERT ON admit_picked BEGIN
    INSERT INTO key_lock (key, holder)
    SELECT w.key_lock, w.id FROM picked CROSS JOIN waiting w ON w.id = picked.id
    WHERE w.key_lock IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM waiting b INDEXED BY waiting_blocked WHERE b.state = 'blocked' AND b.key_lock = w.key_lock)
    ORDER BY picked.n
    ON CONFLICT DO NOTHING;
    UPDATE waiting SET state = iif(key_lock IS NULL OR id = (SELECT g.holder FROM key_lock g WHERE g.key = waiting.key_lock),
                                   'limited', 'blocked'), rev = rev + 1
    WHERE id IN (SELECT id FROM picked) AND (
        limits IS NOT NULL
        OR (key_lock IS NOT NULL AND id IS NOT (SELECT g.holder FROM key_lock g WHERE g.key = waiting.key_lock)));
    DELETE FROM picked WHERE (SELECT w.state FROM waiting w WHERE w.id = picked.id) <> 'scheduled';

    INSERT INTO run (id, state, shard, tenant, queue, claim_group, rank, rev, priority, attempt, lost, late, fence, body,
                     timeout, due, created_at, started_at, start_by, deadline, key_lock, job_id, job_version, scheduled_at,
                     origin, target, replay_of, session, queued_at)
    SELECT w.id, 'queued', w.shard, w.tenant, w.queue, w.claim_group,
           NEW.now + w.priority * :HEAD_START + (w.late OR w.attempt > 0) * :LATE_PENALTY, w.rev + 1, w.priority, w.attempt,
           w.lost, w.late, w.fence, w.body, w.timeout, w.due, w.created_at, w.started_at, w.start_by, w.deadline,
           w.key_lock, w.job_id, w.job_version, w.scheduled_at, w.origin, w.target, w.replay_of, w.session, NEW.now
    FROM picked CROSS JOIN waiting w ON w.id = picked.id;
    DELETE FROM waiting WHERE id IN (SELECT id FROM picked);

    INSERT INTO new_event (kind, tenant, run)
    SELECT 'run.queued', r.tenant, r.id FROM picked CROSS JOIN run r ON r.id = picked.id
    WHERE EXISTS (SELECT 1 FROM outbox_cursor) AND r.id NOT IN (SELECT kept_position.id FROM kept_position) ORDER BY picked.n;
END;

-- A label set is required for the first time: add it to the sessions that have all of its labels.
CREATE TEMP TRIGGER add_label_set_to_sessions AFTER INSERT ON main.label_set BEGIN
    UPDATE session SET claim_groups = json_insert(coalesce(claim_groups, '[0]'), '$[#]', NEW.id)
    WHERE live = 1 AND labels <> '[]' AND NOT EXISTS (
        SELECT 1 FROM json_each(NEW.requires) AS q
        WHERE q.value NOT IN (SELECT l.value FROM json_each(session.labels) AS l));
END;

-- Releases a key lock. The next run in line takes it, and is queued or waits for its limits.
CREATE TEMP TRIGGER release_one_key_lock INSTEAD OF INSERT ON release_key_lock BEGIN
    DELETE FROM key_lock WHERE key = NEW.key AND holder = NEW.holder;

    INSERT INTO key_lock (key, holder)
    SELECT NEW.key, w.id FROM waiting w INDEXED BY waiting_blocked
    WHERE w.state = 'blocked' AND w.key_lock = NEW.key AND NOT EXISTS (SELECT 1 FROM key_lock g WHERE g.key = NEW.key)
    ORDER BY w.due, w.id LIMIT 1;
    INSERT OR IGNORE INTO was_blocked (id)
    SELECT w.id FROM key_lock g CROSS JOIN waiting w ON w.id = g.holder
    WHERE g.key = NEW.key AND w.state = 'blocked' AND w.limits IS NOT NULL;
    UPDATE waiting SET state = 'limited', rev = rev + 1
    WHERE id = (SELECT g.holder FROM key_lock g WHERE g.key = NEW.key) AND state = 'blocked' AND limits IS NOT NULL;

    INSERT INTO run (id, state, shard, tenant, queue, claim_group, rank, rev, priority, attempt, lost, late, fence, body,
                     timeout, due, created_at, started_at, start_by, deadline, key_lock, job_id, job_version, scheduled_at,
                     origin, target, replay_of, session, queued_at, ready_at)
    SELECT w.id, 'queued', w.shard, w.tenant, w.queue, w.claim_group,
           NEW.now + w.priority * :HEAD_START + (w.late OR w.attempt > 0) * :LATE_PENALTY, w.rev + 1, w.priority, w.attempt,
           w.lost, w.late, w.fence, w.body, w.timeout, w.due, w.created_at, w.started_at, w.start_by, w.deadline,
           w.key_lock, w.job_id, w.job_version, w.scheduled_at, w.origin, w.target, w.replay_of, w.session, NEW.now,
           NEW.now
    FROM key_lock g CROSS JOIN waiting w ON w.id = g.holder
    WHERE g.key = NEW.key AND w.state = 'blocked';

    INSERT INTO new_event (kind, tenant, run)
    SELECT 'run.queued', w.tenant, w.id FROM key_lock g CROSS JOIN waiting w ON w.id = g.holder
    WHERE g.key = NEW.key AND w.state = 'blocked' AND EXISTS (SELECT 1 FROM outbox_cursor);

    DELETE FROM waiting WHERE id = (SELECT g.holder FROM key_lock g WHERE g.key = NEW.key) AND state = 'blocked';
END;

-- Ends a queued or waiting run without an attempt.
CREATE TEMP TRIGGER end_one_run INSTEAD OF INSERT ON end_run BEGIN
    INSERT INTO history (id, state, tenant, queue, rev, priority, attempt, lost, fence, by_attempt, body, due,
                         created_at, started_at, finished_at, cancel_at, job_id, job_version, scheduled_at, origin,
                         target, replay_of, reason, session, executor, start_by, deadline, fingerprint, dead,
                         retention)
    SELECT r.id, NEW.state, r.tenant, r.queue, r.rev + 1, r.priority, r.attempt, r.lost, r.fence, 0, r.body, r.due,
           r.created_at, r.started_at, NEW.now, iif(NEW.state = 'cancelled', coalesce(r.cancel_at, NEW.now), NULL),
           r.job_id, r.job_version, r.scheduled_at, r.origin, r.target, r.replay_of, NEW.reason, r.session,
           (SELECT session.name FROM session WHERE session.id = r.session), r.start_by, r.deadline, NEW.fingerprint,
           NEW.state = 'failed', nullif(coalesce((SELECT b.policy ->> '$.retention' FROM body b WHERE b.id = r.body),
                           (SELECT t.quotas ->> '$.retention' FROM tenant t WHERE t.name = r.tenant)), 'standard')
    FROM run r WHERE r.id = NEW.id AND r.state = 'queued'
    UNION ALL
    SELECT w.id, NEW.state, w.tenant, w.queue, w.rev + 1, w.priority, w.attempt, w.lost, w.fence, 0, w.body, w.due,
           w.created_at, w.started_at, NEW.now, iif(NEW.state = 'cancelled', NEW.now, NULL), w.job_id, w.job_version,
           w.scheduled_at, w.origin, w.target, w.replay_of, NEW.reason, w.session,
           (SELECT session.name FROM session WHERE session.id = w.session), w.start_by, w.deadline, NEW.fingerprint,
           NEW.state = 'failed', nullif(coalesce((SELECT b.policy ->> '$.retention' FROM body b WHERE b.id = w.body),
                           (SELECT t.quotas ->> '$.retention' FROM tenant t WHERE t.name = w.tenant)), 'standard')
    FROM waiting w WHERE w.id = NEW.id;

    INSERT INTO new_event (kind, tenant, run)
    SELECT 'run.' || NEW.state, h.tenant, h.id FROM history h
    WHERE h.id = NEW.id AND EXISTS (SELECT 1 FROM outbox_cursor);

    UPDATE schedule SET next_fire = NEW.now + delay, awaits = NULL, rev = rev + 1
    WHERE job_id = (SELECT h.job_id FROM history h WHERE h.id = NEW.id) AND awaits = NEW.id AND next_fire IS NULL
      AND delay IS NOT NULL AND active = 1;

    INSERT INTO limit_release (limits, ending)
    SELECT r.limits, 'other' FROM run r WHERE r.id = NEW.id AND r.state = 'queued' AND r.limits IS NOT NULL;
    INSERT OR IGNORE INTO changed_limiter (number)
    SELECT w.waits FROM waiting w WHERE w.id = NEW.id AND w.state = 'limited' AND w.waits IS NOT NULL;
    INSERT OR IGNORE INTO ended_parent (run_id, state, at)
    SELECT NEW.id, NEW.state, NEW.now
    WHERE EXISTS (SELECT 1 FROM edge e INDEXED BY edge_undecided WHERE e.parent = NEW.id AND e.state IS NULL);

    -- A blocked run holds no key lock, so its end does not disturb the line.
    INSERT INTO release_key_lock (key, holder, now)
    SELECT g.key, g.holder, NEW.now
    FROM (SELECT r.key_lock FROM run r WHERE r.id = NEW.id
          UNION ALL SELECT w.key_lock FROM waiting w WHERE w.id = NEW.id) AS its
    CROSS JOIN key_lock g ON g.key = its.key_lock
    WHERE g.holder = NEW.id;

    DELETE FROM run WHERE id = NEW.id AND state = 'queued';
    DELETE FROM waiting WHERE id = NEW.id;
END;

-- Requests the cancellation of a running run; cancels a run that has not started at once.
CREATE TEMP TRIGGER cancel_one_run INSTEAD OF INSERT ON cancel_run BEGIN
    INSERT INTO new_event (kind, tenant, run)
    SELECT 'run.cancel_requested', r.tenant, r.id FROM run r
    WHERE r.id = NEW.id AND r.state = 'running' AND r.cancel_at IS NULL AND EXISTS (SELECT 1 FROM outbox_cursor);

    UPDATE run SET cancel_at = NEW.now, rev = rev + 1 WHERE id = NEW.id AND state = 'running' AND cancel_at IS NULL;

    INSERT INTO end_run (id, state, reason, now)
    SELECT NEW.id, 'cancelled', 'cancelled', NEW.now
    WHERE EXISTS (SELECT 1 FROM run r WHERE r.id = NEW.id AND r.state = 'queued')
       OR EXISTS (SELECT 1 FROM waiting w WHERE w.id = NEW.id);
END;

-- Writes the events of the request to the outbox at its end, one row for each kind and tenant.
CREATE TEMP TRIGGER write_new_events INSTEAD OF INSERT ON write_events WHEN EXISTS (SELECT 1 FROM new_event) BEGIN
    INSERT INTO outbox (at, kind, tenant, runs)
    SELECT NEW.now, kind, tenant, json_group_array(run ORDER BY n) FROM new_event GROUP BY kind, tenant ORDER BY min(n);
    DELETE FROM new_event;
END;
