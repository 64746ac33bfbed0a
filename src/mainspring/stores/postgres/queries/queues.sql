-- name: lock_queue_policies
-- As lock_tenants: whoever is just claiming ends first.
LOCK TABLE mainspring.queue_policy IN ACCESS EXCLUSIVE MODE

-- name: queue_policies
SELECT queue, policy FROM mainspring.queue_policy

-- name: queue_policy
SELECT policy FROM mainspring.queue_policy WHERE queue = :queue

-- name: put_queue_policy
INSERT INTO mainspring.queue_policy AS q (queue, policy, closely, fair, laned, retries, per) VALUES (:queue, :policy, :closely, :fair, :fair, :retries, :per)
ON CONFLICT (queue) DO UPDATE
SET policy = :policy, closely = :closely OR q.laned OR q.weighted, fair = :fair, laned = q.laned OR :fair, retries = :retries, per = :per

-- name: mark_weighted
INSERT INTO mainspring.queue_policy AS q (queue, policy, closely, fair, weighted)
SELECT queue, '{}', true, false, true FROM unnest(:queues::int[]) AS queue ORDER BY queue
ON CONFLICT (queue) DO UPDATE SET closely = true, weighted = true WHERE NOT q.weighted

-- name: mark_pooled
INSERT INTO mainspring.queue_policy AS q (queue, policy, closely, fair, laned, pooled)
SELECT queue, '{}', true, false, true, true FROM unnest(:queues::int[]) AS queue ORDER BY queue
ON CONFLICT (queue) DO UPDATE SET closely = true, laned = true, pooled = true WHERE NOT q.pooled

-- name: laned_queues
SELECT queue, fair, pooled FROM mainspring.queue_policy WHERE fair OR pooled

-- name: policed
-- Queues that a claim must look at closely.
SELECT queue FROM mainspring.queue_policy WHERE closely AND queue = ANY (:queues::int[])

-- name: lock_policies
-- One claim at a time of each of these; what others have claimed is counted by the next statement.
SELECT queue, policy, fair, laned, pooled, weighted, clock FROM mainspring.queue_policy
WHERE closely AND queue = ANY (:queues::int[]) ORDER BY queue FOR UPDATE

-- name: running_of_queue
SELECT count(*) FROM mainspring.run WHERE state = :RUNNING AND queue = :queue

-- name: active_lanes
-- The lanes of a queue in which something is ready: a step from one to the next, whatever lies between them.
WITH RECURSIVE lanes AS (
    (SELECT lane FROM mainspring.run WHERE queue = :queue AND state = :QUEUED ORDER BY lane LIMIT 1)
    UNION ALL
    SELECT (SELECT r.lane FROM mainspring.run r WHERE r.queue = :queue AND r.state = :QUEUED AND r.lane > lanes.lane
            ORDER BY r.lane LIMIT 1)
    FROM lanes WHERE lanes.lane IS NOT NULL
)
SELECT l.lane, n.name FROM lanes l LEFT JOIN mainspring.name n ON n.id = l.lane AND n.kind = :CLAIM_GROUP_NAME WHERE l.lane IS NOT NULL

-- name: name_lanes
-- The lanes that strays belong to. Arguments: queue, the lanes they are in and what these would be otherwise, how many, whether
-- tenants have lanes, whether priorities have.
INSERT INTO mainspring.name (kind, name)
SELECT DISTINCT :CLAIM_GROUP_NAME, CASE WHEN :fair THEN r.tenant ELSE 0 END || ':' || l.base || ':' || CASE WHEN :pooled THEN r.priority ELSE 0 END
FROM unnest(:lanes::int[], :bases::int[]) AS l(lane, base), LATERAL (
    SELECT tenant, priority FROM mainspring.run
    WHERE queue = :queue AND lane = l.lane AND state = :QUEUED ORDER BY rank, id LIMIT :limit
) AS r
ON CONFLICT DO NOTHING

-- name: sort_lanes
WITH stray AS MATERIALIZED (
    SELECT r.id,
           CASE WHEN :fair THEN r.tenant ELSE 0 END || ':' || l.base || ':' || CASE WHEN :pooled THEN r.priority ELSE 0 END AS name
    FROM unnest(:lanes::int[], :bases::int[]) AS l(lane, base), LATERAL (
        SELECT id, tenant, priority FROM mainspring.run
        WHERE queue = :queue AND lane = l.lane AND state = :QUEUED ORDER BY rank, id LIMIT :limit FOR UPDATE SKIP LOCKED
    ) AS r
)
UPDATE mainspring.run SET lane = n.id
FROM stray s JOIN mainspring.name n ON n.kind = :CLAIM_GROUP_NAME AND n.name = s.name
WHERE run.id = s.id

-- name: best_of_lanes
-- The best of each of these lanes, but none of those seen before, nor of tenants that are paused or have no room.
SELECT best.* FROM unnest(:lanes::int[], :limits::int[]) AS l(lane, most), LATERAL (
    SELECT r.id, r.tenant, r.lane, r.rank, CASE WHEN :weighted THEN (
        SELECT b.policy FROM mainspring.body b WHERE b.bucket = r.body_bucket AND b.id = coalesce(r.body_id, r.id)
    ) END AS policy
    FROM mainspring.run r
    WHERE r.queue = :queue AND r.lane = l.lane AND r.state = :QUEUED
      AND (:tenant::int IS NULL OR r.tenant = :tenant) AND r.tenant <> ALL (:excluded_tenants::int[]) AND r.id <> ALL (:excluded_runs::uuid[])
      AND (:priority::int IS NULL OR r.priority = :priority)
      AND (r.start_by IS NULL OR r.attempt > 0 OR r.start_by >= mainspring.now_us())
      AND (r.deadline IS NULL OR r.deadline > mainspring.now_us())
    ORDER BY r.rank, r.id LIMIT l.most FOR UPDATE SKIP LOCKED
) AS best ORDER BY best.rank, best.id

-- name: turns
SELECT tenant, tag FROM mainspring.queue_turn WHERE queue = :queue AND tag > :clock

-- name: set_clock
WITH behind AS (DELETE FROM mainspring.queue_turn WHERE queue = :queue AND tag <= :clock)
UPDATE mainspring.queue_policy SET clock = :clock WHERE queue = :queue

-- name: set_turns
INSERT INTO mainspring.queue_turn (queue, tenant, tag)
SELECT :queue, i.tenant, i.tag FROM unnest(:tenants::int[], :tags::bigint[]) AS i(tenant, tag)
ON CONFLICT (queue, tenant) DO UPDATE SET tag = excluded.tag
