-- name: stage
-- Queues due runs of the shards that the caller owns. The rows decide: a stale owner finds no shard, and two owners skip each other's
-- rows. Runs with limits, or with a key that they do not hold, are handled by due_with_limits.
WITH clock AS MATERIALIZED (
    SELECT mainspring.now_us() AS now
), mine AS MATERIALIZED (
    SELECT h.id FROM mainspring.shard h, mainspring.session s, clock
    WHERE h.id = ANY (:shards::smallint[]) AND h.owner = :owner AND s.id = :owner AND s.live AND s.lease_until > clock.now
), due AS (
    DELETE FROM mainspring.waiting WHERE id = ANY (ARRAY(
        SELECT d.id FROM mine, LATERAL (
            SELECT w.id FROM mainspring.waiting w
            WHERE w.shard = mine.id AND w.state = :SCHEDULED AND w.due <= (SELECT now FROM clock) AND (w.key_lock IS NULL OR w.holds)
              AND w.limits IS NULL
            ORDER BY w.due LIMIT :limit FOR UPDATE SKIP LOCKED
        ) AS d LIMIT :limit
    )) RETURNING *
), queued AS (
    INSERT INTO mainspring.run (id, shard, state, priority, attempt, lost, tenant, queue, claim_group, body_bucket, rank, due,
                                created_at, timeout, fence, start_by, deadline, key_lock, scheduled_at, job_id, job_version,
                                body_id, replay_of, target, origin, queued_at, has_children)
    SELECT d.id, d.shard, :QUEUED, d.priority, d.attempt, d.lost, d.tenant, d.queue, d.claim_group, d.body_bucket,
           clock.now + d.priority * :HEAD_START::bigint + CASE WHEN d.late THEN :LATE_PENALTY ELSE 0 END, d.due, d.created_at,
           d.timeout, d.fence, d.start_by, d.deadline, d.key_lock, d.scheduled_at, d.job_id, d.job_version, d.body_id,
           d.replay_of, d.target, d.origin, clock.now, d.has_children
    FROM due d, clock
), emitted AS (
    INSERT INTO mainspring.outbox (at, kind, tenant, runs)
    SELECT (SELECT now FROM clock), 'run.queued', tenant, array_agg(id) FROM due
    WHERE EXISTS (SELECT FROM mainspring.outbox_cursor) GROUP BY tenant
)
SELECT clock.now, (SELECT count(*) FROM due) AS runs, ARRAY(SELECT DISTINCT queue FROM due) AS queues,
       -- `OFFSET 0` keeps one index probe per shard.
       EXISTS (SELECT FROM mine WHERE EXISTS (
           SELECT FROM mainspring.schedule s WHERE s.shard = mine.id AND s.active AND s.next_fire <= (SELECT now FROM clock)
           OFFSET 0)) AS schedules_due,
       EXISTS (SELECT FROM mine WHERE EXISTS (
           SELECT FROM mainspring.waiting w
           WHERE w.shard = mine.id AND w.state = :SCHEDULED AND w.due <= (SELECT now FROM clock)
             AND (w.key_lock IS NOT NULL AND NOT w.holds OR w.limits IS NOT NULL)
           OFFSET 0)) AS gated,
       EXISTS (SELECT FROM mainspring.limiter l WHERE l.wake_at <= (SELECT now FROM clock)) AS waking
FROM clock

-- name: due_with_limits
-- Due runs that must take their key or pass their limits: locked here, moved after their keys and limiters are locked.
SELECT w.id, w.key_lock, w.holds, w.queue, w.due, w.limits, mainspring.now_us() AS now
FROM mainspring.shard h, mainspring.session s, LATERAL (
    SELECT id, key_lock, holds, queue, due, limits FROM mainspring.waiting w
    WHERE w.shard = h.id AND w.state = :SCHEDULED AND w.due <= mainspring.now_us()
      AND (w.key_lock IS NOT NULL AND NOT w.holds OR w.limits IS NOT NULL)
    ORDER BY w.due, w.id LIMIT :limit FOR UPDATE SKIP LOCKED
) AS w
WHERE h.id = ANY (:shards::smallint[]) AND h.owner = :owner AND s.id = :owner AND s.live AND s.lease_until > mainspring.now_us()
ORDER BY w.due, w.id LIMIT :limit

-- name: block_by_keys
UPDATE mainspring.waiting SET state = :BLOCKED WHERE id = ANY (:runs::uuid[])

-- name: queue_runs
-- Queues locked rows of waiting. `silent`: for these another event is emitted. A row in the state scheduled has just become due.
WITH clock AS MATERIALIZED (
    SELECT mainspring.now_us() AS now
), due AS (
    DELETE FROM mainspring.waiting WHERE id = ANY (:runs::uuid[]) RETURNING *
), emitted AS (
    INSERT INTO mainspring.outbox (at, kind, tenant, runs)
    SELECT (SELECT now FROM clock), 'run.queued', tenant, array_agg(id) FROM due
    WHERE id <> ALL (:silent::uuid[]) AND EXISTS (SELECT FROM mainspring.outbox_cursor) GROUP BY tenant
)
INSERT INTO mainspring.run (id, shard, state, priority, attempt, lost, tenant, queue, claim_group, body_bucket, rank, due, created_at,
                            timeout, fence, start_by, deadline, key_lock, scheduled_at, job_id, job_version, body_id,
                            replay_of, target, origin, queued_at, limits, has_children, ready_at)
SELECT d.id, d.shard, :QUEUED, d.priority, d.attempt, d.lost, d.tenant, d.queue, d.claim_group, d.body_bucket,
       coalesce(d.rank, clock.now + d.priority * :HEAD_START::bigint + CASE WHEN d.late THEN :LATE_PENALTY ELSE 0 END), d.due,
       d.created_at, d.timeout,
       d.fence, d.start_by, d.deadline, d.key_lock, d.scheduled_at, d.job_id, d.job_version, d.body_id, d.replay_of,
       d.target, d.origin, clock.now, d.limits, d.has_children, CASE WHEN d.state <> :SCHEDULED THEN clock.now END
FROM due d, clock

-- name: upcoming
-- (shard, due) entries for the timing wheel, rounded up to the millisecond, so that a look is never too early.
SELECT m.shard, m.due FROM unnest(:shards::smallint[]) AS s(id), LATERAL (
    SELECT DISTINCT w.shard, (w.due + 999) / 1000 * 1000 AS due FROM mainspring.waiting w
    WHERE w.shard = s.id AND w.state = :SCHEDULED AND w.due <= :until ORDER BY due LIMIT :limit
) AS m ORDER BY m.due LIMIT :limit

-- name: due_jobs
SELECT j.id, j.tenant, j.version, j.state, j.created_at, j.updated_at, s.next_fire, s.rev, v.spec, s.resume_at, s.paused_until,
       s.pause_why, s.tick, s.calendar_rev
FROM unnest(:shards::smallint[]) AS h(id), LATERAL (
    SELECT * FROM mainspring.schedule s
    WHERE s.shard = h.id AND s.active AND s.next_fire <= :until ORDER BY s.next_fire LIMIT :limit
) AS s
JOIN mainspring.job j ON j.id = s.job_id
JOIN mainspring.job_version v ON v.job_id = j.id AND v.version = j.version
ORDER BY s.next_fire LIMIT :limit
