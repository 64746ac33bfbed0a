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
INSERT INTO mainspring.outbox_cursor (reader, xid, position)
SELECT $1, coalesce(o.xid, '0'), coalesce(o.id, 0)
FROM (SELECT) AS one LEFT JOIN (SELECT xid, id FROM mainspring.outbox ORDER BY xid DESC, id DESC LIMIT 1) AS o ON true
ON CONFLICT DO NOTHING

-- name: is_reader
SELECT EXISTS (SELECT FROM mainspring.outbox_cursor WHERE reader = $1)

-- name: lock_readers
-- Whoever changes a run asks for readers, so it holds this table until it commits: now nobody does.
LOCK TABLE mainspring.outbox_cursor IN ACCESS EXCLUSIVE MODE

-- name: detach_reader
DELETE FROM mainspring.outbox_cursor WHERE reader = $1

-- name: events
-- None that a transaction still under way could precede: its events will have its xid, or a later one.
WITH seen AS MATERIALIZED (
    SELECT xid, position FROM mainspring.outbox_cursor WHERE reader = $1
)
SELECT o.id, o.at, o.kind, o.runs FROM mainspring.outbox o
WHERE (o.xid, o.id) > ((SELECT xid FROM seen), (SELECT position FROM seen))
  AND o.xid < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY o.xid, o.id LIMIT $2

-- name: acknowledge
UPDATE mainspring.outbox_cursor c SET xid = o.xid, position = o.id
FROM mainspring.outbox o WHERE c.reader = $1 AND o.id = $2 AND (o.xid, o.id) > (c.xid, c.position)

-- name: job_named
SELECT j.id FROM mainspring.job j JOIN mainspring.name t ON t.id = j.tenant
WHERE t.kind = $1 AND t.name = $2 AND j.name = $3

-- name: intern
INSERT INTO mainspring.name (kind, name) SELECT $1, name FROM unnest($2::text[]) AS name ORDER BY name ON CONFLICT DO NOTHING

-- name: names
SELECT id, kind, name FROM mainspring.name
