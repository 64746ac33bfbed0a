-- Signs of health that doctor and the metrics read.

-- name: identity
SELECT store_id FROM meta

-- name: workers
SELECT name, queues, tasks, labels, datacenter, draining FROM session WHERE kind = 'worker' AND live = 1 AND lease_until > :now ORDER BY id LIMIT 10000

-- name: schedulers
SELECT count(*) FROM session WHERE kind = 'scheduler' AND live = 1 AND lease_until > :now

-- name: tzdata
SELECT name, tzdata FROM session
WHERE kind = 'scheduler' AND live = 1 AND lease_until > :now AND tzdata <> '' ORDER BY id LIMIT 10000

-- name: expired_sessions
SELECT name FROM session WHERE live = 1 AND lease_until < :now ORDER BY id LIMIT 100

-- name: queued
-- With runs that come back within a minute after an attempt or a release. A worker releases runs of unknown tasks.
SELECT r.queue, b.task, count(*), coalesce(l.requires, '[]')
FROM (
    SELECT * FROM (SELECT queue, claim_group, body FROM run WHERE state = 'queued' LIMIT 100000)
    UNION ALL SELECT queue, claim_group, body FROM (
        SELECT queue, claim_group, body, fence FROM waiting WHERE state = 'scheduled' AND due <= :now + 60000000 LIMIT 100000
    ) WHERE fence > 0
) AS r
JOIN body b ON b.id = r.body LEFT JOIN label_set l ON l.id = r.claim_group GROUP BY 1, 2, 4 ORDER BY 3 DESC

-- name: unstaged
SELECT count(*), min(due) FROM waiting WHERE state = 'scheduled' AND due <= :now

-- name: unfired
SELECT count(*), min(next_fire) FROM schedule WHERE active = 1 AND next_fire <= :now

-- name: waiting
SELECT EXISTS (SELECT 1 FROM waiting WHERE state = 'scheduled') OR EXISTS (SELECT 1 FROM schedule WHERE active = 1)

-- name: scheduled
-- Stops counting at 100,000.
SELECT count(*) FROM (SELECT 1 FROM waiting INDEXED BY waiting_due WHERE state = 'scheduled' LIMIT 100000)

-- name: blocked
-- Runs blocked by a key, a limit or parents. The last are found by the index of their edges.
SELECT (SELECT count(*) FROM (SELECT 1 FROM waiting INDEXED BY waiting_blocked WHERE state = 'blocked' LIMIT 100000))
     + (SELECT count(*) FROM (SELECT 1 FROM waiting INDEXED BY waiting_limited WHERE state = 'limited' LIMIT 100000))
     + (SELECT count(DISTINCT e.child) FROM (
            SELECT child FROM edge INDEXED BY edge_undecided WHERE state IS NULL LIMIT 100000) AS e
        WHERE EXISTS (SELECT 1 FROM waiting w WHERE w.id = e.child AND w.state = 'after'))

-- name: readers
-- Temporary readers are not judged, because they are removed soon if they stop reading.
SELECT c.reader, CASE WHEN c.until IS NULL OR c.until > :now + 1800000000 THEN (
    SELECT o.at FROM outbox o WHERE o.position > c.position ORDER BY o.position LIMIT 1) END
FROM outbox_cursor c ORDER BY c.reader LIMIT 1000

-- name: dead_letters
SELECT count(*) FROM history WHERE dead = 1

-- name: pauses
SELECT tenant, queue FROM pause WHERE until IS NULL OR until > :now ORDER BY 1, 2 LIMIT 1000

-- name: paused_jobs
SELECT j.tenant, j.name FROM job j JOIN schedule s ON s.job_id = j.id
WHERE j.state = 'paused' AND (s.resume_at IS NULL OR s.resume_at > :now) ORDER BY 1, 2 LIMIT 1000

-- name: newest
SELECT coalesce(max(started_at), 0) FROM session

-- name: missed
-- Only missed objectives have these fields in the state of their job.
SELECT count(*) FROM slo WHERE instr(state, '"late_since"') OR instr(state, '"quiet_since"')
