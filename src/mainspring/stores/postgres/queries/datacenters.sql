-- name: datacenters
SELECT s.datacenter AS name,
       count(*) FILTER (WHERE s.kind = :WORKER AND s.live AND s.lease_until > clock.now AND NOT s.draining) AS workers,
       count(*) FILTER (WHERE s.kind = :WORKER AND s.live AND s.lease_until > clock.now AND s.draining) AS draining,
       count(*) FILTER (WHERE s.kind = :SCHEDULER AND s.live AND s.lease_until > clock.now) AS schedulers,
       max(least(s.lease_until, s.ended_at, clock.now)) FILTER (WHERE s.kind = :WORKER) AS seen_at,
       max(clock.now) AS now
FROM mainspring.session s, (SELECT mainspring.now_us() AS now) AS clock
WHERE s.datacenter <> '' GROUP BY s.datacenter ORDER BY s.datacenter

-- name: orders
-- Only a preference has a > in its label.
SELECT n.id AS claim_group, n.name AS requires, o.serving, o.why, o.since
FROM mainspring.name n LEFT JOIN mainspring.datacenter_order o ON o.claim_group = n.id
WHERE n.kind = :LABEL_SET_NAME AND strpos(n.name, '>') > 0 ORDER BY n.id

-- name: move_orders
-- Preferences that another data center serves from now on. Of two concurrent calls, only one returns the move.
INSERT INTO mainspring.datacenter_order AS o (claim_group, serving, why, since)
SELECT i.claim_group, i.serving, i.why, mainspring.now_us()
FROM unnest(:claim_groups::int[], :servings::text[], :reasons::text[]) AS i(claim_group, serving, why) ORDER BY i.claim_group
ON CONFLICT (claim_group) DO UPDATE SET serving = excluded.serving, why = excluded.why WHERE o.serving <> excluded.serving
RETURNING claim_group

-- name: share_orders
-- Grants the claim groups of preferences to the workers of the serving data center only. Writes nothing if they have them already.
UPDATE mainspring.session s
SET claim_groups = nullif(ARRAY(SELECT l FROM unnest(s.claim_groups) AS l WHERE l <> ALL (:claim_groups::int[]) UNION ALL
                         SELECT o.claim_group FROM unnest(:claim_groups::int[], :servings::text[], :other_labels::text[]) AS o(claim_group, serving, besides)
                         WHERE o.serving = s.datacenter AND string_to_array(o.besides, ',') <@ s.labels), '{}')
FROM (
    SELECT w.id FROM mainspring.session w WHERE w.kind = :WORKER AND w.live AND EXISTS (
        SELECT FROM unnest(:claim_groups::int[], :servings::text[], :other_labels::text[]) AS o(claim_group, serving, besides)
        WHERE (o.claim_group = ANY (coalesce(w.claim_groups, '{}')))
              <> (o.serving = w.datacenter AND string_to_array(o.besides, ',') <@ w.labels))
    ORDER BY w.id FOR UPDATE
) AS these
WHERE s.id = these.id

-- name: record_preference_move
-- Notes the move in the ledger, for ticks of a claim group whose runs have not started. Only recurring jobs have ticks.
UPDATE mainspring.ledger l SET reason = :reason
FROM (
    SELECT r.job_id, r.scheduled_at, r.id FROM mainspring.run r
    WHERE r.state = :QUEUED AND r.job_id IS NOT NULL AND r.claim_group = ANY (:claim_groups::int[])
    UNION ALL
    SELECT w.job_id, w.scheduled_at, w.id FROM mainspring.waiting w
    WHERE w.job_id IS NOT NULL AND w.claim_group = ANY (:claim_groups::int[])
) AS t
WHERE l.job_id = t.job_id AND l.scheduled_at = t.scheduled_at AND l.run_id = t.id
  AND (l.reason = '' OR starts_with(l.reason, 'moved to ') OR starts_with(l.reason, 'moved back to '))

-- name: claim_groups_of_label_set
-- The claim groups of tenants and priorities that have a label set.
SELECT id FROM mainspring.name WHERE kind = :CLAIM_GROUP_NAME AND split_part(name, ':', 2) = :claim_group::int::text

-- name: datacenter_loads
WITH claim_groups AS MATERIALIZED (
    SELECT n.id, CASE WHEN strpos(n.name, '>') > 0 THEN o.serving ELSE substring(n.name from '(?:^|,)datacenter=([^,>]+)') END
                 AS datacenter
    FROM mainspring.name n LEFT JOIN mainspring.datacenter_order o ON o.claim_group = n.id WHERE n.kind = :LABEL_SET_NAME
), served AS MATERIALIZED (
    SELECT id, datacenter FROM claim_groups WHERE datacenter IS NOT NULL
    UNION ALL
    SELECT n.id, l.datacenter FROM mainspring.name n JOIN claim_groups l ON l.id::text = split_part(n.name, ':', 2)
    WHERE n.kind = :CLAIM_GROUP_NAME AND l.datacenter IS NOT NULL
), counted AS (
    SELECT s.datacenter AS name, count(*) AS queued, 0 AS running, min(r.due) AS oldest_due
    FROM mainspring.run r JOIN served s ON s.id = r.claim_group WHERE r.state = :QUEUED GROUP BY s.datacenter
    UNION ALL
    SELECT s.datacenter, 0, count(*), NULL
    FROM mainspring.run r JOIN mainspring.session s ON s.id = r.session
    WHERE r.state = :RUNNING AND s.datacenter <> '' GROUP BY s.datacenter
)
SELECT name, sum(queued)::bigint AS queued, sum(running)::bigint AS running, min(oldest_due) AS oldest_due
FROM counted GROUP BY name ORDER BY name

-- name: active_in_datacenter
-- The live runs of a job for one data center, or for none.
SELECT a.id, a.state, a.key_lock
FROM (SELECT id, state, key_lock, scheduled_at FROM mainspring.waiting WHERE job_id = :job
      UNION ALL SELECT id, state, key_lock, scheduled_at FROM mainspring.run WHERE job_id = :job) AS a
LEFT JOIN mainspring.ledger l ON l.job_id = :job AND l.scheduled_at = a.scheduled_at AND l.run_id = a.id
WHERE l.target IS NULL OR l.target IN ('', :target)

-- name: unstopped_in_datacenter
SELECT a.id
FROM (SELECT id, scheduled_at FROM mainspring.waiting WHERE job_id = :job
      UNION ALL SELECT id, scheduled_at FROM mainspring.run WHERE job_id = :job AND cancel_at IS NULL) AS a
LEFT JOIN mainspring.ledger l ON l.job_id = :job AND l.scheduled_at = a.scheduled_at AND l.run_id = a.id
WHERE l.target IS NULL OR l.target IN ('', :target)

-- name: add_datacenter_bodies
-- The payload of a version, with a policy that names a data center.
INSERT INTO mainspring.body (bucket, id, task, policy, payload, tenant)
SELECT b.bucket, i.id, b.task, i.policy, b.payload, b.tenant
FROM unnest(:bodies::uuid[], :versions::uuid[], :policies::bytea[]) AS i(id, of_version, policy)
JOIN mainspring.body b ON b.bucket = :FOREVER_BUCKET AND b.id = i.of_version
ON CONFLICT (bucket, id) DO UPDATE SET task = excluded.task, policy = excluded.policy, payload = excluded.payload

-- name: add_classed_bodies
-- The payload of a version, in the bucket of a retention class.
INSERT INTO mainspring.body (bucket, id, task, policy, payload, tenant)
SELECT i.bucket, b.id, b.task, i.policy, b.payload, b.tenant
FROM unnest(:buckets::int[], :bodies::uuid[], :policies::bytea[]) AS i(bucket, id, policy)
JOIN mainspring.body b ON b.bucket = :FOREVER_BUCKET AND b.id = i.id
ON CONFLICT (bucket, id) DO UPDATE SET task = excluded.task, policy = excluded.policy, payload = excluded.payload

-- name: set_datacenter
UPDATE mainspring.session SET datacenter = :datacenter, version = :version WHERE id = :session AND (datacenter, version) <> (:datacenter, :version)
