-- name: holder_of
SELECT g.holder FROM mainspring.waiting w JOIN mainspring.gate g ON g.key = w.gate WHERE w.id = :run AND w.state = :BLOCKED

-- name: owner_of
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
