-- name: membership
SELECT m.store_id, m.shards, s.set_id, s.number,
       ARRAY(SELECT p.id FROM mainspring.placement_group p WHERE p.here ORDER BY p.id) AS groups,
       ARRAY(SELECT p.version FROM mainspring.placement_group p WHERE p.here ORDER BY p.id) AS versions,
       ARRAY(SELECT d.placement_group FROM mainspring.departure d ORDER BY d.placement_group) AS departing,
       ARRAY(SELECT d.target FROM mainspring.departure d ORDER BY d.placement_group) AS targets,
       EXISTS (SELECT FROM mainspring.job) OR EXISTS (SELECT FROM mainspring.run) OR EXISTS (SELECT FROM mainspring.waiting)
           OR EXISTS (SELECT FROM mainspring.history) AS used
FROM mainspring.meta m LEFT JOIN mainspring.server s ON true

-- name: join_set
INSERT INTO mainspring.server (set_id, number) VALUES (:set_id, :number) ON CONFLICT DO NOTHING

-- name: add_placement_groups
-- The groups that are here, and those that go to other servers from the start.
WITH gone AS (
    INSERT INTO mainspring.departure (placement_group, target, version)
    SELECT g.placement_group, g.target, 1 FROM unnest(:departing::smallint[], :targets::smallint[]) AS g(placement_group, target)
)
INSERT INTO mainspring.placement_group (id, here, version)
SELECT p.id, p.id = ANY (:here::smallint[]), CASE WHEN p.id = ANY (:here || :departing::smallint[]) THEN 1 ELSE 0 END
FROM generate_series(0, :count::integer - 1) AS p(id)

-- name: shards_elsewhere
SELECT h.id FROM mainspring.shard h
WHERE h.id % (SELECT count(*)::integer FROM mainspring.placement_group) <> ALL (ARRAY(SELECT p.id FROM mainspring.placement_group p WHERE p.here))
ORDER BY h.id

-- name: last_session
SELECT coalesce(max(id), 0) FROM mainspring.session

-- name: adopt_session
-- Registers a session of another server under its id. A session that expired here while it lives elsewhere is live again; its former
-- runs have other fences by now.
INSERT INTO mainspring.session AS s
    (id, kind, name, datacenter, version, started_at, lease_until, lease, queues, tasks, owner, serves, labels, draining,
     priorities, slots)
OVERRIDING SYSTEM VALUE
SELECT :session, :kind, :name, :datacenter, :version, :started_at, now + :ttl::bigint, :lease, :queues, :tasks, :owner, :serves, :labels, :draining, :priorities, :slots
FROM (SELECT mainspring.now_us() AS now) AS clock
ON CONFLICT (id) DO UPDATE SET live = true, ended_at = NULL, lease_until = excluded.lease_until
RETURNING xmax <> 0 AS was_known

-- name: release_placement_group
UPDATE mainspring.placement_group SET here = false, version = version + 1 WHERE id = :group AND here RETURNING version

-- name: add_departure
INSERT INTO mainspring.departure (placement_group, target, version) VALUES (:group, :target, :version)

-- name: departed
SELECT kind, rows::text AS rows FROM mainspring.departed WHERE placement_group = :group ORDER BY number

-- name: departure
SELECT placement_group, target, version FROM mainspring.departure WHERE placement_group = :group

-- name: lock_placement_group
SELECT here, version FROM mainspring.placement_group WHERE id = :group FOR UPDATE

-- name: take_placement_group
UPDATE mainspring.placement_group SET here = true, version = :version WHERE id = :group

-- name: delete_departures
WITH gone AS (DELETE FROM mainspring.departed WHERE placement_group = ANY (:groups::smallint[]))
DELETE FROM mainspring.departure WHERE placement_group = ANY (:groups::smallint[])
