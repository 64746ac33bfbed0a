-- name: membership
SELECT m.store_id, m.shards, s.set_id, s.number,
       ARRAY(SELECT p.id FROM mainspring.place p WHERE p.here ORDER BY p.id) AS places,
       ARRAY(SELECT p.version FROM mainspring.place p WHERE p.here ORDER BY p.id) AS versions,
       ARRAY(SELECT d.place FROM mainspring.departure d ORDER BY d.place) AS departing,
       ARRAY(SELECT d.target FROM mainspring.departure d ORDER BY d.place) AS targets,
       EXISTS (SELECT FROM mainspring.job) OR EXISTS (SELECT FROM mainspring.run) OR EXISTS (SELECT FROM mainspring.waiting)
           OR EXISTS (SELECT FROM mainspring.history) AS used
FROM mainspring.meta m LEFT JOIN mainspring.server s ON true

-- name: join_set
INSERT INTO mainspring.server (set_id, number) VALUES (:set_id, :number) ON CONFLICT DO NOTHING

-- name: set_places
-- Those that are here, and those that are on their way to others from the beginning.
WITH gone AS (
    INSERT INTO mainspring.departure (place, target, version)
    SELECT g.place, g.target, 1 FROM unnest(:departing::smallint[], :targets::smallint[]) AS g(place, target)
)
INSERT INTO mainspring.place (id, here, version)
SELECT p.id, p.id = ANY (:here::smallint[]), CASE WHEN p.id = ANY (:here || :departing::smallint[]) THEN 1 ELSE 0 END
FROM generate_series(0, :count::integer - 1) AS p(id)

-- name: shards_elsewhere
SELECT h.id FROM mainspring.shard h
WHERE h.id % (SELECT count(*)::integer FROM mainspring.place) <> ALL (ARRAY(SELECT p.id FROM mainspring.place p WHERE p.here))
ORDER BY h.id

-- name: last_session
SELECT coalesce(max(id), 0) FROM mainspring.session

-- name: adopt_session
-- A session of another server, under its number. One that was buried here while it lives elsewhere is brought back: what was
-- taken from it meanwhile has other fences.
INSERT INTO mainspring.session AS s
    (id, kind, name, datacenter, version, started_at, lease_until, lease, queues, tasks, owner, serves, labels, draining,
     priorities, slots)
OVERRIDING SYSTEM VALUE
SELECT :session, :kind, :name, :datacenter, :version, :started_at, now + :ttl::bigint, :lease, :queues, :tasks, :owner, :serves, :labels, :draining, :priorities, :slots
FROM (SELECT mainspring.now_us() AS now) AS clock
ON CONFLICT (id) DO UPDATE SET live = true, ended_at = NULL, lease_until = excluded.lease_until
RETURNING xmax <> 0 AS was_known

-- name: leave_place
UPDATE mainspring.place SET here = false, version = version + 1 WHERE id = :place AND here RETURNING version

-- name: note_departure
INSERT INTO mainspring.departure (place, target, version) VALUES (:place, :target, :version)

-- name: departed
SELECT kind, rows::text AS rows FROM mainspring.departed WHERE place = :place ORDER BY number

-- name: departure
SELECT place, target, version FROM mainspring.departure WHERE place = :place

-- name: hold_place
SELECT here, version FROM mainspring.place WHERE id = :place FOR UPDATE

-- name: take_place
UPDATE mainspring.place SET here = true, version = :version WHERE id = :place

-- name: forget_departed
WITH gone AS (DELETE FROM mainspring.departed WHERE place = ANY (:places::smallint[]))
DELETE FROM mainspring.departure WHERE place = ANY (:places::smallint[])
