-- name: renew
-- A lease that ran out unnoticed is extended; the expired are buried by the statement after.
UPDATE mainspring.session s SET lease_until = clock.now + :ttl::bigint
FROM (SELECT mainspring.now_us() AS now) AS clock
WHERE s.id = :member AND s.live
RETURNING clock.now

-- name: expire_members
-- Schedulers alone: nobody's lease waits for a reader of events who is just coming. Workers are buried with their runs.
UPDATE mainspring.session SET live = false, ended_at = now
FROM (SELECT mainspring.now_us() AS now) AS clock
WHERE id = ANY (ARRAY(
    SELECT s.id FROM mainspring.session s
    WHERE s.kind = :SCHEDULER AND s.live AND s.lease_until <= mainspring.now_us() FOR UPDATE SKIP LOCKED))

-- name: members
SELECT id, lease_until FROM mainspring.session WHERE kind = :SCHEDULER AND live ORDER BY id

-- name: owned
SELECT id, epoch FROM mainspring.shard WHERE owner = :member

-- name: take_shards
-- A lease that has run out is locked before its shards are taken, so that a renewal comes before this or after it.
-- Owners are listed first: one that came while this waited for a lock is in no list, and keeps what it took.
WITH owner AS MATERIALIZED (
    SELECT h.owner AS id FROM mainspring.shard h WHERE h.id = ANY (:shards::smallint[])
), expired AS MATERIALIZED (
    SELECT s.id FROM mainspring.session s
    WHERE s.live AND s.lease_until <= mainspring.now_us() AND s.id = ANY (ARRAY(SELECT id FROM owner))
    FOR UPDATE
), dead AS MATERIALIZED (
    SELECT o.id FROM owner o WHERE NOT EXISTS (SELECT FROM mainspring.session s WHERE s.id = o.id AND s.live)
)
UPDATE mainspring.shard h SET owner = :member, epoch = h.epoch + 1
WHERE h.id = ANY (ARRAY(
    SELECT f.id FROM mainspring.shard f
    WHERE f.id = ANY (:shards::smallint[])
      AND (f.owner IS NULL OR f.owner = ANY (ARRAY(SELECT id FROM expired UNION ALL SELECT id FROM dead)))
    ORDER BY f.id FOR UPDATE SKIP LOCKED))
  AND EXISTS (SELECT FROM mainspring.session s WHERE s.id = :member AND s.live AND s.lease_until > mainspring.now_us())
RETURNING h.id, h.epoch

-- name: release_shards
UPDATE mainspring.shard SET owner = NULL WHERE owner = :member AND id = ANY (:shards::smallint[])

-- name: report_clock
UPDATE mainspring.session SET clock_offset = :clock_offset, clock_error = :clock_error, knows = :knows, tzdata = :tzdata WHERE id = ANY (:sessions::bigint[])

-- name: leave
WITH left_behind AS (
    UPDATE mainspring.shard SET owner = NULL WHERE owner = :member
)
UPDATE mainspring.session SET live = false, ended_at = mainspring.now_us() WHERE id = :member AND live

-- name: epochs
SELECT id, epoch FROM mainspring.shard WHERE id = ANY (:shards::smallint[])

-- name: raise_epochs
-- Another engine has granted these: who owned them before does not matter, the epoch does. Locked in order: two who
-- seal at once do not wait for each other in a circle, and who comes second finds the epoch raised.
UPDATE mainspring.shard h SET owner = :member, epoch = h.epoch + 1
WHERE h.id = ANY (ARRAY(
    SELECT f.id FROM mainspring.shard f, unnest(:shards::smallint[], :epochs::bigint[]) AS given(id, epoch)
    WHERE f.id = given.id AND f.epoch = given.epoch AND f.owner IS DISTINCT FROM :member
    ORDER BY f.id FOR UPDATE OF f))
  AND EXISTS (SELECT FROM mainspring.session s WHERE s.id = :member AND s.live AND s.lease_until > mainspring.now_us())
RETURNING h.id, h.epoch
