-- name: lock_limiters
-- Locks limiters in the order of their numbers, with the other limiters of the runs that they block: of each as many runs as may
-- be admitted. Blocked runs are read without a lock, and may have changed when the limiters are locked.
WITH wanted AS MATERIALIZED (
    SELECT n.number FROM unnest(:numbers::bigint[]) AS n(number)
    UNION
    SELECT g.number FROM unnest(:numbers::bigint[], :peeks::int[]) AS n(number, most), LATERAL (
        SELECT w.limits FROM mainspring.waiting w
        WHERE w.state = :BLOCKED_BY_LIMIT AND w.waits = n.number ORDER BY w.due, w.id LIMIT n.most
    ) AS w, LATERAL mainspring.unpack_limits(w.limits) AS g WHERE cardinality(w.limits) > 5
)
SELECT l.number, l.kind, l.used, l.times, l.open_until, l.head, l.recalls, mainspring.now_us() AS now
FROM mainspring.limiter l WHERE l.number = ANY (ARRAY(SELECT number FROM wanted)) ORDER BY l.number FOR UPDATE

-- name: make_limiters
INSERT INTO mainspring.limiter (number, kind)
SELECT i.number, i.kind FROM unnest(:numbers::bigint[], :kinds::smallint[]) AS i(number, kind) ORDER BY i.number
ON CONFLICT DO NOTHING
RETURNING number, kind, used, times, open_until, head, recalls, mainspring.now_us() AS now

-- name: try_limiters
-- Locks more limiters without waiting, since they may be out of order.
SELECT number, kind, used, times, open_until, head, recalls, mainspring.now_us() AS now
FROM mainspring.limiter WHERE number = ANY (:numbers::bigint[]) FOR UPDATE SKIP LOCKED

-- name: runs_blocked_by_limiters
-- The first blocked runs of each limiter, as many as there is room. A transaction that has locked a limiter does not wait for a run.
SELECT n.number AS waits, w.id, w.due, w.queue, w.limits
FROM unnest(:numbers::bigint[], :limits::int[]) AS n(number, most), LATERAL (
    SELECT w.id, w.due, w.queue, w.limits FROM mainspring.waiting w
    WHERE w.state = :BLOCKED_BY_LIMIT AND w.waits = n.number AND w.id <> ALL (:seen::uuid[])
    ORDER BY w.due, w.id LIMIT n.most FOR UPDATE SKIP LOCKED
) AS w

-- name: block_by_limiters
-- Blocks locked waiting rows by a limiter. They keep their ordering key.
UPDATE mainspring.waiting w SET state = :BLOCKED_BY_LIMIT, waits = i.number, holds = w.key_lock IS NOT NULL
FROM unnest(:runs::uuid[], :numbers::bigint[]) AS i(id, number) WHERE w.id = ANY (:runs::uuid[]) AND w.id = i.id

-- name: save_limiters
-- The last step: reads which runs are blocked now. wake_at is set only if there are any.
UPDATE mainspring.limiter l
SET used = i.used, times = coalesce(i.times::bigint[], l.times), open_until = i.open_until,
    forget_at = greatest(l.forget_at, i.forget_at), head = w.most, wake_at = CASE WHEN w.most IS NOT NULL THEN i.wake_at END,
    recalls = i.recalls AND EXISTS (
        SELECT FROM mainspring.run r WHERE r.limits[1] = :LIMIT_BREAKER AND r.limits[2] = l.number AND r.state = :QUEUED)
FROM unnest(:number::bigint[], :used::int[], :times::text[], :open_until::bigint[], :forget_at::bigint[], :recalls::boolean[], :wake_at::bigint[])
         AS i(number, used, times, open_until, forget_at, recalls, wake_at),
     LATERAL (SELECT (SELECT max(g.most)::int FROM mainspring.unpack_limits(first.limits) AS g WHERE g.number = i.number) AS most
              FROM (SELECT) AS one LEFT JOIN LATERAL (
                  SELECT w.limits FROM mainspring.waiting w WHERE w.state = :BLOCKED_BY_LIMIT AND w.waits = i.number
                  ORDER BY w.due, w.id LIMIT 1) AS first ON true) AS w
WHERE l.number = ANY (:number::bigint[]) AND l.number = i.number

-- name: due_limiters
SELECT number, kind FROM mainspring.limiter WHERE wake_at <= mainspring.now_us() ORDER BY wake_at LIMIT :limit

-- name: recalling_limiters
SELECT number, kind FROM mainspring.limiter WHERE recalls ORDER BY number LIMIT :limit

-- name: runs_queued_behind_breakers
-- Runs that were admitted before the breaker opened and have not started.
SELECT r.id, r.limits FROM unnest(:breakers::bigint[]) AS b(number), LATERAL (
    SELECT r.id, r.limits FROM mainspring.run r
    WHERE r.limits[1] = :LIMIT_BREAKER AND r.limits[2] = b.number AND r.state = :QUEUED LIMIT :limit FOR UPDATE SKIP LOCKED
) AS r

-- name: recall_runs
-- Blocks locked queued runs by their breaker again. They keep their rank.
WITH back AS (
    DELETE FROM mainspring.run WHERE id = ANY (:runs::uuid[]) RETURNING *
)
INSERT INTO mainspring.waiting (id, shard, state, priority, attempt, lost, tenant, queue, claim_group, body_bucket, due, created_at,
                                timeout, fence, late, holds, start_by, deadline, key_lock, scheduled_at, job_id, job_version,
                                body_id, replay_of, target, origin, limits, has_children, waits, rank)
SELECT b.id, b.shard, :BLOCKED_BY_LIMIT, b.priority, b.attempt, b.lost, b.tenant, b.queue, b.claim_group, b.body_bucket, b.due, b.created_at,
       b.timeout, b.fence, b.attempt > 0, b.key_lock IS NOT NULL, b.start_by, b.deadline, b.key_lock, b.scheduled_at,
       b.job_id, b.job_version, b.body_id, b.replay_of, b.target, b.origin, b.limits, b.has_children, b.limits[2], b.rank
FROM back b

-- name: blocking_limiters
-- A check from first principles: limiters after `after`, by number, that block runs, with the first run of each.
WITH RECURSIVE key_lock AS (
    (SELECT w.waits, w.limits FROM mainspring.waiting w WHERE w.state = :BLOCKED_BY_LIMIT AND w.waits > :after
     ORDER BY w.waits, w.due, w.id LIMIT 1)
    UNION ALL
    SELECT n.waits, n.limits FROM key_lock g, LATERAL (
        SELECT w.waits, w.limits FROM mainspring.waiting w WHERE w.state = :BLOCKED_BY_LIMIT AND w.waits > g.waits
        ORDER BY w.waits, w.due, w.id LIMIT 1) AS n
)
SELECT g.waits AS number, g.limits, l.kind, l.used, l.times, l.open_until, l.recalls, l.wake_at, mainspring.now_us() AS now
FROM (SELECT * FROM key_lock LIMIT :limit) AS g LEFT JOIN mainspring.limiter l ON l.number = g.waits

-- name: unassigned_blocked_runs
-- Blocked runs without a limiter.
SELECT id, due, queue, limits FROM mainspring.waiting WHERE state = :BLOCKED_BY_LIMIT AND waits IS NULL LIMIT :limit FOR UPDATE SKIP LOCKED

-- name: limiters_with_wrong_counts
-- A check from first principles: the number of runs inside each limiter against its count, in one snapshot.
WITH inside AS MATERIALIZED (
    SELECT g.number, g.kind, count(*) FILTER (WHERE g.kind <> :LIMIT_PER_PERIOD OR r.state = :QUEUED) AS runs
    FROM (SELECT id, state, limits FROM mainspring.run WHERE limits IS NOT NULL) AS r, mainspring.unpack_limits(r.limits) AS g
    GROUP BY g.number, g.kind
)
SELECT coalesce(i.number, l.number) AS number, coalesce(i.kind, l.kind)::smallint AS kind
FROM inside i FULL JOIN (SELECT number, kind, used FROM mainspring.limiter WHERE used > 0) AS l ON l.number = i.number
WHERE CASE WHEN coalesce(i.kind, l.kind) = :LIMIT_BREAKER THEN i.number IS NULL ELSE coalesce(i.runs, 0) <> coalesce(l.used, 0) END
LIMIT :limit

-- name: limiter_holders
-- The limiters are locked. Of a breaker with holders, the count is unknown: only one of them is the probe.
SELECT n.number, i.runs FROM unnest(:numbers::bigint[]) AS n(number), LATERAL (
    SELECT count(*) FILTER (WHERE g.kind <> :LIMIT_PER_PERIOD OR r.state = :QUEUED)::int AS runs,
           coalesce(bool_or(g.kind = :LIMIT_BREAKER), false) AS breaker
    FROM mainspring.run r, mainspring.unpack_limits(r.limits) AS g WHERE r.limits IS NOT NULL AND g.number = n.number
) AS i WHERE NOT i.breaker

-- name: prune_limiters
DELETE FROM mainspring.limiter WHERE number = ANY (ARRAY(
    SELECT l.number FROM mainspring.limiter l
    WHERE l.used = 0 AND l.head IS NULL AND NOT l.recalls AND l.forget_at < mainspring.now_us()
      AND (l.open_until IS NULL OR l.open_until < mainspring.now_us() - :DAY)
    LIMIT :limit FOR UPDATE SKIP LOCKED))

-- name: due_rows
-- Due rows of waiting, locked.
SELECT id, key_lock, holds, queue, due, limits FROM mainspring.waiting
WHERE id = ANY (:runs::uuid[]) AND state = :SCHEDULED AND due <= mainspring.now_us() ORDER BY due, id FOR UPDATE
