-- name: renew
-- Extends the lease even if it has run out but was not expired yet. The next statement expires the other members.
UPDATE mainspring.session s SET lease_until = clock.now + :ttl::bigint
FROM (SELECT mainspring.now_us() AS now) AS clock
WHERE s.id = :member AND s.live
RETURNING clock.now

-- name: expire_members
-- Schedulers only, so that no lease waits for a new event reader. The reaper expires workers, together with their runs.
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
-- Locks expired leases before taking their shards, so that a renewal is either before this or after it.
-- Owners are listed first: an owner that appeared while this waited for a lock is not in the list, and keeps its shards.
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
    FOR UPDATE SKIP LOCKED))
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
-- The coordinator has granted these shards: the previous owner does not matter, the epoch does. Rows are locked in order, so two
-- concurrent calls do not deadlock, and the second one finds a higher epoch.
UPDATE mainspring.shard h SET owner = :member, epoch = h.epoch + 1
WHERE h.id = ANY (ARRAY(
    SELECT f.id FROM mainspring.shard f, unnest(:shards::smallint[], :epochs::bigint[]) AS given(id, epoch)
    WHERE f.id = given.id AND f.epoch = given.epoch AND f.owner IS DISTINCT FROM :member
    ORDER BY f.id FOR UPDATE OF f))
  AND EXISTS (SELECT FROM mainspring.session s WHERE s.id = :member AND s.live AND s.lease_until > mainspring.now_us())
RETURNING h.id, h.epoch
