-- name: renew
-- A lease that ran out unnoticed is extended; the expired are buried by the statement after.
UPDATE mainspring.session s SET lease_until = clock.now + $2::bigint
FROM (SELECT mainspring.now_us() AS now) AS clock
WHERE s.id = $1 AND s.live
RETURNING clock.now

-- name: bury_members
-- Schedulers alone: nobody's lease waits for a reader of events who is just coming. Workers are buried with their runs.
UPDATE mainspring.session SET live = false, ended_at = now
FROM (SELECT mainspring.now_us() AS now) AS clock
WHERE id = ANY (ARRAY(
    SELECT s.id FROM mainspring.session s
    WHERE s.kind = 2 AND s.live AND s.lease_until <= mainspring.now_us() FOR UPDATE SKIP LOCKED))

-- name: members
SELECT id, lease_until FROM mainspring.session WHERE kind = 2 AND live ORDER BY id

-- name: owned
SELECT id, epoch FROM mainspring.shard WHERE owner = $1

-- name: take
-- A lease that has run out is locked before its shards are taken, so that a renewal comes before this or after it.
-- Owners are listed first: one that came while this waited for a lock is in no list, and keeps what it took.
WITH owner AS MATERIALIZED (
    SELECT h.owner AS id FROM mainspring.shard h WHERE h.id = ANY ($2::smallint[])
), expired AS MATERIALIZED (
    SELECT s.id FROM mainspring.session s
    WHERE s.live AND s.lease_until <= mainspring.now_us() AND s.id = ANY (ARRAY(SELECT id FROM owner))
    FOR UPDATE
), dead AS MATERIALIZED (
    SELECT o.id FROM owner o WHERE NOT EXISTS (SELECT FROM mainspring.session s WHERE s.id = o.id AND s.live)
)
UPDATE mainspring.shard h SET owner = $1, epoch = h.epoch + 1
WHERE h.id = ANY (ARRAY(
    SELECT f.id FROM mainspring.shard f
    WHERE f.id = ANY ($2::smallint[])
      AND (f.owner IS NULL OR f.owner = ANY (ARRAY(SELECT id FROM expired UNION ALL SELECT id FROM dead)))
    ORDER BY f.id FOR UPDATE SKIP LOCKED))
  AND EXISTS (SELECT FROM mainspring.session s WHERE s.id = $1 AND s.live AND s.lease_until > mainspring.now_us())
RETURNING h.id, h.epoch

-- name: give_up
UPDATE mainspring.shard SET owner = NULL WHERE owner = $1 AND id = ANY ($2::smallint[])

-- name: tell_clock
UPDATE mainspring.session SET clock_offset = $2, clock_error = $3, knows = $4, tzdata = $5 WHERE id = ANY ($1::bigint[])

-- name: leave
WITH left_behind AS (
    UPDATE mainspring.shard SET owner = NULL WHERE owner = $1
)
UPDATE mainspring.session SET live = false, ended_at = mainspring.now_us() WHERE id = $1 AND live

-- name: epochs
SELECT id, epoch FROM mainspring.shard WHERE id = ANY ($1::smallint[])

-- name: seal
-- Another engine has granted these: who owned them before does not matter, the epoch does. Locked in order: two who
-- seal at once do not wait for each other in a circle, and who comes second finds the epoch raised.
UPDATE mainspring.shard h SET owner = $1, epoch = h.epoch + 1
WHERE h.id = ANY (ARRAY(
    SELECT f.id FROM mainspring.shard f, unnest($2::smallint[], $3::bigint[]) AS given(id, epoch)
    WHERE f.id = given.id AND f.epoch = given.epoch AND f.owner IS DISTINCT FROM $1
    ORDER BY f.id FOR UPDATE OF f))
  AND EXISTS (SELECT FROM mainspring.session s WHERE s.id = $1 AND s.live AND s.lease_until > mainspring.now_us())
RETURNING h.id, h.epoch
