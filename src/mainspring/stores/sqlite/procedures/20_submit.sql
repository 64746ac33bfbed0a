-- Inserts runs; a known id is left alone.
-- Item: id, shard, tenant, queue, priority, task, policy, payload, at, delay, start_within, deadline, key lock,
-- replay_of, timeout.
-- Answer: (index, state, new) of all runs that are not both new and queued.
CREATE TEMP TRIGGER submit INSTEAD OF INSERT ON call WHEN NEW.procedure = 'submit' BEGIN
    DELETE FROM new_run;

    INSERT INTO new_run (id, n, shard, tenant, queue, priority, task, policy, payload, body, timeout, due, start_within,
                       deadline, key_lock, replay_of)
    SELECT i.v ->> 0, i.n, i.v ->> 1, i.v ->> 2, i.v ->> 3, i.v ->> 4, i.v ->> 5, i.v ->> 6, i.v ->> 7,
           (SELECT coalesce(max(b.id), 0) FROM body b) + 1 + i.n, i.v ->> 14,
           coalesce(i.v ->> 8, NEW.now + (i.v ->> 9)), i.v ->> 10, i.v ->> 11, i.v ->> 12, i.v ->> 13
    FROM (WITH item AS MATERIALIZED (SELECT key AS n, value AS v FROM jsonb_each(NEW.batch)) SELECT n, v FROM item) AS i
    WHERE NOT EXISTS (SELECT 1 FROM run r WHERE r.id = i.v ->> 0)
      AND NOT EXISTS (SELECT 1 FROM waiting w WHERE w.id = i.v ->> 0)
      AND NOT EXISTS (SELECT 1 FROM history h WHERE h.id = i.v ->> 0)
    ON CONFLICT DO NOTHING;

    INSERT INTO body (id, task, policy, payload) SELECT body, task, policy, payload FROM new_run;

    INSERT INTO insert_new_runs (now) VALUES (NEW.now);
    INSERT INTO write_events (now) VALUES (NEW.now);

    INSERT OR REPLACE INTO reply (number, body)
    SELECT NEW.number, json_group_array(json_array(n, state, new)) FROM (
        SELECT new_run.n AS n, w.state AS state, 1 AS new
        FROM new_run CROSS JOIN waiting w ON w.id = new_run.id
        WHERE new_run.due > NEW.now OR new_run.key_lock IS NOT NULL
        UNION ALL
        SELECT i.n, coalesce(
                   (SELECT iif(r.state = 'running' AND r.cancel_at IS NOT NULL, 'cancelling', r.state)
                    FROM run r WHERE r.id = i.id),
                   (SELECT iif(w.state = 'scheduled', w.state, 'blocked') FROM waiting w WHERE w.id = i.id),
                   (SELECT h.state FROM history h WHERE h.id = i.id)), 0
        FROM (SELECT key AS n, value ->> 0 AS id FROM json_each(NEW.batch)) AS i
        WHERE (SELECT count(*) FROM new_run) < NEW.argument
          AND i.n IS NOT (SELECT new_run.n FROM new_run WHERE new_run.id = i.id)
    );
END;

-- Inserts runs with fields that the basic submit does not take: a name, tags, a replay, a job, an idempotency key, an
-- author, required labels, a target, limits or parents.
-- Item: as above, then about, job, version, scheduled_at, late, key, fingerprint, author, requires, target, limits,
-- rule.
-- Argument: how long idempotency keys are kept.
-- Answer: (id, state, new, conflict) of each run, in order. conflict: its key was used for something else.
CREATE TEMP TRIGGER submit_full INSTEAD OF INSERT ON call WHEN NEW.procedure = 'submit_full' BEGIN
    DELETE FROM new_run;
    DELETE FROM known_key;

    -- Delete expired keys first, so that all others count as used.
    DELETE FROM idempotency WHERE (tenant, key) IN (
        SELECT i.value ->> 2, i.value ->> 20 FROM json_each(NEW.batch) AS i) AND at <= NEW.now - NEW.argument;
    INSERT INTO label_set (requires)
    SELECT DISTINCT i.value ->> 23 FROM json_each(NEW.batch) AS i WHERE i.value ->> 23 IS NOT NULL
    ON CONFLICT DO NOTHING;
    INSERT INTO submit_one_run (n, id, shard, tenant, queue, priority, task, policy, payload, body, timeout, due,
                            start_within, deadline, key_lock, replay_of, about, job_id, job_version, scheduled_at, late,
                            key, fingerprint, author, claim_group, target, limits, rule, now)
    SELECT i.n, i.v ->> 0, i.v ->> 1, i.v ->> 2, i.v ->> 3, i.v ->> 4, i.v ->> 5, i.v ->> 6, i.v ->> 7,
           (SELECT coalesce(max(b.id), 0) FROM body b) + 1 + i.n, i.v ->> 14,
           coalesce(i.v ->> 8, NEW.now + (i.v ->> 9)), i.v ->> 10, i.v ->> 11, i.v ->> 12, i.v ->> 13, i.v ->> 15,
           i.v ->> 16, i.v ->> 17, i.v ->> 18, i.v ->> 19, i.v ->> 20, i.v ->> 21, i.v ->> 22,
           coalesce(-(i.v ->> 24), (SELECT l.id FROM label_set l WHERE l.requires = i.v ->> 23), 0), i.v ->> 24, i.v ->> 25,
           i.v ->> 26, NEW.now
    FROM (WITH item AS MATERIALIZED (SELECT key AS n, value AS v FROM jsonb_each(NEW.batch)) SELECT n, v FROM item) AS i
    ORDER BY i.n;

    INSERT INTO body (id, task, policy, payload, about) SELECT body, task, policy, payload, about FROM new_run;
    INSERT INTO label (tenant, label, id)
    SELECT new_run.tenant, t.value, new_run.id FROM new_run CROSS JOIN json_each(new_run.about, '$.tags') AS t;

    INSERT INTO dependent (run_id, rule, start_within, deadline)
    SELECT id, rule, start_within, deadline FROM new_run WHERE rule IS NOT NULL;

    INSERT INTO insert_new_runs (now) VALUES (NEW.now);
    INSERT OR IGNORE INTO kept_position (id)
    SELECT w.id FROM new_run CROSS JOIN waiting w ON w.id = new_run.id
    WHERE new_run.limits IS NOT NULL AND w.state = 'limited';
    INSERT INTO admit_runs (now) VALUES (NEW.now);
    INSERT INTO write_events (now) VALUES (NEW.now);
    UPDATE session SET claim_groups = json_insert(coalesce(claim_groups, '[0]'), '$[#]', -id)
    WHERE id IN (SELECT CAST(new_run.target AS INTEGER) FROM new_run WHERE new_run.target IS NOT NULL) AND live = 1
      AND -id NOT IN (SELECT l.value FROM json_each(coalesce(session.claim_groups, '[0]')) AS l);

    -- A replayed run is no longer a dead letter.
    UPDATE history SET dead = 0 WHERE seq IN (
        SELECT h.seq FROM new_run CROSS JOIN history h ON h.id = new_run.replay_of
        WHERE h.tenant = new_run.tenant AND h.dead <> 0);
    INSERT INTO audit (at, tenant, author, action, target, count)
    SELECT NEW.now, a.tenant, a.author, 'jobs.submit', a.id, a.count FROM (
        SELECT new_run.tenant AS tenant, new_run.author AS author, new_run.id AS id, count(*) AS count, min(new_run.n) AS first
        FROM new_run WHERE new_run.author <> '' GROUP BY new_run.author, new_run.tenant
    ) AS a ORDER BY a.first;

    INSERT OR REPLACE INTO reply (number, body)
    SELECT NEW.number, json_group_array(json_array(a.id, coalesce(
               (SELECT iif(r.state = 'running' AND r.cancel_at IS NOT NULL, 'cancelling', r.state)
                FROM run r WHERE r.id = a.id),
               (SELECT iif(w.state = 'scheduled', w.state, 'blocked') FROM waiting w WHERE w.id = a.id),
               (SELECT h.state FROM history h WHERE h.id = a.id), 'scheduled'), a.new, a.conflict) ORDER BY a.n)
    FROM (
        SELECT i.key AS n, coalesce(known_key.made, i.value ->> 0) AS id,
               i.key IS (SELECT new_run.n FROM new_run WHERE new_run.id = i.value ->> 0) AS new,
               coalesce(known_key.conflict, 0) AS conflict
        FROM json_each(NEW.batch) AS i LEFT JOIN known_key ON known_key.n = i.key
    ) AS a;
END;

-- Leaves a known id alone. A known idempotency key, also of the same batch, is answered with the run or job that first
-- used it, if that still exists.
CREATE TEMP TRIGGER submit_each_run INSTEAD OF INSERT ON submit_one_run
WHEN NOT EXISTS (SELECT 1 FROM run r WHERE r.id = NEW.id) AND NOT EXISTS (SELECT 1 FROM waiting w WHERE w.id = NEW.id)
 AND NOT EXISTS (SELECT 1 FROM history h WHERE h.id = NEW.id) AND NOT EXISTS (SELECT 1 FROM new_run WHERE new_run.id = NEW.id)
BEGIN
    INSERT INTO known_key (n, made, conflict)
    SELECT NEW.n, u.made, u.fingerprint <> NEW.fingerprint OR EXISTS (SELECT 1 FROM job j WHERE j.id = u.made)
    FROM idempotency u
    WHERE u.tenant = NEW.tenant AND u.key = NEW.key AND (
        EXISTS (SELECT 1 FROM new_run WHERE new_run.id = u.made) OR EXISTS (SELECT 1 FROM run r WHERE r.id = u.made)
        OR EXISTS (SELECT 1 FROM waiting w WHERE w.id = u.made) OR EXISTS (SELECT 1 FROM history h WHERE h.id = u.made)
        OR EXISTS (SELECT 1 FROM job j WHERE j.id = u.made));

    INSERT INTO new_run (id, n, shard, tenant, queue, priority, task, policy, payload, body, timeout, due, start_within,
                       deadline, key_lock, replay_of, about, job_id, job_version, scheduled_at, late, author, claim_group,
                       target, limits, rule)
    SELECT NEW.id, NEW.n, NEW.shard, NEW.tenant, NEW.queue, NEW.priority, NEW.task, NEW.policy, NEW.payload, NEW.body,
           NEW.timeout, NEW.due, NEW.start_within, NEW.deadline, NEW.key_lock, NEW.replay_of, NEW.about, NEW.job_id,
           NEW.job_version, NEW.scheduled_at, NEW.late, NEW.author, NEW.claim_group, NEW.target, NEW.limits, NEW.rule
    WHERE NOT EXISTS (SELECT 1 FROM known_key WHERE known_key.n = NEW.n);

    INSERT OR REPLACE INTO idempotency (tenant, key, made, fingerprint, at)
    SELECT NEW.tenant, NEW.key, NEW.id, NEW.fingerprint, NEW.now
    WHERE NEW.key IS NOT NULL AND NOT EXISTS (SELECT 1 FROM known_key WHERE known_key.n = NEW.n);
END;

-- Ends runs whose outcome is known from elsewhere. Item: run, state, reason, result, error, fingerprint.
-- Answer: id and state of the runs that exist.
CREATE TEMP TRIGGER finish INSTEAD OF INSERT ON call WHEN NEW.procedure = 'finish' BEGIN
    -- A running run releases its limiters without a success or failure, and then ends like a queued one.
    INSERT INTO limit_release (limits, ending, started_at)
    SELECT r.limits, 'other', r.started_at FROM json_each(NEW.batch) AS i CROSS JOIN run r ON r.id = i.value ->> 0
    WHERE r.state = 'running' AND r.limits IS NOT NULL;
    UPDATE run SET state = 'queued', claim = NULL, attempt_until = NULL, limits = NULL
    WHERE id IN (SELECT i.value ->> 0 FROM json_each(NEW.batch) AS i) AND state = 'running';

    DELETE FROM completion;
    INSERT INTO completion (id, n, state, reason, result, error, fingerprint)
    SELECT i.value ->> 0, i.key, i.value ->> 1, i.value ->> 2, i.value ->> 3, i.value ->> 4, i.value ->> 5
    FROM json_each(NEW.batch) AS i
    WHERE EXISTS (SELECT 1 FROM run r WHERE r.id = i.value ->> 0)
       OR EXISTS (SELECT 1 FROM waiting w WHERE w.id = i.value ->> 0);
    -- Blocked runs first: otherwise the end of one run would queue the next one, only to end it.
    INSERT INTO end_run (id, state, reason, fingerprint, now)
    SELECT completion.id, completion.state, completion.reason, completion.fingerprint, NEW.now
    FROM completion LEFT JOIN waiting w ON w.id = completion.id
    ORDER BY w.state IS NOT 'blocked', completion.n;
    UPDATE history SET (result, error, started_at) = (
        SELECT completion.result, completion.error, NULL FROM completion WHERE completion.id = history.id)
    WHERE id IN (SELECT completion.id FROM completion);
    INSERT INTO admit_runs (now) VALUES (NEW.now);
    INSERT INTO write_events (now) VALUES (NEW.now);

    INSERT OR REPLACE INTO reply (number, body)
    SELECT NEW.number, json_group_array(json_object('id', h.id, 'state', h.state))
    FROM json_each(NEW.batch) AS i CROSS JOIN history h ON h.id = i.value ->> 0;
END;

-- Requests the cancellation of runs. Batch: their ids. Answer: id and state of the runs that exist.
CREATE TEMP TRIGGER cancel INSTEAD OF INSERT ON call WHEN NEW.procedure = 'cancel' BEGIN
    -- Blocked runs first: otherwise the end of one run would queue the next one, only to cancel it.
    INSERT INTO cancel_run (id, now)
    SELECT i.value, NEW.now FROM json_each(NEW.batch) AS i LEFT JOIN waiting w ON w.id = i.value
    ORDER BY w.state IS NOT 'blocked', i.key;
    INSERT INTO admit_runs (now) VALUES (NEW.now);
    INSERT INTO write_events (now) VALUES (NEW.now);

    INSERT OR REPLACE INTO reply (number, body)
    SELECT NEW.number, json_group_array(json_object('id', id, 'state', state)) FROM (
        SELECT i.value AS id, coalesce(
                   (SELECT iif(r.cancel_at IS NOT NULL, 'cancelling', r.state) FROM run r WHERE r.id = i.value),
                   (SELECT h.state FROM history h WHERE h.id = i.value)) AS state
        FROM json_each(NEW.batch) AS i
    ) WHERE state IS NOT NULL;
END;
