-- name: places
SELECT s.datacenter AS name,
       count(*) FILTER (WHERE s.kind = :WORKER AND s.live AND s.lease_until > clock.now AND NOT s.draining) AS workers,
       count(*) FILTER (WHERE s.kind = :WORKER AND s.live AND s.lease_until > clock.now AND s.draining) AS draining,
       count(*) FILTER (WHERE s.kind = :SCHEDULER AND s.live AND s.lease_until > clock.now) AS schedulers,
       max(least(s.lease_until, s.ended_at, clock.now)) FILTER (WHERE s.kind = :WORKER) AS seen_at,
       max(clock.now) AS now
FROM mainspring.session s, (SELECT mainspring.now_us() AS now) AS clock
WHERE s.datacenter <> '' GROUP BY s.datacenter ORDER BY s.datacenter

-- name: orders
-- Only the word of an order has a > in it.
SELECT n.id AS lane, n.name AS requires, o.serving, o.why, o.since
FROM mainspring.name n LEFT JOIN mainspring.datacenter_order o ON o.lane = n.id
WHERE n.kind = :LABEL_SET_NAME AND strpos(n.name, '>') > 0 ORDER BY n.id

-- name: move_orders
-- Those that somebody else serves from now on. Of two who come at once one is told that it moved something.
INSERT INTO mainspring.datacenter_order AS o (lane, serving, why, since)
SELECT i.lane, i.serving, i.why, mainspring.now_us()
FROM unnest(:lanes::int[], :servings::text[], :reasons::text[]) AS i(lane, serving, why) ORDER BY i.lane
ON CONFLICT (lane) DO UPDATE SET serving = excluded.serving, why = excluded.why WHERE o.serving <> excluded.serving
RETURNING lane

-- name: share_orders
-- The lanes of orders belong to the workers where they are served, and to nobody else. Nothing is written while that is so.
UPDATE mainspring.session s
SET lanes = nullif(ARRAY(SELECT l FROM unnest(s.lanes) AS l WHERE l <> ALL (:lanes::int[]) UNION ALL
                         SELECT o.lane FROM unnest(:lanes::int[], :servings::text[], :other_labels::text[]) AS o(lane, serving, besides)
                         WHERE o.serving = s.datacenter AND string_to_array(o.besides, ',') <@ s.labels), '{}')
FROM (
    SELECT w.id FROM mainspring.session w WHERE w.kind = :WORKER AND w.live AND EXISTS (
        SELECT FROM unnest(:lanes::int[], :servings::text[], :other_labels::text[]) AS o(lane, serving, besides)
        WHERE (o.lane = ANY (coalesce(w.lanes, '{}')))
              <> (o.serving = w.datacenter AND string_to_array(o.besides, ',') <@ w.labels))
    ORDER BY w.id FOR UPDATE
) AS these
WHERE s.id = these.id

-- name: note_move
-- What the ledger says of the ticks of a lane whose runs have not started. Recurring jobs only: others have no tick.
UPDATE mainspring.ledger l SET reason = :reason
FROM (
    SELECT r.job_id, r.scheduled_at, r.id FROM mainspring.run r
    WHERE r.state = :QUEUED AND r.job_id IS NOT NULL AND r.lane = ANY (:lanes::int[])
    UNION ALL
    SELECT w.job_id, w.scheduled_at, w.id FROM mainspring.waiting w
    WHERE w.job_id IS NOT NULL AND w.lane = ANY (:lanes::int[])
) AS t
WHERE l.job_id = t.job_id AND l.scheduled_at = t.scheduled_at AND l.run_id = t.id
  AND (l.reason = '' OR starts_with(l.reason, 'moved to ') OR starts_with(l.reason, 'moved back to '))

-- name: turns_of
-- The lanes of tenants and priorities that stand for a lane.
SELECT id FROM mainspring.name WHERE kind = :CLAIM_GROUP_NAME AND split_part(name, ':', 2) = :lane::int::text

-- name: place_loads
WITH lanes AS MATERIALIZED (
    SELECT n.id, CASE WHEN strpos(n.name, '>') > 0 THEN o.serving ELSE substring(n.name from '(?:^|,)datacenter=([^,>]+)') END
                 AS place
    FROM mainspring.name n LEFT JOIN mainspring.datacenter_order o ON o.lane = n.id WHERE n.kind = :LABEL_SET_NAME
), served AS MATERIALIZED (
    SELECT id, place FROM lanes WHERE place IS NOT NULL
    UNION ALL
    SELECT n.id, l.place FROM mainspring.name n JOIN lanes l ON l.id::text = split_part(n.name, ':', 2)
    WHERE n.kind = :CLAIM_GROUP_NAME AND l.place IS NOT NULL
), counted AS (
    SELECT s.place AS name, count(*) AS queued, 0 AS running, min(r.due) AS oldest_due
    FROM mainspring.run r JOIN served s ON s.id = r.lane WHERE r.state = :QUEUED GROUP BY s.place
    UNION ALL
    SELECT s.datacenter, 0, count(*), NULL
    FROM mainspring.run r JOIN mainspring.session s ON s.id = r.session
    WHERE r.state = :RUNNING AND s.datacenter <> '' GROUP BY s.datacenter
)
SELECT name, sum(queued)::bigint AS queued, sum(running)::bigint AS running, min(oldest_due) AS oldest_due
FROM counted GROUP BY name ORDER BY name

-- name: active_in_place
-- What is on its way of a job in one data centre, or in none.
SELECT a.id, a.state, a.gate
FROM (SELECT id, state, gate, scheduled_at FROM mainspring.waiting WHERE job_id = :job
      UNION ALL SELECT id, state, gate, scheduled_at FROM mainspring.run WHERE job_id = :job) AS a
LEFT JOIN mainspring.ledger l ON l.job_id = :job AND l.scheduled_at = a.scheduled_at AND l.run_id = a.id
WHERE l.target IS NULL OR l.target IN ('', :target)

-- name: unstopped_in_place
SELECT a.id
FROM (SELECT id, scheduled_at FROM mainspring.waiting WHERE job_id = :job
      UNION ALL SELECT id, scheduled_at FROM mainspring.run WHERE job_id = :job AND cancel_at IS NULL) AS a
LEFT JOIN mainspring.ledger l ON l.job_id = :job AND l.scheduled_at = a.scheduled_at AND l.run_id = a.id
WHERE l.target IS NULL OR l.target IN ('', :target)

-- name: add_place_bodies
-- The payload of a version for one data centre, with a policy that names it.
INSERT INTO mainspring.body (bucket, id, task, policy, payload, tenant)
SELECT b.bucket, i.id, b.task, i.policy, b.payload, b.tenant
FROM unnest(:bodies::uuid[], :versions::uuid[], :policies::bytea[]) AS i(id, of_version, policy)
JOIN mainspring.body b ON b.bucket = :FOREVER_BUCKET AND b.id = i.of_version
ON CONFLICT (bucket, id) DO UPDATE SET task = excluded.task, policy = excluded.policy, payload = excluded.payload

-- name: add_classed_bodies
-- The payload of a version for runs of a class of retention: where such runs look for theirs.
INSERT INTO mainspring.body (bucket, id, task, policy, payload, tenant)
SELECT i.bucket, b.id, b.task, i.policy, b.payload, b.tenant
FROM unnest(:buckets::int[], :bodies::uuid[], :policies::bytea[]) AS i(bucket, id, policy)
JOIN mainspring.body b ON b.bucket = :FOREVER_BUCKET AND b.id = i.id
ON CONFLICT (bucket, id) DO UPDATE SET task = excluded.task, policy = excluded.policy, payload = excluded.payload

-- name: say_where
UPDATE mainspring.session SET datacenter = :datacenter, version = :version WHERE id = :session AND (datacenter, version) <> (:datacenter, :version)
