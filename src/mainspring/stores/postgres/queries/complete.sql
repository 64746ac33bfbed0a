-- name: complete_succeeded
-- Moves succeeded runs to history. `claim IS NOT NULL` finds running runs without the predicate of a partial index:
-- `state = :RUNNING` would let the planner drive from run_held. `= ANY` and `IS TRUE` pin the plan: after a vacuum of an empty table
-- the planner expects no rows, and a join would scan every run for every completion.
-- `results`, `cpu` and `units` are null if no completion has them, which is usual.
WITH clock AS MATERIALIZED (
    SELECT mainspring.now_us() AS now
), gone AS (
    DELETE FROM mainspring.run
    WHERE run.id = ANY (:runs::uuid[]) AND run.claim IS NOT NULL
      AND ((run.id, run.fence) IN (SELECT * FROM unnest(:runs::uuid[], :fences::bigint[]))) IS TRUE
    RETURNING run.*
), emitted AS (
    INSERT INTO mainspring.outbox (at, kind, tenant, runs)
    SELECT (SELECT now FROM clock), 'run.succeeded', tenant, array_agg(id) FROM gone
    WHERE EXISTS (SELECT FROM mainspring.outbox_cursor) GROUP BY tenant
), kept AS (
    INSERT INTO mainspring.history (id, class, state, priority, attempt, lost, origin, tenant, queue, body_bucket,
                                    finished_at, due, created_at, fence, started_at, session, scheduled_at, job_version,
                                    target, job_id, body_id, replay_of, result, queued_at, start_by, deadline, cpu, units,
                                    of_task)
    SELECT g.id, CASE WHEN g.body_bucket < :CLASS_WIDTH + :KEPT_BUCKET THEN :SUCCEEDED_CLASS ELSE (g.body_bucket - :KEPT_BUCKET) / :CLASS_WIDTH + :UNSUCCESSFUL_CLASS END,
           :SUCCEEDED, g.priority, g.attempt, g.lost, g.origin, g.tenant, g.queue, g.body_bucket, clock.now, g.due,
           g.created_at, g.fence, g.started_at, g.session, g.scheduled_at, g.job_version, g.target, g.job_id, g.body_id,
           g.replay_of, (:results::bytea[])[array_position(:runs::uuid[], g.id)], g.queued_at, g.start_by, g.deadline,
           (:cpu::bigint[])[array_position(:runs::uuid[], g.id)], (:units::text[])[array_position(:runs::uuid[], g.id)],
           g.of_task
    FROM gone g, clock
), parents AS (
    INSERT INTO mainspring.ended_parent (run_id, state, at)
    SELECT g.id, :SUCCEEDED, clock.now FROM gone g, clock WHERE g.has_children ON CONFLICT DO NOTHING
)
SELECT id, fence, has_children FROM gone

-- name: complete_others
-- Completes attempts with every other outcome. A run that is being cancelled does not continue: cancel_at is read from the moved row.
-- A run with limits that is to be queued again is blocked by its limits until the caller has admitted it.
WITH clock AS MATERIALIZED (
    SELECT mainspring.now_us() AS now
), taken AS (
    DELETE FROM mainspring.run
    WHERE run.id = ANY (:runs::uuid[]) AND run.claim IS NOT NULL
      AND ((run.id, run.fence) IN (SELECT * FROM unnest(:runs::uuid[], :fences::bigint[]))) IS TRUE
    RETURNING run.*
), gone AS MATERIALIZED (
    SELECT DISTINCT ON (t.id) t.*, i.outcome, i.state AS wanted, i.reason, i.delay, i.error, i.result, i.fingerprint,
        i.cpu, i.units,
        CASE WHEN i.state IN (:SCHEDULED, :QUEUED) AND t.cancel_at IS NOT NULL THEN :CANCELLED::smallint ELSE i.state END AS final,
        CASE WHEN i.state IN (:SCHEDULED, :QUEUED) AND t.cancel_at IS NOT NULL THEN 'cancelled' ELSE i.reason END AS why
    FROM taken t
    JOIN unnest(:runs::uuid[], :fences::bigint[], :outcomes::smallint[], :states::smallint[], :reasons::text[], :delays::bigint[], :errors::text[], :results::bytea[],
                :fingerprints::text[], :cpu::bigint[], :units::text[])
        AS i(id, fence, outcome, state, reason, delay, error, result, fingerprint, cpu, units)
        ON i.id = t.id AND i.fence = t.fence
    ORDER BY t.id
), again AS (
    INSERT INTO mainspring.run (id, shard, state, priority, attempt, lost, tenant, queue, claim_group, body_bucket, rank, due,
                                created_at, timeout, fence, start_by, deadline, key_lock, scheduled_at, job_id, job_version,
                                body_id, replay_of, target, origin, queued_at, has_children, ready_at)
    SELECT g.id, g.shard, :QUEUED, g.priority, g.attempt - (g.outcome = :OUTCOME_RELEASED)::int, g.lost + (g.outcome = :OUTCOME_LOST)::int, g.tenant, g.queue,
           g.claim_group, g.body_bucket,
           CASE WHEN g.outcome = :OUTCOME_RELEASED THEN g.rank ELSE clock.now + g.priority * :HEAD_START::bigint + :LATE_PENALTY END, g.due,
           g.created_at, g.timeout, g.fence, g.start_by, g.deadline, g.key_lock, g.scheduled_at, g.job_id, g.job_version, g.body_id,
           g.replay_of, g.target, g.origin, clock.now, g.has_children, clock.now
    FROM gone g, clock WHERE g.final = :QUEUED AND g.limits IS NULL
), later AS (
    INSERT INTO mainspring.waiting (id, shard, state, priority, attempt, lost, tenant, queue, claim_group, body_bucket, due,
                                    created_at, timeout, fence, late, holds, start_by, deadline, key_lock, scheduled_at,
                                    job_id, job_version, body_id, replay_of, target, origin, reason, limits,
                                    has_children, rank)
    SELECT g.id, g.shard, CASE WHEN g.final = :SCHEDULED THEN :SCHEDULED ELSE :BLOCKED_BY_LIMIT END, g.priority, g.attempt - (g.outcome = :OUTCOME_RELEASED)::int, g.lost + (g.outcome = :OUTCOME_LOST)::int, g.tenant, g.queue,
           g.claim_group, g.body_bucket, CASE WHEN g.final = :SCHEDULED THEN clock.now + g.delay ELSE g.due END, g.created_at, g.timeout, g.fence,
           g.attempt > (g.outcome = :OUTCOME_RELEASED)::int, g.key_lock IS NOT NULL,
           g.start_by, g.deadline, g.key_lock, g.scheduled_at, g.job_id, g.job_version, g.body_id, g.replay_of, g.target, g.origin,
           CASE WHEN g.final = :SCHEDULED THEN g.why END, g.limits, g.has_children,
           CASE WHEN g.final = :QUEUED AND g.outcome = :OUTCOME_RELEASED THEN g.rank END
    FROM gone g, clock WHERE g.final = :SCHEDULED OR g.final = :QUEUED AND g.limits IS NOT NULL
), ended AS (
    INSERT INTO mainspring.history (id, class, state, priority, attempt, lost, origin, tenant, queue, body_bucket,
                                    finished_at, due, created_at, fence, started_at, session, scheduled_at, job_version,
                                    target, job_id, body_id, replay_of, result, reason, error, queued_at, start_by, deadline,
                                    cpu, units)
    SELECT g.id, CASE WHEN g.body_bucket >= :CLASS_WIDTH + :KEPT_BUCKET THEN (g.body_bucket - :KEPT_BUCKET) / :CLASS_WIDTH + :UNSUCCESSFUL_CLASS WHEN g.final = :SUCCEEDED THEN :SUCCEEDED_CLASS ELSE :UNSUCCESSFUL_CLASS END,
           g.final, g.priority, g.attempt - (g.outcome = :OUTCOME_RELEASED)::int,
           g.lost + (g.outcome = :OUTCOME_LOST)::int, g.origin, g.tenant, g.queue, g.body_bucket, clock.now, g.due, g.created_at, g.fence,
           g.started_at, g.session, g.scheduled_at, g.job_version, g.target, g.job_id, g.body_id, g.replay_of, g.result, g.why,
           CASE WHEN g.final = g.wanted THEN g.error END, g.queued_at, g.start_by, g.deadline, g.cpu, g.units
    FROM gone g, clock WHERE g.final >= :SUCCEEDED
), dead AS (
    INSERT INTO mainspring.dead_letter (run_id, tenant, task, queue, at, fingerprint)
    SELECT g.id, g.tenant, (SELECT b.task FROM mainspring.body b WHERE b.bucket = g.body_bucket AND b.id = coalesce(g.body_id, g.id)),
           g.queue, clock.now, g.fingerprint
    FROM gone g, clock WHERE g.final = :FAILED
    ON CONFLICT (run_id) DO NOTHING
), parents AS (
    INSERT INTO mainspring.ended_parent (run_id, state, at)
    SELECT g.id, g.final, clock.now FROM gone g, clock WHERE g.has_children AND g.final >= :SUCCEEDED ON CONFLICT DO NOTHING
), tried AS (
    INSERT INTO mainspring.attempt (run_id, fence, number, outcome, session, started_at, ended_at, reason, error, tenant, queue,
                                    cpu, units, job_id, body_bucket, body_id)
    SELECT g.id, g.fence, g.attempt, g.outcome, g.session, g.started_at, clock.now, g.reason, g.error, g.tenant, g.queue,
           g.cpu, g.units, g.job_id, g.body_bucket, g.body_id
    FROM gone g, clock WHERE g.outcome <> :OUTCOME_SUCCESS
), emitted AS (
    INSERT INTO mainspring.outbox (at, kind, tenant, runs)
    SELECT clock.now, e.kind, e.tenant, e.runs
    FROM clock, (
        SELECT g.tenant, CASE WHEN g.final = :SUCCEEDED THEN 'run.succeeded' WHEN g.final = :FAILED THEN 'run.failed'
                    WHEN g.final = :CANCELLED THEN 'run.cancelled' WHEN g.outcome = :OUTCOME_LOST THEN 'run.lost'
                    WHEN g.outcome = :OUTCOME_RELEASED THEN 'run.released' ELSE 'run.retried' END AS kind, array_agg(g.id) AS runs
        FROM gone g GROUP BY 1, 2
    ) AS e
    WHERE EXISTS (SELECT FROM mainspring.outbox_cursor)
)
SELECT g.id, g.fence, CASE WHEN g.final >= :SUCCEEDED THEN g.key_lock END AS key_lock,
       CASE WHEN g.final >= :SUCCEEDED AND g.origin = :ORIGIN_FIXED_DELAY THEN g.job_id END AS delayed_job,
       g.limits, g.outcome, g.started_at, g.final, g.due, g.queue, g.has_children
FROM gone g

-- name: find_completed
-- For completions without a running row: whether the same fence completed the attempt before, with the same outcome.
-- A success has no attempt row, and only a success ends as succeeded.
-- `OFFSET 0` keeps the index probe. Without it, a plan made for an empty table would hash the whole table from then on.
SELECT i.id, i.fence
FROM unnest(:runs::uuid[], :fences::bigint[], :outcomes::smallint[]) AS i(id, fence, outcome)
WHERE CASE WHEN i.outcome = :OUTCOME_SUCCESS
    THEN EXISTS (SELECT FROM mainspring.history h WHERE h.id = i.id AND h.fence = i.fence AND h.state = :SUCCEEDED OFFSET 0)
    ELSE EXISTS (SELECT FROM mainspring.attempt a WHERE a.run_id = i.id AND a.fence = i.fence AND a.outcome = i.outcome OFFSET 0)
END

-- name: lock_held_keys
SELECT key FROM mainspring.key_lock WHERE key = ANY (:keys::bigint[]) ORDER BY key FOR UPDATE

-- name: pass_keys_on
-- The keys are locked and their holders have ended: queues the first run in line of each key, which then holds the key.
-- Skips a blocked run that another transaction is ending, and waits for one whose row is only being updated (key share).
WITH clock AS MATERIALIZED (
    SELECT mainspring.now_us() AS now
), free AS MATERIALIZED (
    SELECT g.key FROM mainspring.key_lock g
    WHERE g.key = ANY (:keys::bigint[]) AND (g.holder IS NULL OR (
        NOT EXISTS (SELECT FROM mainspring.run r WHERE r.id = g.holder OFFSET 0) AND
        NOT EXISTS (SELECT FROM mainspring.waiting w WHERE w.id = g.holder AND w.holds OFFSET 0)))
), first AS MATERIALIZED (
    SELECT first.id FROM free, LATERAL (
        SELECT w.id FROM mainspring.waiting w WHERE w.key_lock = free.key AND w.state = :BLOCKED
        ORDER BY w.due, w.id LIMIT 1 FOR KEY SHARE SKIP LOCKED
    ) AS first
), next AS (
    DELETE FROM mainspring.waiting WHERE id = ANY (ARRAY(SELECT id FROM first)) AND limits IS NULL RETURNING *
), limited AS (
    -- It holds its key while its limits block it; the caller admits it.
    UPDATE mainspring.waiting SET state = :BLOCKED_BY_LIMIT, holds = true
    WHERE id = ANY (ARRAY(SELECT id FROM first)) AND limits IS NOT NULL
    RETURNING id, queue, key_lock, due, limits
), queued AS (
    INSERT INTO mainspring.run (id, shard, state, priority, attempt, lost, tenant, queue, claim_group, body_bucket, rank, due,
                                created_at, timeout, fence, start_by, deadline, key_lock, scheduled_at, job_id, job_version,
                                body_id, replay_of, target, origin, queued_at, has_children, ready_at)
    SELECT n.id, n.shard, :QUEUED, n.priority, n.attempt, n.lost, n.tenant, n.queue, n.claim_group, n.body_bucket,
           clock.now + n.priority * :HEAD_START::bigint + CASE WHEN n.late THEN :LATE_PENALTY ELSE 0 END, n.due, n.created_at,
           n.timeout, n.fence, n.start_by, n.deadline, n.key_lock, n.scheduled_at, n.job_id, n.job_version, n.body_id,
           n.replay_of, n.target, n.origin, clock.now, n.has_children, clock.now
    FROM next n, clock
), held AS (
    UPDATE mainspring.key_lock
    SET holder = (SELECT n.id FROM next n WHERE n.key_lock = key_lock.key UNION ALL SELECT l.id FROM limited l WHERE l.key_lock = key_lock.key)
    FROM free WHERE key_lock.key = free.key
), emitted AS (
    INSERT INTO mainspring.outbox (at, kind, tenant, runs)
    SELECT (SELECT now FROM clock), 'run.queued', tenant, array_agg(id) FROM next
    WHERE EXISTS (SELECT FROM mainspring.outbox_cursor) GROUP BY tenant
)
SELECT n.id, n.queue, n.due, n.limits FROM next n UNION ALL SELECT l.id, l.queue, l.due, l.limits FROM limited l

-- name: end_delay
-- The run of a fixed-delay job has ended: the next tick is a delay from now.
UPDATE mainspring.schedule SET next_fire = mainspring.now_us() + delay, rev = rev + 1
WHERE job_id = ANY (:jobs::uuid[]) AND active AND next_fire IS NULL AND delay IS NOT NULL

-- name: cancel_waiting
-- Ends runs that have not started, and asks running ones to stop. The caller repeats this for runs that moved meanwhile.
WITH clock AS MATERIALIZED (
    SELECT mainspring.now_us() AS now
), waited AS (
    DELETE FROM mainspring.waiting WHERE id = ANY (:runs::uuid[])
    RETURNING id, shard, priority, attempt, lost, tenant, queue, body_bucket, due, created_at, fence, scheduled_at, job_id,
              job_version, body_id, replay_of, target, origin, key_lock, state, start_by, deadline, NULL::bigint[] AS limits,
              has_children, CASE WHEN state = :BLOCKED_BY_LIMIT THEN waits END AS waits
), queued AS (
    DELETE FROM mainspring.run WHERE id = ANY (:runs::uuid[]) AND claim IS NULL
    RETURNING id, shard, priority, attempt, lost, tenant, queue, body_bucket, due, created_at, fence, scheduled_at, job_id,
              job_version, body_id, replay_of, target, origin, key_lock, state, start_by, deadline, limits, has_children,
              NULL::bigint AS waits
), gone AS (
    SELECT * FROM waited UNION ALL SELECT * FROM queued
), ended AS (
    INSERT INTO mainspring.history (id, class, state, priority, attempt, lost, origin, tenant, queue, body_bucket,
                                    finished_at, due, created_at, fence, scheduled_at, job_version, target, job_id, body_id,
                                    replay_of, reason, start_by, deadline)
    SELECT g.id, CASE WHEN g.body_bucket < :CLASS_WIDTH + :KEPT_BUCKET THEN :UNSUCCESSFUL_CLASS ELSE (g.body_bucket - :KEPT_BUCKET) / :CLASS_WIDTH + :UNSUCCESSFUL_CLASS END,
           :CANCELLED, g.priority, g.attempt, g.lost, g.origin, g.tenant, g.queue, g.body_bucket, clock.now, g.due,
           g.created_at, g.fence, g.scheduled_at, g.job_version, g.target, g.job_id, g.body_id, g.replay_of, 'cancelled', g.start_by,
           g.deadline
    FROM gone g, clock
), parents AS (
    INSERT INTO mainspring.ended_parent (run_id, state, at)
    SELECT g.id, :CANCELLED, clock.now FROM gone g, clock WHERE g.has_children ON CONFLICT DO NOTHING
), asked AS (
    UPDATE mainspring.run SET cancel_at = clock.now
    FROM clock WHERE id = ANY (:runs::uuid[]) AND claim IS NOT NULL AND cancel_at IS NULL
    RETURNING id, tenant
), emitted AS (
    INSERT INTO mainspring.outbox (at, kind, tenant, runs)
    SELECT clock.now, e.kind, e.tenant, e.runs
    FROM clock, (SELECT 'run.cancelled', tenant, array_agg(id) FROM gone GROUP BY tenant
                 UNION ALL SELECT 'run.cancel_requested', tenant, array_agg(id) FROM asked GROUP BY tenant)
             AS e(kind, tenant, runs)
    WHERE EXISTS (SELECT FROM mainspring.outbox_cursor)
)
-- was: the state before; null if nothing changed.
SELECT id, :CANCELLED::smallint AS state, key_lock, CASE WHEN origin = :ORIGIN_FIXED_DELAY THEN job_id END AS delayed_job, tenant, state AS was, limits,
       has_children, waits
FROM gone
UNION ALL SELECT id, :CANCELLING::smallint, NULL, NULL, tenant, :RUNNING::smallint, NULL, NULL, NULL FROM asked
UNION ALL SELECT r.id, :CANCELLING::smallint, NULL, NULL, r.tenant, NULL, NULL, NULL, NULL FROM mainspring.run r
          WHERE r.id = ANY (:runs::uuid[]) AND r.claim IS NOT NULL AND r.cancel_at IS NOT NULL
UNION ALL SELECT h.id, h.state, NULL, NULL, h.tenant, NULL, NULL, NULL, NULL FROM mainspring.history h WHERE h.id = ANY (:runs::uuid[])

-- name: finish
-- Ends runs whose outcome is known from elsewhere, in any state here. Their start time is unknown.
WITH clock AS MATERIALIZED (
    SELECT mainspring.now_us() AS now
), waited AS (
    DELETE FROM mainspring.waiting WHERE id = ANY (:runs::uuid[])
    RETURNING id, priority, attempt, lost, tenant, queue, body_bucket, due, created_at, fence, scheduled_at, job_id, job_version,
              body_id, replay_of, target, origin, key_lock, state AS was, start_by, deadline, NULL::bigint[] AS limits, has_children,
              CASE WHEN state = :BLOCKED_BY_LIMIT THEN waits END AS waits, NULL::smallint AS outcome, NULL::bigint AS started_at
), live AS (
    -- A running attempt leaves its limits as a released one.
    DELETE FROM mainspring.run WHERE id = ANY (:runs::uuid[])
    RETURNING id, priority, attempt, lost, tenant, queue, body_bucket, due, created_at, fence, scheduled_at, job_id, job_version,
              body_id, replay_of, target, origin, key_lock, CASE WHEN cancel_at IS NULL THEN state ELSE :CANCELLING::smallint END,
              start_by, deadline, limits, has_children, NULL::bigint, CASE WHEN claim IS NOT NULL THEN :OUTCOME_RELEASED::smallint END, started_at
), gone AS MATERIALIZED (
    SELECT g.*, i.state, i.reason, i.result, i.error, i.fingerprint
    FROM (SELECT * FROM waited UNION ALL SELECT * FROM live) AS g
    JOIN unnest(:runs::uuid[], :states::smallint[], :reasons::text[], :results::bytea[], :errors::text[], :fingerprints::text[])
        AS i(id, state, reason, result, error, fingerprint) ON i.id = g.id
), ended AS (
    INSERT INTO mainspring.history (id, class, state, priority, attempt, lost, origin, tenant, queue, body_bucket,
                                    finished_at, due, created_at, fence, scheduled_at, job_version, target, job_id, body_id,
                                    replay_of, result, reason, error, start_by, deadline)
    SELECT g.id, CASE WHEN g.body_bucket >= :CLASS_WIDTH + :KEPT_BUCKET THEN (g.body_bucket - :KEPT_BUCKET) / :CLASS_WIDTH + :UNSUCCESSFUL_CLASS WHEN g.state = :SUCCEEDED THEN :SUCCEEDED_CLASS ELSE :UNSUCCESSFUL_CLASS END,
           g.state, g.priority, g.attempt, g.lost, g.origin, g.tenant, g.queue, g.body_bucket, clock.now, g.due, g.created_at,
           g.fence, g.scheduled_at, g.job_version, g.target, g.job_id, g.body_id, g.replay_of, g.result, g.reason, g.error,
           g.start_by, g.deadline
    FROM gone g, clock
), dead AS (
    INSERT INTO mainspring.dead_letter (run_id, tenant, task, queue, at, fingerprint)
    SELECT g.id, g.tenant, (SELECT b.task FROM mainspring.body b WHERE b.bucket = g.body_bucket AND b.id = coalesce(g.body_id, g.id)),
           g.queue, clock.now, g.fingerprint
    FROM gone g, clock WHERE g.state = :FAILED
    ON CONFLICT (run_id) DO NOTHING
), parents AS (
    INSERT INTO mainspring.ended_parent (run_id, state, at)
    SELECT g.id, g.state, clock.now FROM gone g, clock WHERE g.has_children ON CONFLICT DO NOTHING
), emitted AS (
    INSERT INTO mainspring.outbox (at, kind, tenant, runs)
    SELECT clock.now, e.kind, e.tenant, e.runs
    FROM clock, (SELECT CASE g.state WHEN :SUCCEEDED THEN 'run.succeeded' WHEN :FAILED THEN 'run.failed' WHEN :CANCELLED THEN 'run.cancelled'
                                     ELSE 'run.skipped' END AS kind, g.tenant, array_agg(g.id) AS runs
                 FROM gone g GROUP BY 1, 2) AS e
    WHERE EXISTS (SELECT FROM mainspring.outbox_cursor)
)
-- was: the state before; null if nothing changed; 0: cancelling.
SELECT id, state, key_lock, CASE WHEN origin = :ORIGIN_FIXED_DELAY THEN job_id END AS delayed_job, tenant, was, limits, has_children, waits, outcome,
       started_at
FROM gone
UNION ALL SELECT h.id, h.state, NULL, NULL, h.tenant, NULL, NULL, NULL, NULL, NULL, NULL FROM mainspring.history h
          WHERE h.id = ANY (:runs::uuid[])
