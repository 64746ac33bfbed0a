-- Rows of limits. The rule is core/rules/limits.py; work/limiters.py runs it.

-- name: releases
SELECT limits, ending, started_at FROM limit_release ORDER BY n

-- name: arriving
-- Runs that have reached their limits and were not checked yet.
SELECT id, due, limits FROM waiting INDEXED BY waiting_limited WHERE state = 'limited' AND waits IS NULL

-- name: due_limiters
SELECT number, kind FROM limiter INDEXED BY limiter_wake WHERE wake_at <= :now ORDER BY wake_at LIMIT :limit

-- name: recalling_limiters
SELECT number, kind FROM limiter INDEXED BY limiter_recalls WHERE recalls = 1 ORDER BY number LIMIT 1

-- name: lock
-- There is one writer, so nothing has to be locked. A limiter without a row counts nothing.
SELECT n.value, l.used,
       iif(EXISTS (SELECT 1 FROM mark m WHERE m.number = l.number), (
           SELECT json_group_array(m.until - l.per ORDER BY m.until) FROM mark m
           WHERE m.number = l.number AND m.until > :now), NULL),
       l.open_until, coalesce(l.recalls, 0),
       (SELECT w.limits FROM waiting w INDEXED BY waiting_limited
        WHERE w.state = 'limited' AND w.waits = n.value ORDER BY w.due, w.id LIMIT 1)
FROM json_each(:numbers) AS n LEFT JOIN limiter l ON l.number = n.value

-- name: blocked
-- The first runs of each line after the last one that was found, the same number of each.
SELECT w.waits, w.id, w.due, w.limits FROM json_each(:lines) AS line CROSS JOIN waiting w ON w.id IN (
    SELECT f.id FROM waiting f INDEXED BY waiting_limited
    WHERE f.state = 'limited' AND f.waits = line.value ->> 0 AND (f.due, f.id) > (line.value ->> 1, line.value ->> 2)
    ORDER BY f.due, f.id LIMIT :most)
ORDER BY w.due, w.id

-- name: queued_by_breaker
SELECT r.id, r.limits FROM run r INDEXED BY run_limited
WHERE r.limits IS NOT NULL AND r.limits ->> '$[0][1]' = :number AND r.state = 'queued' LIMIT :most

-- name: holders
SELECT g.value ->> 1, max(g.value ->> 0), max(g.value ->> 3), sum(g.value ->> 0 <> :PER_PERIOD OR r.state = 'queued')
FROM run r INDEXED BY run_limited CROSS JOIN json_each(r.limits) AS g
WHERE r.limits IS NOT NULL AND g.value ->> 1 IN (SELECT k.value FROM json_each(:numbers) AS k)
GROUP BY 1

-- name: queue
INSERT INTO run (id, state, shard, tenant, queue, claim_group, rank, rev, priority, attempt, lost, late, fence, body,
                 timeout, due, created_at, started_at, start_by, deadline, key_lock, job_id, job_version, scheduled_at,
                 origin, target, replay_of, session, queued_at, limits, ready_at)
SELECT w.id, 'queued', w.shard, w.tenant, w.queue, w.claim_group,
       coalesce(q.rank, :now + w.priority * :HEAD_START + (w.late OR w.attempt > 0) * :LATE_PENALTY), w.rev + 1,
       w.priority, w.attempt, w.lost, w.late, w.fence, w.body, w.timeout, w.due, w.created_at, w.started_at,
       w.start_by, w.deadline, w.key_lock, w.job_id, w.job_version, w.scheduled_at, w.origin, w.target, w.replay_of,
       w.session, coalesce(q.queued_at, :now), w.limits,
       coalesce(q.ready_at, iif(w.waits IS NOT NULL OR w.id IN (SELECT was_blocked.id FROM was_blocked), :now, NULL))
FROM json_each(:runs) AS i CROSS JOIN waiting w ON w.id = i.value LEFT JOIN kept_position AS q ON q.id = w.id

-- name: forget_queued
DELETE FROM waiting WHERE id IN (SELECT i.value FROM json_each(:runs) AS i)

-- name: note_admitted
INSERT OR IGNORE INTO admitted (id) SELECT i.value FROM json_each(:runs) AS i

-- name: emit_queued
INSERT INTO new_event (kind, tenant, run)
SELECT 'run.queued', r.tenant, r.id FROM json_each(:runs) AS i CROSS JOIN run r ON r.id = i.value
WHERE EXISTS (SELECT 1 FROM outbox_cursor) AND r.id NOT IN (SELECT kept_position.id FROM kept_position)

-- name: block
UPDATE waiting SET waits = :number WHERE id = :id

-- name: recall
INSERT INTO waiting (id, state, shard, tenant, queue, claim_group, rev, priority, attempt, lost, late, fence, body,
                     timeout, due, created_at, started_at, start_by, deadline, key_lock, job_id, job_version,
                     scheduled_at, origin, target, replay_of, session, limits, waits)
SELECT r.id, 'limited', r.shard, r.tenant, r.queue, r.claim_group, r.rev + 1, r.priority, r.attempt, r.lost, r.late,
       r.fence, r.body, r.timeout, r.due, r.created_at, r.started_at, r.start_by, r.deadline, r.key_lock, r.job_id,
       r.job_version, r.scheduled_at, r.origin, r.target, r.replay_of, r.session, r.limits, r.limits ->> '$[0][1]'
FROM json_each(:runs) AS i CROSS JOIN run r ON r.id = i.value

-- name: forget_recalled
DELETE FROM run WHERE id IN (SELECT i.value FROM json_each(:runs) AS i)

-- name: forget_marks
DELETE FROM mark WHERE number IN (SELECT i.value FROM json_each(:numbers) AS i) AND until <= :until

-- name: mark
INSERT INTO mark (number, until) SELECT i.value ->> 0, i.value ->> 1 FROM json_each(:marks) AS i

-- name: create
INSERT INTO limiter (number, kind, per) SELECT i.value ->> 0, i.value ->> 1, i.value ->> 2 FROM json_each(:limiters) AS i
WHERE true ON CONFLICT DO NOTHING

-- name: save
-- A limiter that blocks no run is checked when its last mark no longer counts, to be deleted.
UPDATE limiter SET
    used = i.used, open_until = i.open_until,
    recalls = i.recalls AND EXISTS (
        SELECT 1 FROM run r INDEXED BY run_limited
        -- The + lets SQLite use the index.
        WHERE r.limits IS NOT NULL AND r.limits ->> '$[0][1]' = +limiter.number AND r.state = 'queued'),
    wake_at = iif(EXISTS (
        SELECT 1 FROM waiting w INDEXED BY waiting_limited WHERE w.state = 'limited' AND w.waits = limiter.number
    ), i.wake_at, (SELECT max(m.until) FROM mark m WHERE m.number = limiter.number))
FROM (
    SELECT value ->> 0 AS number, value ->> 1 AS used, value ->> 2 AS open_until, value ->> 3 AS recalls,
           value ->> 4 AS wake_at
    FROM json_each(:limiters)
) AS i WHERE limiter.number = i.number

-- name: forget
-- A limiter without a row counts nothing.
DELETE FROM limiter WHERE number IN (SELECT i.value FROM json_each(:numbers) AS i) AND used = 0 AND open_until IS NULL
  AND NOT EXISTS (
      SELECT 1 FROM waiting w INDEXED BY waiting_limited WHERE w.state = 'limited' AND w.waits = limiter.number)
  AND NOT EXISTS (SELECT 1 FROM mark m WHERE m.number = limiter.number)
