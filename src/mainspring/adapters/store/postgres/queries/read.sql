-- name: now
SELECT mainspring.now_us()

-- name: runs
SELECT r.id, r.state, b.task, r.queue, r.tenant, r.priority, r.attempt, r.due, r.created_at, r.lost, r.fence, NULL AS reason,
       r.job_id, r.scheduled_at, r.started_at, NULL::bigint AS finished_at, r.cancel_at, NULL::bytea AS result,
       NULL::text AS error
FROM mainspring.run r JOIN mainspring.body b ON b.bucket = r.body_bucket AND b.id = coalesce(r.body_id, r.id)
WHERE r.id = ANY ($1::uuid[])
UNION ALL
SELECT w.id, w.state, b.task, w.queue, w.tenant, w.priority, w.attempt, w.due, w.created_at, w.lost, w.fence, w.reason,
       w.job_id, w.scheduled_at, NULL, NULL, w.cancel_at, NULL, NULL
FROM mainspring.waiting w JOIN mainspring.body b ON b.bucket = w.body_bucket AND b.id = coalesce(w.body_id, w.id)
WHERE w.id = ANY ($1::uuid[])
UNION ALL
SELECT h.id, h.state, b.task, h.queue, h.tenant, h.priority, h.attempt, h.due, h.created_at, h.lost, h.fence, h.reason,
       h.job_id, h.scheduled_at, h.started_at, h.finished_at, NULL, h.result, h.error
FROM mainspring.history h
LEFT JOIN LATERAL (SELECT b.task FROM mainspring.body b
                   WHERE b.bucket IN (h.body_bucket, -1) AND b.id = coalesce(h.body_id, h.id) LIMIT 1) AS b ON true
WHERE h.id = ANY ($1::uuid[])

-- name: attempts
SELECT run_id, fence, number, outcome, reason, error, coalesce(started_at, ended_at) AS started_at, ended_at
FROM mainspring.attempt WHERE run_id = $1 ORDER BY fence

-- name: ledger
SELECT job_id, scheduled_at, decision, reason, run_id, job_version, epoch, ticks, last_at
FROM mainspring.ledger WHERE job_id = $1 AND scheduled_at >= $2 AND scheduled_at < $3 ORDER BY scheduled_at LIMIT $4

-- name: depths
SELECT n.name, count(*) FILTER (WHERE r.state = 3) AS queued, count(*) FILTER (WHERE r.state = 4) AS running,
       min(r.due) FILTER (WHERE r.state = 3) AS oldest_due
FROM mainspring.run r JOIN mainspring.name n ON n.id = r.queue GROUP BY n.name ORDER BY n.name

-- name: attach_reader
INSERT INTO mainspring.outbox_cursor (reader, position)
VALUES ($1, coalesce((SELECT max(id) FROM mainspring.outbox), 0)) ON CONFLICT DO NOTHING

-- name: detach_reader
DELETE FROM mainspring.outbox_cursor WHERE reader = $1

-- name: events
-- None that a transaction still under way could precede: ids are given out before commits.
SELECT o.id, o.at, o.kind, o.runs FROM mainspring.outbox o, mainspring.outbox_cursor c
WHERE c.reader = $1 AND o.id > c.position AND o.xid < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY o.id LIMIT $2

-- name: acknowledge
UPDATE mainspring.outbox_cursor SET position = $2 WHERE reader = $1 AND position < $2

-- name: intern
INSERT INTO mainspring.name (kind, name) SELECT $1, name FROM unnest($2::text[]) AS name ORDER BY name ON CONFLICT DO NOTHING

-- name: names
SELECT id, kind, name FROM mainspring.name
