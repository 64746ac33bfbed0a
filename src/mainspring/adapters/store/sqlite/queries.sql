-- Reads, each one row with one JSON text. They see the newest commit and block nobody.

-- name: runs
SELECT json_group_array(json_array(
    v.id, v.state, b.task, v.queue, v.tenant, v.priority, v.attempt, v.due, v.created_at, v.lost, v.fence, v.reason,
    v.job_id, v.scheduled_at, v.started_at, v.finished_at, v.cancel_at IS NOT NULL, v.result, v.error))
FROM (
    SELECT r.id AS id, iif(r.state = 'running' AND r.cancel_at IS NOT NULL, 'cancelling', r.state) AS state,
           r.body AS body, r.queue AS queue, r.tenant AS tenant, r.priority AS priority, r.attempt AS attempt,
           r.due AS due, r.created_at AS created_at, r.lost AS lost, r.fence AS fence, '' AS reason, r.job_id AS job_id,
           r.scheduled_at AS scheduled_at, r.started_at AS started_at, NULL AS finished_at, r.cancel_at AS cancel_at,
           NULL AS result, NULL AS error
    FROM json_each(:ids) AS i CROSS JOIN run r ON r.id = i.value
    UNION ALL
    SELECT w.id, w.state, w.body, w.queue, w.tenant, w.priority, w.attempt, w.due, w.created_at, w.lost, w.fence, '',
           w.job_id, w.scheduled_at, w.started_at, NULL, NULL, NULL, NULL
    FROM json_each(:ids) AS i CROSS JOIN waiting w ON w.id = i.value
    UNION ALL
    SELECT h.id, h.state, h.body, h.queue, h.tenant, h.priority, h.attempt, h.due, h.created_at, h.lost, h.fence,
           h.reason, h.job_id, h.scheduled_at, h.started_at, h.finished_at, h.cancel_at, h.result, h.error
    FROM json_each(:ids) AS i CROSS JOIN history h ON h.id = i.value
) AS v CROSS JOIN body b ON b.id = v.body

-- name: attempts
SELECT json_group_array(json_array(
    run_id, fence, number, outcome, reason, error, started_at, ended_at) ORDER BY fence)
FROM attempt WHERE run_id = :run

-- name: jobs
SELECT json_group_array(json_array(j.id, j.tenant, v.spec, j.version, j.state, s.next_fire, s.rev, b.payload))
FROM json_each(:ids) AS i CROSS JOIN job j ON j.id = i.value CROSS JOIN schedule s ON s.job_id = j.id
CROSS JOIN job_version v ON v.job_id = j.id AND v.version = j.version CROSS JOIN body b ON b.id = v.body

-- name: ledger
SELECT json_group_array(json_array(
    job_id, scheduled_at, decision, reason, run_id, job_version, epoch, ticks, last_at) ORDER BY scheduled_at)
FROM (
    SELECT * FROM ledger WHERE job_id = :job AND scheduled_at >= :since AND scheduled_at < :until
    ORDER BY scheduled_at LIMIT :limit
)

-- name: depths
SELECT json_group_array(json_array(queue, queued, running, oldest_due) ORDER BY queue) FROM (
    SELECT queue, sum(state = 'queued') AS queued, sum(state = 'running') AS running,
           min(iif(state = 'queued', due, NULL)) AS oldest_due
    FROM run GROUP BY queue
)

-- name: events
SELECT json_group_array(json_array(position, at, kind, json(runs)) ORDER BY position) FROM (
    SELECT o.* FROM outbox_cursor c CROSS JOIN outbox o ON o.position > c.position
    WHERE c.reader = :reader ORDER BY o.position LIMIT :limit
)

-- name: upcoming
-- A merge of the shards' lines, from millisecond to millisecond: runs that are due together cost one look.
WITH RECURSIVE line (shard, due) AS (
    SELECT h.value, (w.due + 999) / 1000 * 1000 FROM (SELECT DISTINCT value FROM json_each(:shards)) AS h
    CROSS JOIN waiting w ON w.id = (
        SELECT f.id FROM waiting f INDEXED BY waiting_due
        WHERE f.state = 'scheduled' AND f.shard = h.value AND f.due <= :until ORDER BY f.due, f.id LIMIT 1)
    UNION ALL
    SELECT l.shard, (w.due + 999) / 1000 * 1000 FROM line l CROSS JOIN waiting w ON w.id = (
        SELECT f.id FROM waiting f INDEXED BY waiting_due
        WHERE f.state = 'scheduled' AND f.shard = l.shard AND f.due > l.due AND f.due <= :until
        ORDER BY f.due, f.id LIMIT 1)
    ORDER BY 2, 1
    LIMIT :limit
)
SELECT json_group_array(json_array(shard, due)) FROM line

-- name: due_jobs
WITH RECURSIVE line (shard, due, job_id) AS (
    SELECT s.shard, s.next_fire, s.job_id FROM (SELECT DISTINCT value FROM json_each(:shards)) AS h
    CROSS JOIN schedule s ON s.job_id = (
        SELECT f.job_id FROM schedule f INDEXED BY schedule_due
        WHERE f.active = 1 AND f.shard = h.value AND f.next_fire <= :until ORDER BY f.next_fire, f.job_id LIMIT 1)
    UNION ALL
    SELECT s.shard, s.next_fire, s.job_id FROM line l CROSS JOIN schedule s ON s.job_id = (
        SELECT f.job_id FROM schedule f INDEXED BY schedule_due
        WHERE f.active = 1 AND f.shard = l.shard AND f.next_fire <= :until
          AND (f.next_fire, f.job_id) > (l.due, +l.job_id)
        ORDER BY f.next_fire, f.job_id LIMIT 1)
    ORDER BY 2, 3
    LIMIT :limit
)
SELECT json_group_array(json_array(j.id, j.tenant, v.spec, j.version, j.state, l.due, s.rev, 'null'))
FROM line l CROSS JOIN job j ON j.id = l.job_id CROSS JOIN schedule s ON s.job_id = j.id
CROSS JOIN job_version v ON v.job_id = j.id AND v.version = j.version

-- name: overdue_runs
SELECT json_group_array(json_array(
    r.id, r.fence, b.task, b.payload, b.policy, r.queue, r.tenant, r.priority, r.attempt, r.lost, r.due,
    r.started_at, r.attempt_until, r.deadline, r.job_id, r.scheduled_at,
    r.gate IS NOT NULL OR r.origin IS 'delay', r.cancel_at IS NOT NULL))
FROM (
    SELECT r.* FROM session s CROSS JOIN run r INDEXED BY run_held ON r.session = s.id AND r.state = 'running'
    WHERE s.dead = 0 AND r.attempt_until < :before LIMIT :limit
) AS r CROSS JOIN body b ON b.id = r.body

-- name: sweep
-- Gates whose holder is gone or that are missing, and fixed delays that wait for nothing.
SELECT json_array(
    json((SELECT json_group_array(key) FROM (
        SELECT g.key FROM gate g
        WHERE NOT EXISTS (SELECT 1 FROM run r WHERE r.id = g.holder)
          AND NOT EXISTS (SELECT 1 FROM waiting w WHERE w.id = g.holder AND w.state = 'scheduled')
        UNION
        SELECT w.gate FROM waiting w INDEXED BY waiting_blocked
        WHERE w.state = 'blocked' AND NOT EXISTS (SELECT 1 FROM gate g WHERE g.key = w.gate)
        LIMIT :limit))),
    json((SELECT json_group_array(job_id) FROM (
        SELECT s.job_id FROM schedule s INDEXED BY schedule_delayed
        WHERE s.active = 1 AND s.delay IS NOT NULL AND s.next_fire IS NULL
          AND NOT EXISTS (SELECT 1 FROM run r WHERE r.id = s.awaits)
          AND NOT EXISTS (SELECT 1 FROM waiting w WHERE w.id = s.awaits)
        LIMIT :limit))))

-- name: job_named
SELECT id, version, state FROM job WHERE tenant = ? AND name = ?

-- name: job_id
SELECT coalesce((SELECT id FROM job WHERE tenant = :tenant AND name = :name), '')

-- name: shards
SELECT json(shards) FROM meta
