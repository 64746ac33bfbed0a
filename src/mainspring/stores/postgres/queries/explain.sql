-- name: key_holder
SELECT g.holder FROM mainspring.waiting w JOIN mainspring.key_lock g ON g.key = w.key_lock WHERE w.id = :run AND w.state = :BLOCKED

-- name: shard_owner
SELECT s.*, 0 AS running, (SELECT count(*) FROM mainspring.shard o WHERE o.owner = s.id) AS shards
FROM mainspring.shard h JOIN mainspring.session s ON s.id = h.owner
WHERE h.id = :shard AND s.live AND s.lease_until > mainspring.now_us()

-- name: ledger_at
SELECT job_id, scheduled_at, decision, reason, run_id, job_version, epoch, ticks, last_at, target
FROM mainspring.ledger WHERE job_id = :job AND scheduled_at <= :at ORDER BY scheduled_at DESC, target DESC LIMIT 1

-- name: backfilled
SELECT scheduled_at, id FROM (
    SELECT scheduled_at, id FROM mainspring.run
    WHERE job_id = :job AND scheduled_at >= :since AND scheduled_at < :until AND origin = :ORIGIN_BACKFILL
    UNION ALL
    SELECT scheduled_at, id FROM mainspring.waiting
    WHERE job_id = :job AND scheduled_at >= :since AND scheduled_at < :until AND origin = :ORIGIN_BACKFILL
    UNION ALL
    SELECT scheduled_at, id FROM mainspring.history
    WHERE job_id = :job AND scheduled_at >= :since AND scheduled_at < :until AND origin = :ORIGIN_BACKFILL
) AS made
ORDER BY scheduled_at, id
