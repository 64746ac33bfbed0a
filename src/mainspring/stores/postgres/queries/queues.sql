-- name: lock_queue_policies
-- As lock_tenants: whoever is just claiming ends first.
LOCK TABLE mainspring.queue_policy IN ACCESS EXCLUSIVE MODE

-- name: queue_policies
SELECT queue, policy FROM mainspring.queue_policy

-- name: queue_policy
SELECT policy FROM mainspring.queue_policy WHERE queue = $1

-- name: put_queue_policy
INSERT INTO mainspring.queue_policy AS q (queue, policy, closely, fair, laned, retries, per) VALUES ($1, $2, $3, $4, $4, $5, $6)
ON CONFLICT (queue) DO UPDATE
SET policy = $2, closely = $3 OR q.laned OR q.weighted, fair = $4, laned = q.laned OR $4, retries = $5, per = $6

-- name: mark_weighted
INSERT INTO mainspring.queue_policy AS q (queue, policy, closely, fair, weighted)
SELECT queue, '{}', true, false, true FROM unnest($1::int[]) AS queue ORDER BY queue
ON CONFLICT (queue) DO UPDATE SET closely = true, weighted = true WHERE NOT q.weighted

-- name: mark_pooled
INSERT INTO mainspring.queue_policy AS q (queue, policy, closely, fair, laned, pooled)
SELECT queue, '{}', true, false, true, true FROM unnest($1::int[]) AS queue ORDER BY queue
ON CONFLICT (queue) DO UPDATE SET closely = true, laned = true, pooled = true WHERE NOT q.pooled

-- name: laned_queues
SELECT queue, fair, pooled FROM mainspring.queue_policy WHERE fair OR pooled

-- name: policed
-- Queues that a claim must look at closely.
SELECT queue FROM mainspring.queue_policy WHERE closely AND queue = ANY ($1::int[])

-- name: lock_policies
-- One claim at a time of each of these; what others have claimed is counted by the next statement.
SELECT queue, policy, fair, laned, pooled, weighted, clock FROM mainspring.queue_policy
WHERE closely AND queue = ANY ($1::int[]) ORDER BY queue FOR UPDATE

-- name: running_of_queue
SELECT count(*) FROM mainspring.run WHERE state = 4 AND queue = $1

-- name: active_lanes
-- The lanes of a queue in which something is ready: a step from one to the next, whatever lies between them.
WITH RECURSIVE lanes AS (
    (SELECT lane FROM mainspring.run WHERE queue = $1 AND state = 3 ORDER BY lane LIMIT 1)
    UNION ALL
    SELECT (SELECT r.lane FROM mainspring.run r WHERE r.queue = $1 AND r.state = 3 AND r.lane > lanes.lane
            ORDER BY r.lane LIMIT 1)
    FROM lanes WHERE lanes.lane IS NOT NULL
)
SELECT l.lane, n.name FROM lanes l LEFT JOIN mainspring.name n ON n.id = l.lane AND n.kind = 5 WHERE l.lane IS NOT NULL

-- name: name_lanes
-- The lanes that strays belong to. Arguments: queue, the lanes they are in and what these would be otherwise, how many, whether
-- tenants have lanes, whether priorities have.
INSERT INTO mainspring.name (kind, name)
SELECT DISTINCT 5, CASE WHEN $5 THEN r.tenant ELSE 0 END || ':' || l.base || ':' || CASE WHEN $6 THEN r.priority ELSE 0 END
FROM unnest($2::int[], $3::int[]) AS l(lane, base), LATERAL (
    SELECT tenant, priority FROM mainspring.run
    WHERE queue = $1 AND lane = l.lane AND state = 3 ORDER BY rank, id LIMIT $4
) AS r
ON CONFLICT DO NOTHING

-- name: sort_lanes
WITH stray AS MATERIALIZED (
    SELECT r.id,
           CASE WHEN $5 THEN r.tenant ELSE 0 END || ':' || l.base || ':' || CASE WHEN $6 THEN r.priority ELSE 0 END AS name
    FROM unnest($2::int[], $3::int[]) AS l(lane, base), LATERAL (
        SELECT id, tenant, priority FROM mainspring.run
        WHERE queue = $1 AND lane = l.lane AND state = 3 ORDER BY rank, id LIMIT $4 FOR UPDATE SKIP LOCKED
    ) AS r
)
UPDATE mainspring.run SET lane = n.id
FROM stray s JOIN mainspring.name n ON n.kind = 5 AND n.name = s.name
WHERE run.id = s.id

-- name: best_of_lanes
-- The best of each of these lanes, but none of those seen before, nor of tenants that are paused or have no room.
SELECT best.* FROM unnest($2::int[], $3::int[]) AS l(lane, most), LATERAL (
    SELECT r.id, r.tenant, r.lane, r.rank, CASE WHEN $7 THEN (
        SELECT b.policy FROM mainspring.body b WHERE b.bucket = r.body_bucket AND b.id = coalesce(r.body_id, r.id)
    ) END AS policy
    FROM mainspring.run r
    WHERE r.queue = $1 AND r.lane = l.lane AND r.state = 3
      AND ($4::int IS NULL OR r.tenant = $4) AND r.tenant <> ALL ($5::int[]) AND r.id <> ALL ($6::uuid[])
      AND ($8::int IS NULL OR r.priority = $8)
      AND (r.start_by IS NULL OR r.attempt > 0 OR r.start_by >= mainspring.now_us())
      AND (r.deadline IS NULL OR r.deadline > mainspring.now_us())
    ORDER BY r.rank, r.id LIMIT l.most FOR UPDATE SKIP LOCKED
) AS best ORDER BY best.rank, best.id

-- name: turns
SELECT tenant, tag FROM mainspring.queue_turn WHERE queue = $1 AND tag > $2

-- name: set_clock
WITH behind AS (DELETE FROM mainspring.queue_turn WHERE queue = $1 AND tag <= $2)
UPDATE mainspring.queue_policy SET clock = $2 WHERE queue = $1

-- name: set_turns
INSERT INTO mainspring.queue_turn (queue, tenant, tag)
SELECT $1, i.tenant, i.tag FROM unnest($2::int[], $3::bigint[]) AS i(tenant, tag)
ON CONFLICT (queue, tenant) DO UPDATE SET tag = excluded.tag
