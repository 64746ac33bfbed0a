-- name: lock_queue_policies
-- As lock_tenants: claims in progress finish first.
LOCK TABLE mainspring.queue_policy IN ACCESS EXCLUSIVE MODE

-- name: queue_policies
SELECT queue, policy FROM mainspring.queue_policy

-- name: queue_policy
SELECT policy FROM mainspring.queue_policy WHERE queue = :queue

-- name: put_queue_policy
INSERT INTO mainspring.queue_policy AS q (queue, policy, closely, fair, grouped, retries, per) VALUES (:queue, :policy, :closely, :fair, :fair, :retries, :per)
ON CONFLICT (queue) DO UPDATE
SET policy = :policy, closely = :closely OR q.grouped OR q.weighted, fair = :fair, grouped = q.grouped OR :fair, retries = :retries, per = :per

-- name: mark_weighted
INSERT INTO mainspring.queue_policy AS q (queue, policy, closely, fair, weighted)
SELECT queue, '{}', true, false, true FROM unnest(:queues::int[]) AS queue ORDER BY queue
ON CONFLICT (queue) DO UPDATE SET closely = true, weighted = true WHERE NOT q.weighted

-- name: mark_pooled
INSERT INTO mainspring.queue_policy AS q (queue, policy, closely, fair, grouped, pooled)
SELECT queue, '{}', true, false, true, true FROM unnest(:queues::int[]) AS queue ORDER BY queue
ON CONFLICT (queue) DO UPDATE SET closely = true, grouped = true, pooled = true WHERE NOT q.pooled

-- name: grouped_queues
SELECT queue, fair, pooled FROM mainspring.queue_policy WHERE fair OR pooled

-- name: policed
-- Queues with a policy that a claim must check.
SELECT queue FROM mainspring.queue_policy WHERE closely AND queue = ANY (:queues::int[])

-- name: lock_policies
-- Serializes claims of these queues; the next statement counts what other claims have taken.
SELECT queue, policy, fair, grouped, pooled, weighted, clock FROM mainspring.queue_policy
WHERE closely AND queue = ANY (:queues::int[]) ORDER BY queue FOR UPDATE

-- name: running_in_queue
SELECT count(*) FROM mainspring.run WHERE state = :RUNNING AND queue = :queue

-- name: active_claim_groups
-- The claim groups of a queue with queued runs, found by stepping from one to the next.
WITH RECURSIVE claim_groups AS (
    (SELECT claim_group FROM mainspring.run WHERE queue = :queue AND state = :QUEUED ORDER BY claim_group LIMIT 1)
    UNION ALL
    SELECT (SELECT r.claim_group FROM mainspring.run r WHERE r.queue = :queue AND r.state = :QUEUED AND r.claim_group > claim_groups.claim_group
            ORDER BY r.claim_group LIMIT 1)
    FROM claim_groups WHERE claim_groups.claim_group IS NOT NULL
)
SELECT l.claim_group, n.name FROM claim_groups l LEFT JOIN mainspring.name n ON n.id = l.claim_group AND n.kind = :CLAIM_GROUP_NAME WHERE l.claim_group IS NOT NULL

-- name: queue_fronts
-- Steps from one queue and claim group to the next, however many runs each has. A run with a target has a negative claim group.
WITH RECURSIVE front AS (
    (SELECT id, queue, claim_group FROM mainspring.run WHERE state = :QUEUED ORDER BY queue, claim_group, rank, id LIMIT 1)
    UNION ALL
    SELECT n.id, n.queue, n.claim_group FROM front f CROSS JOIN LATERAL (
        SELECT r.id, r.queue, r.claim_group FROM mainspring.run r
        WHERE r.state = :QUEUED AND (r.queue, r.claim_group) > (f.queue, f.claim_group) ORDER BY r.queue, r.claim_group, r.rank, r.id LIMIT 1
    ) AS n
)
SELECT id FROM front WHERE claim_group >= 0 LIMIT :limit

-- name: name_claim_groups
-- Adds the claim groups of stray runs. `claim_groups`: where the runs are; `bases`: their label sets; `fair`, `pooled`: whether tenants
-- and priorities have groups of their own.
INSERT INTO mainspring.name (kind, name)
SELECT DISTINCT :CLAIM_GROUP_NAME, CASE WHEN :fair THEN r.tenant ELSE 0 END || ':' || l.base || ':' || CASE WHEN :pooled THEN r.priority ELSE 0 END
FROM unnest(:claim_groups::int[], :bases::int[]) AS l(claim_group, base), LATERAL (
    SELECT tenant, priority FROM mainspring.run
    WHERE queue = :queue AND claim_group = l.claim_group AND state = :QUEUED ORDER BY rank, id LIMIT :limit
) AS r
ON CONFLICT DO NOTHING

-- name: move_to_claim_groups
WITH stray AS MATERIALIZED (
    SELECT r.id,
           CASE WHEN :fair THEN r.tenant ELSE 0 END || ':' || l.base || ':' || CASE WHEN :pooled THEN r.priority ELSE 0 END AS name
    FROM unnest(:claim_groups::int[], :bases::int[]) AS l(claim_group, base), LATERAL (
        SELECT id, tenant, priority FROM mainspring.run
        WHERE queue = :queue AND claim_group = l.claim_group AND state = :QUEUED ORDER BY rank, id LIMIT :limit FOR UPDATE SKIP LOCKED
    ) AS r
)
UPDATE mainspring.run SET claim_group = n.id
FROM stray s JOIN mainspring.name n ON n.kind = :CLAIM_GROUP_NAME AND n.name = s.name
WHERE run.id = s.id

-- name: best_of_claim_groups
-- The best runs of each claim group, except runs seen before and runs of tenants that are paused or have no room.
SELECT best.* FROM unnest(:claim_groups::int[], :limits::int[]) AS l(claim_group, most), LATERAL (
    SELECT r.id, r.tenant, r.claim_group, r.rank, CASE WHEN :weighted THEN (
        SELECT b.policy FROM mainspring.body b WHERE b.bucket = r.body_bucket AND b.id = coalesce(r.body_id, r.id)
    ) END AS policy
    FROM mainspring.run r
    WHERE r.queue = :queue AND r.claim_group = l.claim_group AND r.state = :QUEUED
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
