-- Procedures of workers.

-- Batch: name, kind, ttl, version, datacenter, queues, tasks, owner, serves, labels, priorities, slots.
-- Answer: the id of the session.
CREATE TEMP TRIGGER open_session INSTEAD OF INSERT ON call WHEN NEW.procedure = 'open_session' BEGIN
    INSERT INTO session (name, kind, version, datacenter, started_at, lease_until, lease, queues, tasks, owner, serves,
                         labels, priorities, slots, claim_groups)
    VALUES (NEW.batch ->> 0, NEW.batch ->> 1, NEW.batch ->> 3, NEW.batch ->> 4, NEW.now, NEW.now + (NEW.batch ->> 2),
            NEW.batch ->> 2, NEW.batch -> 5, NEW.batch -> 6, NEW.batch ->> 7, NEW.batch ->> 8, NEW.batch -> 9,
            NEW.batch -> 10, NEW.batch ->> 11, (SELECT json_insert(json_group_array(label_set.id), '$[#]', 0) FROM label_set
             WHERE NEW.batch -> 9 <> '[]' AND NOT EXISTS (
                 SELECT 1 FROM json_each(label_set.requires) AS q
                 WHERE q.value NOT IN (SELECT l.value FROM json_each(NEW.batch, '$[9]') AS l))
             HAVING count(*) > 0));
    INSERT OR REPLACE INTO reply (number, body) SELECT NEW.number, max(id) FROM session;
    INSERT INTO outbox (at, kind, tenant, runs)
    SELECT NEW.now, 'worker.joined', '', json_array(printf('%032x', max(session.id))) FROM session
    WHERE NEW.batch ->> 1 = 'worker' AND EXISTS (SELECT 1 FROM outbox_cursor) HAVING count(*) > 0;
END;

CREATE TEMP TRIGGER close_session INSTEAD OF INSERT ON call WHEN NEW.procedure = 'close_session' BEGIN
    INSERT INTO outbox (at, kind, tenant, runs)
    SELECT NEW.now, 'worker.left', '', json_array(printf('%032x', session.id)) FROM session
    WHERE session.id = NEW.session AND live = 1 AND session.kind = 'worker' AND EXISTS (SELECT 1 FROM outbox_cursor);
    UPDATE session SET live = 0, lease_until = min(lease_until, NEW.now) WHERE id = NEW.session AND live = 1;
    INSERT OR REPLACE INTO reply (number, body) VALUES (NEW.number, 'null');
END;

-- Extends the lease, and queues runs that the worker does not know as if they had never been claimed.
-- Batch: ttl, ids of held runs, numbers of claims without an answer. Argument: the number of the newest claim.
-- Answer: now, alive, cancels, returned (how many runs were queued), draining.
CREATE TEMP TRIGGER heartbeat INSTEAD OF INSERT ON call WHEN NEW.procedure = 'heartbeat' BEGIN
    UPDATE session SET lease_until = NEW.now + (NEW.batch ->> 0) WHERE id = NEW.session AND live = 1;

    DELETE FROM picked;
    INSERT INTO picked (id)
    SELECT r.id FROM run r INDEXED BY run_held
    WHERE r.state = 'running' AND r.session = NEW.session AND r.claim <= NEW.argument
      AND r.id NOT IN (SELECT value FROM json_each(NEW.batch, '$[1]'))
      AND r.claim NOT IN (SELECT value FROM json_each(NEW.batch, '$[2]'))
      AND EXISTS (SELECT 1 FROM session WHERE id = NEW.session AND live = 1);

    -- A returned run with limits releases its limiters and must be admitted again. It keeps its rank.
    INSERT INTO limit_release (limits, ending, started_at)
    SELECT r.limits, 'other', r.started_at FROM picked CROSS JOIN run r ON r.id = picked.id WHERE r.limits IS NOT NULL;
    INSERT INTO waiting (id, state, shard, tenant, queue, claim_group, rev, priority, attempt, lost, late, fence, body,
                         timeout, due, created_at, started_at, start_by, deadline, key_lock, job_id, job_version,
                         scheduled_at, origin, target, replay_of, session, limits)
    SELECT r.id, 'limited', r.shard, r.tenant, r.queue, r.claim_group, r.rev + 1, r.priority, r.attempt - 1, r.lost, r.late,
           r.fence, r.body, r.timeout, r.due, r.created_at, r.started_at, r.start_by, r.deadline, r.key_lock, r.job_id,
           r.job_version, r.scheduled_at, r.origin, r.target, r.replay_of, r.session, r.limits
    FROM picked CROSS JOIN run r ON r.id = picked.id WHERE r.limits IS NOT NULL AND r.cancel_at IS NULL;
    INSERT OR IGNORE INTO kept_position (id, rank, ready_at)
    SELECT r.id, r.rank, NEW.now FROM picked CROSS JOIN run r ON r.id = picked.id
    WHERE r.limits IS NOT NULL AND r.cancel_at IS NULL;
    INSERT INTO new_event (kind, tenant, run)
    SELECT 'run.released', w.tenant, w.id FROM picked CROSS JOIN waiting w ON w.id = picked.id
    WHERE EXISTS (SELECT 1 FROM outbox_cursor);
    DELETE FROM run WHERE id IN (SELECT w.id FROM picked CROSS JOIN waiting w ON w.id = picked.id);

    UPDATE run SET state = 'queued', attempt = attempt - 1, rev = rev + 1, claim = NULL, attempt_until = NULL,
                   queued_at = NEW.now, ready_at = NEW.now, limits = NULL
    WHERE id IN (SELECT id FROM picked);

    INSERT INTO new_event (kind, tenant, run)
    SELECT 'run.released', r.tenant, r.id FROM picked CROSS JOIN run r ON r.id = picked.id
    WHERE r.cancel_at IS NULL AND EXISTS (SELECT 1 FROM outbox_cursor);
    INSERT INTO end_run (id, state, reason, now)
    SELECT r.id, 'cancelled', 'cancelled', NEW.now FROM picked CROSS JOIN run r ON r.id = picked.id
    WHERE r.cancel_at IS NOT NULL;
    UPDATE history SET ran = 1 WHERE id IN (SELECT id FROM picked);
    INSERT INTO admit_runs (now) VALUES (NEW.now);
    INSERT INTO write_events (now) VALUES (NEW.now);

    INSERT OR REPLACE INTO reply (number, body)
    SELECT NEW.number, json_object(
        'now', NEW.now,
        'alive', json(iif(EXISTS (SELECT 1 FROM session WHERE id = NEW.session AND live = 1), 'true', 'false')),
        'cancels', json((SELECT json_group_array(r.id) FROM run r INDEXED BY run_held
              WHERE r.state = 'running' AND r.session = NEW.session AND r.cancel_at IS NOT NULL
                AND r.id IN (SELECT value FROM json_each(NEW.batch, '$[1]'))
                AND EXISTS (SELECT 1 FROM session WHERE id = NEW.session AND live = 1))),
        'returned', (SELECT count(*) FROM picked),
        'draining', json(iif(EXISTS (SELECT 1 FROM session WHERE id = NEW.session AND live = 1 AND draining = 1),
                             'true', 'false')));
END;

-- Picks the best runs of one queue. The reaper ends runs that missed their latest start or their deadline.
CREATE TEMP TRIGGER pick INSTEAD OF INSERT ON demand
WHEN NEW.tenant IS NULL AND NOT EXISTS (SELECT 1 FROM own_claim_group WHERE id <> 0)
 AND NOT EXISTS (SELECT 1 FROM pause WHERE pause.until IS NULL OR pause.until > NEW.now)
 AND NOT EXISTS (SELECT 1 FROM tenant WHERE tenant.running IS NOT NULL)
 AND NOT EXISTS (SELECT 1 FROM queue_policy q WHERE q.queue = NEW.queue AND q.closely = 1) BEGIN
    INSERT INTO picked (id)
    SELECT r.id FROM run r INDEXED BY run_ready
    WHERE r.state = 'queued' AND r.queue = NEW.queue AND r.claim_group = 0
      AND (r.start_by IS NULL OR r.start_by >= NEW.now OR r.attempt > 0)
      AND (r.deadline IS NULL OR r.deadline > NEW.now)
    ORDER BY r.rank, r.id LIMIT NEW.most;
END;

-- The same for a worker with label sets of its own: merges the lines of its label sets.
CREATE TEMP TRIGGER pick_by_label_set INSTEAD OF INSERT ON demand
WHEN NEW.tenant IS NULL AND EXISTS (SELECT 1 FROM own_claim_group WHERE id <> 0)
 AND NOT EXISTS (SELECT 1 FROM pause WHERE pause.until IS NULL OR pause.until > NEW.now)
 AND NOT EXISTS (SELECT 1 FROM tenant WHERE tenant.running IS NOT NULL)
 AND NOT EXISTS (SELECT 1 FROM queue_policy q WHERE q.queue = NEW.queue AND q.closely = 1) BEGIN
    INSERT INTO picked (id)
    SELECT id FROM (
        WITH RECURSIVE line (claim_group, rank, id) AS (
            SELECT r.claim_group, r.rank, r.id FROM own_claim_group CROSS JOIN run r ON r.id = (
                SELECT f.id FROM run f INDEXED BY run_ready
                WHERE f.state = 'queued' AND f.queue = NEW.queue AND f.claim_group = own_claim_group.id
                  AND (f.start_by IS NULL OR f.start_by >= NEW.now OR f.attempt > 0)
                  AND (f.deadline IS NULL OR f.deadline > NEW.now)
                ORDER BY f.rank, f.id LIMIT 1)
            UNION ALL
            SELECT r.claim_group, r.rank, r.id FROM line CROSS JOIN run r ON r.id = (
                SELECT f.id FROM run f INDEXED BY run_ready
                WHERE f.state = 'queued' AND f.queue = NEW.queue AND f.claim_group = line.claim_group
                  AND (f.rank, f.id) > (line.rank, +line.id)
                  AND (f.start_by IS NULL OR f.start_by >= NEW.now OR f.attempt > 0)
                  AND (f.deadline IS NULL OR f.deadline > NEW.now)
                ORDER BY f.rank, f.id LIMIT 1)
            ORDER BY 2, 3
            LIMIT NEW.most
        )
        SELECT id FROM line
    );
END;

-- The same while there are pauses or quotas, or for a demand of one tenant: merges the lines of the tenants, each as
-- long as the tenant has room, and in each those of the label sets. It reads no more rows than it picks, except for the
-- default tenant, which has no index of its own.
CREATE TEMP TRIGGER pick_by_tenant INSTEAD OF INSERT ON demand
WHEN (NEW.tenant IS NOT NULL OR EXISTS (SELECT 1 FROM pause WHERE pause.until IS NULL OR pause.until > NEW.now)
   OR EXISTS (SELECT 1 FROM tenant WHERE tenant.running IS NOT NULL))
 AND NOT EXISTS (SELECT 1 FROM queue_policy q WHERE q.queue = NEW.queue AND q.closely = 1) BEGIN
    INSERT INTO picked (id)
    SELECT id FROM (
        WITH RECURSIVE there (tenant) AS (
            SELECT coalesce(NEW.tenant, '')
            UNION ALL
            SELECT (SELECT min(r.tenant) FROM run r INDEXED BY run_queued
                    WHERE r.state = 'queued' AND r.tenant <> 'default' AND r.tenant > there.tenant)
            FROM there WHERE there.tenant IS NOT NULL AND NEW.tenant IS NULL
        ), busy (tenant, n) AS MATERIALIZED (
            SELECT r.tenant, count(*)
            FROM session CROSS JOIN run r INDEXED BY run_held ON r.session = session.id AND r.state = 'running'
            WHERE EXISTS (SELECT 1 FROM tenant WHERE tenant.running IS NOT NULL)
            GROUP BY r.tenant
        ), these (tenant) AS (
            -- The default tenant, which has no index and always takes part, replaces the empty name.
            SELECT iif(there.tenant = '' AND NEW.tenant IS NULL, 'default', there.tenant)
            FROM there WHERE there.tenant IS NOT NULL
        ), allowed (tenant, room) AS MATERIALIZED (
            SELECT these.tenant, coalesce(
                (SELECT limited.running FROM tenant AS limited WHERE limited.name = these.tenant)
                - coalesce((SELECT busy.n FROM busy WHERE busy.tenant = these.tenant), 0)
                - (SELECT count(*) FROM picked CROSS JOIN run r ON r.id = picked.id WHERE r.tenant = these.tenant),
                :FOREVER)
            FROM these
            WHERE NOT EXISTS (
                SELECT 1 FROM pause WHERE pause.tenant IN ('', these.tenant) AND pause.queue IN ('', NEW.queue)
                                AND (pause.until IS NULL OR pause.until > NEW.now))
        ), line (tenant, room, rank, id) AS (
            SELECT allowed.tenant, allowed.room - 1, r.rank, r.id
            FROM allowed CROSS JOIN run r ON r.id = iif(allowed.tenant = 'default', (
                    SELECT b.id FROM own_claim_group CROSS JOIN run b ON b.id = (
                        SELECT f.id FROM run f INDEXED BY run_ready
                        WHERE f.state = 'queued' AND f.queue = NEW.queue AND f.claim_group = own_claim_group.id
                          AND f.tenant = 'default'
                          AND (f.start_by IS NULL OR f.start_by >= NEW.now OR f.attempt > 0)
                          AND (f.deadline IS NULL OR f.deadline > NEW.now)
                          AND f.id NOT IN (SELECT picked.id FROM picked)
                        ORDER BY f.rank, f.id LIMIT 1)
                    ORDER BY b.rank, b.id LIMIT 1
                ), (
                    SELECT b.id FROM own_claim_group CROSS JOIN run b ON b.id = (
                        SELECT f.id FROM run f INDEXED BY run_queued
                        WHERE f.state = 'queued' AND f.queue = NEW.queue AND f.claim_group = own_claim_group.id
                          AND f.tenant = allowed.tenant AND f.tenant <> 'default'
                          AND (f.start_by IS NULL OR f.start_by >= NEW.now OR f.attempt > 0)
                          AND (f.deadline IS NULL OR f.deadline > NEW.now)
                          AND f.id NOT IN (SELECT picked.id FROM picked)
                        ORDER BY f.rank, f.id LIMIT 1)
                    ORDER BY b.rank, b.id LIMIT 1
                ))
            WHERE allowed.room > 0
            UNION ALL
            SELECT line.tenant, line.room - 1, r.rank, r.id
            FROM line CROSS JOIN run r ON r.id = iif(line.tenant = 'default', (
                    SELECT b.id FROM own_claim_group CROSS JOIN run b ON b.id = (
                        SELECT f.id FROM run f INDEXED BY run_ready
                        WHERE f.state = 'queued' AND f.queue = NEW.queue AND f.claim_group = own_claim_group.id
                          AND f.tenant = 'default'
                          AND (f.rank, f.id) > (line.rank, +line.id)
                          AND (f.start_by IS NULL OR f.start_by >= NEW.now OR f.attempt > 0)
                          AND (f.deadline IS NULL OR f.deadline > NEW.now)
                          AND f.id NOT IN (SELECT picked.id FROM picked)
                        ORDER BY f.rank, f.id LIMIT 1)
                    ORDER BY b.rank, b.id LIMIT 1
                ), (
                    SELECT b.id FROM own_claim_group CROSS JOIN run b ON b.id = (
                        SELECT f.id FROM run f INDEXED BY run_queued
                        WHERE f.state = 'queued' AND f.queue = NEW.queue AND f.claim_group = own_claim_group.id
                          AND f.tenant = line.tenant AND f.tenant <> 'default'
                          AND (f.rank, f.id) > (line.rank, +line.id)
                          AND (f.start_by IS NULL OR f.start_by >= NEW.now OR f.attempt > 0)
                          AND (f.deadline IS NULL OR f.deadline > NEW.now)
                          AND f.id NOT IN (SELECT picked.id FROM picked)
                        ORDER BY f.rank, f.id LIMIT 1)
                    ORDER BY b.rank, b.id LIMIT 1
                ))
            WHERE line.room > 0
            ORDER BY 3, 4
            LIMIT NEW.most
        )
        SELECT id FROM line
    );
END;

-- Batch: (queue, limit, tenant), first each queue without a tenant, then those with one. Argument: the number of the
-- claim.
-- Answer: held runs, best first.
CREATE TEMP TRIGGER claim INSTEAD OF INSERT ON call WHEN NEW.procedure = 'claim' BEGIN
    DELETE FROM picked;
    DELETE FROM own_claim_group WHERE id <> 0;
    INSERT OR IGNORE INTO own_claim_group (id)
    SELECT l.value FROM session CROSS JOIN json_each(session.claim_groups) AS l
    WHERE session.id = NEW.session AND session.claim_groups IS NOT NULL;
    INSERT INTO demand (queue, most, tenant, now)
    SELECT i.value ->> 0, i.value ->> 1, i.value ->> 2, NEW.now FROM json_each(NEW.batch) AS i
    WHERE EXISTS (SELECT 1 FROM session WHERE id = NEW.session AND live = 1 AND draining = 0 AND lease_until > NEW.now);

    UPDATE meta SET fence_seq = fence_seq + 1 WHERE EXISTS (SELECT 1 FROM picked);

    UPDATE run SET state = 'running', attempt = attempt + 1, rev = rev + 1,
                   fence = (SELECT store_epoch << :FENCE_BITS | fence_seq FROM meta), session = NEW.session, claim = NEW.argument,
                   started_at = NEW.now, attempt_until = min(NEW.now + timeout, coalesce(deadline, NEW.now + timeout))
    WHERE id IN (SELECT id FROM picked);

    INSERT INTO count_start (number, per, now)
    SELECT g.value ->> 1, g.value ->> 3, NEW.now
    FROM picked CROSS JOIN run r ON r.id = picked.id CROSS JOIN json_each(r.limits) AS g
    WHERE r.limits IS NOT NULL AND g.value ->> 0 = :PER_PERIOD AND EXISTS (SELECT 1 FROM limiter);

    INSERT INTO new_event (kind, tenant, run)
    SELECT 'run.started', r.tenant, r.id FROM picked CROSS JOIN run r ON r.id = picked.id
    WHERE EXISTS (SELECT 1 FROM outbox_cursor) ORDER BY picked.n;
    INSERT INTO write_events (now) VALUES (NEW.now);

    INSERT OR REPLACE INTO reply (number, body)
    SELECT NEW.number, json_group_array(json_array(
        r.id, r.fence, b.task, b.payload, b.policy, r.queue, r.tenant, r.priority, r.attempt, r.lost, r.due,
        r.started_at, r.attempt_until, r.deadline, r.job_id, r.scheduled_at,
        r.key_lock IS NOT NULL OR r.limits IS NOT NULL OR r.origin IS 'delay' OR (
            EXISTS (SELECT 1 FROM edge INDEXED BY edge_undecided WHERE edge.state IS NULL)
            AND EXISTS (SELECT 1 FROM edge e INDEXED BY edge_undecided WHERE e.parent = r.id AND e.state IS NULL)),
        r.cancel_at IS NOT NULL,
        -- At revision 2, a run was only inserted and claimed, so it has no checkpoint.
        iif(r.rev > 2, (SELECT c.state FROM checkpoint c WHERE c.run_id = r.id), NULL), NULL, r.ready_at,
        iif(EXISTS (SELECT 1 FROM pause), (
            SELECT max(pause.until) FROM pause
            WHERE pause.tenant IN ('', r.tenant) AND pause.queue IN ('', r.queue) AND pause.until <= NEW.now), NULL)))
    FROM picked CROSS JOIN run r ON r.id = picked.id CROSS JOIN body b ON b.id = r.body;
END;

-- Completes attempts, each under its own fence.
-- Item: run, fence, outcome, state, reason, delay, result, error, fingerprint. Argument: how many items there are.
-- Answer: (index, answer) of all that were not accepted. A success has no row in attempt.
CREATE TEMP TRIGGER complete INSTEAD OF INSERT ON call WHEN NEW.procedure = 'complete' BEGIN
    DELETE FROM completion;

    -- A run whose cancellation was requested is cancelled instead of retried. Then its attempt did not end it.
    INSERT INTO completion (id, n, fence, outcome, state, reason, delay, result, error, key_lock, origin, by_attempt,
                          fingerprint, limits, started_at)
    SELECT r.id, i.n, r.fence, i.v ->> 2,
           iif(r.cancel_at IS NOT NULL AND i.v ->> 3 IN ('scheduled', 'queued'), 'cancelled', i.v ->> 3),
           i.v ->> 4, i.v ->> 5, i.v ->> 6, i.v ->> 7, r.key_lock, r.origin,
           r.cancel_at IS NULL OR i.v ->> 3 NOT IN ('scheduled', 'queued'), i.v ->> 8, r.limits,
           iif(r.limits IS NULL, NULL, r.started_at)
    FROM (WITH item AS MATERIALIZED (SELECT key AS n, value AS v FROM jsonb_each(NEW.batch)) SELECT n, v FROM item) AS i
    CROSS JOIN run r ON r.id = i.v ->> 0
    WHERE r.fence = i.v ->> 1 AND +r.state = 'running'
    ON CONFLICT DO NOTHING;

    INSERT INTO history (id, state, tenant, queue, rev, priority, attempt, lost, fence, by_attempt, session, body, due,
                         created_at, started_at, finished_at, cancel_at, job_id, job_version, scheduled_at, origin,
                         target, replay_of, reason, result, error, executor, start_by, deadline, ran, fingerprint, dead,
                         queued_at, retention)
    SELECT r.id, completion.state, r.tenant, r.queue, r.rev + 1, r.priority, r.attempt - (completion.outcome = 'released'),
           r.lost + (completion.outcome = 'lost'), r.fence, completion.by_attempt, r.session, r.body, r.due, r.created_at,
           r.started_at, NEW.now, r.cancel_at, r.job_id, r.job_version, r.scheduled_at, r.origin, r.target, r.replay_of,
           iif(completion.by_attempt, completion.reason, 'cancelled'), iif(completion.by_attempt, completion.result, NULL),
           iif(completion.by_attempt, completion.error, NULL),
           (SELECT session.name FROM session WHERE session.id = r.session), r.start_by, r.deadline, 1,
           completion.fingerprint, completion.state = 'failed', r.queued_at,
           nullif(coalesce((SELECT b.policy ->> '$.retention' FROM body b WHERE b.id = r.body),
                           (SELECT t.quotas ->> '$.retention' FROM tenant t WHERE t.name = r.tenant)), 'standard')
    FROM completion CROSS JOIN run r ON r.id = completion.id
    WHERE completion.state NOT IN ('scheduled', 'queued');

    INSERT INTO new_event (kind, tenant, run)
    SELECT CASE WHEN completion.state NOT IN ('scheduled', 'queued') THEN 'run.' || completion.state
                WHEN completion.outcome IN ('released', 'lost') THEN 'run.' || completion.outcome
                ELSE 'run.retried' END, r.tenant, r.id
    FROM completion CROSS JOIN run r ON r.id = completion.id
    WHERE EXISTS (SELECT 1 FROM outbox_cursor) ORDER BY completion.n;

    INSERT INTO complete_special_runs (now)
    SELECT NEW.now WHERE EXISTS (
        SELECT 1 FROM completion
        WHERE outcome <> 'success' OR key_lock IS NOT NULL OR limits IS NOT NULL OR origin = 'delay');
    DELETE FROM run WHERE id IN (
        SELECT completion.id FROM completion WHERE completion.state <> 'queued' OR completion.limits IS NOT NULL);

    -- Decide a few children at once.
    INSERT OR IGNORE INTO ended_parent (run_id, state, at)
    SELECT completion.id, completion.state, NEW.now FROM completion
    WHERE EXISTS (SELECT 1 FROM edge INDEXED BY edge_undecided WHERE edge.state IS NULL)
      AND completion.state NOT IN ('scheduled', 'queued')
      AND EXISTS (SELECT 1 FROM edge e INDEXED BY edge_undecided WHERE e.parent = completion.id AND e.state IS NULL);
    INSERT INTO process_ended_parents (most, now) SELECT 200, NEW.now WHERE EXISTS (SELECT 1 FROM ended_parent);

    INSERT INTO admit_runs (now) VALUES (NEW.now);
    INSERT INTO write_events (now) VALUES (NEW.now);

    INSERT OR REPLACE INTO reply (number, body)
    SELECT NEW.number, json_group_array(json_array(i.n, iif(
               iif(i.outcome = 'success',
                   EXISTS (SELECT 1 FROM history h WHERE h.id = i.id AND h.fence = i.fence AND h.state = 'succeeded'),
                   EXISTS (SELECT 1 FROM attempt a
                           WHERE a.run_id = i.id AND a.fence = i.fence AND a.outcome = i.outcome)),
               'duplicate', 'stale')))
    FROM (SELECT key AS n, value ->> 0 AS id, value ->> 1 AS fence, value ->> 2 AS outcome
          FROM json_each(NEW.batch)) AS i
    WHERE (SELECT count(*) FROM completion) < NEW.argument
      AND i.n IS NOT (SELECT completion.n FROM completion WHERE completion.id = i.id);
END;

-- Handles everything but the success of a run without a key, limits and a fixed delay.
CREATE TEMP TRIGGER complete_each_special_run INSTEAD OF INSERT ON complete_special_runs BEGIN
    INSERT INTO attempt (run_id, fence, number, outcome, reason, error, session, started_at, ended_at)
    SELECT r.id, r.fence, r.attempt, completion.outcome, completion.reason, completion.error, r.session, r.started_at, NEW.now
    FROM completion CROSS JOIN run r ON r.id = completion.id
    WHERE completion.outcome <> 'success';

    INSERT INTO waiting (id, state, shard, tenant, queue, claim_group, rev, priority, attempt, lost, late, fence, body,
                         timeout, due, created_at, started_at, start_by, deadline, key_lock, job_id, job_version,
                         scheduled_at, origin, target, replay_of, session, limits)
    SELECT r.id, iif(completion.state = 'queued', 'limited', 'scheduled'), r.shard, r.tenant, r.queue, r.claim_group, r.rev + 1,
           r.priority, r.attempt - (completion.outcome = 'released'), r.lost + (completion.outcome = 'lost'), r.late,
           r.fence, r.body, r.timeout, iif(completion.state = 'queued', r.due, NEW.now + completion.delay), r.created_at,
           r.started_at, r.start_by, r.deadline, r.key_lock, r.job_id, r.job_version,
           r.scheduled_at, r.origin, r.target, r.replay_of, r.session, r.limits
    FROM completion CROSS JOIN run r ON r.id = completion.id
    WHERE completion.state = 'scheduled' OR (completion.state = 'queued' AND completion.limits IS NOT NULL);

    INSERT OR IGNORE INTO kept_position (id, rank, ready_at)
    SELECT completion.id, iif(completion.outcome = 'released', r.rank, NULL), NEW.now
    FROM completion CROSS JOIN run r ON r.id = completion.id
    WHERE completion.limits IS NOT NULL AND completion.state = 'queued';

    -- A released run keeps its rank. Other runs that are queued at once get a rank behind eligible runs.
    UPDATE run SET state = 'queued', rev = rev + 1, claim = NULL, attempt_until = NULL, queued_at = NEW.now,
                   ready_at = NEW.now, attempt = attempt - (completion.outcome = 'released'), lost = lost + (completion.outcome = 'lost'),
                   rank = iif(completion.outcome = 'released', rank, NEW.now + priority * :HEAD_START + :LATE_PENALTY)
    FROM completion WHERE completion.state = 'queued' AND completion.limits IS NULL AND run.id = completion.id;

    UPDATE schedule SET next_fire = NEW.now + delay, awaits = NULL, rev = rev + 1
    WHERE job_id IN (SELECT h.job_id FROM completion CROSS JOIN history h ON h.id = completion.id
                     WHERE completion.origin = 'delay')
      AND awaits IN (SELECT completion.id FROM completion WHERE completion.state NOT IN ('scheduled', 'queued'))
      AND next_fire IS NULL AND delay IS NOT NULL AND active = 1;

    -- Every completion releases the limiters of its run. A retried run must be admitted again.
    INSERT INTO limit_release (limits, ending, started_at)
    SELECT completion.limits, CASE completion.outcome WHEN 'success' THEN 'succeeded' WHEN 'error' THEN 'failed'
                                                    WHEN 'timeout' THEN 'failed' ELSE 'other' END, completion.started_at
    FROM completion WHERE completion.limits IS NOT NULL ORDER BY completion.n;

    INSERT INTO release_key_lock (key, holder, now)
    SELECT completion.key_lock, completion.id, NEW.now FROM completion
    WHERE completion.key_lock IS NOT NULL AND completion.state NOT IN ('scheduled', 'queued') ORDER BY completion.n;
END;
