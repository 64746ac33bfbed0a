-- name: bury
-- Sessions whose lease has run out. The row lock serialises this with their last beat.
UPDATE mainspring.session SET live = false, ended_at = now
FROM (SELECT mainspring.now_us() AS now) AS clock
WHERE live AND lease_until <= now

-- name: lost_runs
-- By state, not by event: whatever runs under a session that is not live is told until it has been settled.
-- Driven from the sessions: the index of what runs has a dead entry for every run of the last seconds.
SELECT r.id, r.body_bucket, r.body_id, r.fence, r.queue, r.tenant, r.priority, r.attempt, r.lost, r.due, r.started_at,
       r.attempt_until, r.deadline, r.job_id, r.scheduled_at, r.gate, r.origin, r.cancel_at, b.task, b.policy, b.payload
FROM (SELECT id FROM mainspring.session WHERE NOT live) AS s, LATERAL (
    SELECT * FROM mainspring.run WHERE session = s.id AND state = 4 LIMIT $1
) AS r
JOIN mainspring.body b ON b.bucket = r.body_bucket AND b.id = coalesce(r.body_id, r.id)
LIMIT $1

-- name: overdue_runs
SELECT r.id, r.body_bucket, r.body_id, r.fence, r.queue, r.tenant, r.priority, r.attempt, r.lost, r.due, r.started_at,
       r.attempt_until, r.deadline, r.job_id, r.scheduled_at, r.gate, r.origin, r.cancel_at, b.task, b.policy, b.payload
FROM mainspring.run r
JOIN mainspring.session s ON s.id = r.session AND s.live
JOIN mainspring.body b ON b.bucket = r.body_bucket AND b.id = coalesce(r.body_id, r.id)
WHERE r.state = 4 AND r.attempt_until < mainspring.now_us() - $1::bigint LIMIT $2

-- name: expire
-- What did not start in time: skipped past its start_by, failed past its deadline.
WITH clock AS MATERIALIZED (
    SELECT mainspring.now_us() AS now
), waited AS (
    DELETE FROM mainspring.waiting WHERE id = ANY (ARRAY(
        (SELECT id FROM mainspring.waiting w WHERE w.start_by < (SELECT now FROM clock) AND w.attempt = 0 ORDER BY w.start_by LIMIT $1
         FOR UPDATE SKIP LOCKED))
        || ARRAY(
        (SELECT id FROM mainspring.waiting w WHERE w.deadline < (SELECT now FROM clock) ORDER BY w.deadline LIMIT $1
         FOR UPDATE SKIP LOCKED)))
    RETURNING id, shard, priority, attempt, lost, tenant, queue, body_bucket, due, created_at, fence, scheduled_at, job_id,
              job_version, body_id, replay_of, target, origin, gate, start_by
), queued AS (
    DELETE FROM mainspring.run WHERE id = ANY (ARRAY(
        (SELECT id FROM mainspring.run r WHERE r.state = 3 AND r.start_by < (SELECT now FROM clock) AND r.attempt = 0
         ORDER BY r.start_by LIMIT $1
         FOR UPDATE SKIP LOCKED))
        || ARRAY(
        (SELECT id FROM mainspring.run r WHERE r.state = 3 AND r.deadline < (SELECT now FROM clock) ORDER BY r.deadline LIMIT $1
         FOR UPDATE SKIP LOCKED)))
    RETURNING id, shard, priority, attempt, lost, tenant, queue, body_bucket, due, created_at, fence, scheduled_at, job_id,
              job_version, body_id, replay_of, target, origin, gate, start_by
), gone AS (
    -- What has missed both is expired.
    SELECT g.*, g.attempt > 0 OR coalesce(g.start_by >= clock.now, true) AS failed
    FROM clock, (SELECT * FROM waited UNION ALL SELECT * FROM queued) AS g
), ended AS (
    INSERT INTO mainspring.history (id, class, state, priority, attempt, lost, origin, tenant, queue, body_bucket,
                                    finished_at, due, created_at, fence, scheduled_at, job_version, target, job_id, body_id,
                                    replay_of, reason)
    SELECT g.id, 2, CASE WHEN g.failed THEN 6 ELSE 8 END, g.priority, g.attempt, g.lost, g.origin, g.tenant, g.queue,
           g.body_bucket, clock.now, g.due, g.created_at, g.fence, g.scheduled_at, g.job_version, g.target, g.job_id,
           g.body_id, g.replay_of, CASE WHEN g.failed THEN 'deadline' ELSE 'expired' END
    FROM gone g, clock
), told AS (
    INSERT INTO mainspring.outbox (at, kind, runs)
    SELECT clock.now, CASE WHEN e.failed THEN 'run.failed' ELSE 'run.skipped' END, e.runs
    FROM clock, (SELECT failed, array_agg(id) AS runs FROM gone GROUP BY failed) AS e
    WHERE EXISTS (SELECT FROM mainspring.outbox_cursor)
)
SELECT id, gate, CASE WHEN origin = 3 THEN job_id END AS delayed_job FROM gone

-- name: stuck_gates
-- From first principles: keys with somebody waiting and nobody holding.
SELECT DISTINCT w.gate FROM mainspring.waiting w
WHERE w.state = 2 AND NOT EXISTS (
    SELECT FROM mainspring.gate g WHERE g.key = w.gate AND (
        EXISTS (SELECT FROM mainspring.run r WHERE r.id = g.holder OFFSET 0) OR
        EXISTS (SELECT FROM mainspring.waiting h WHERE h.id = g.holder AND h.holds OFFSET 0)))
LIMIT $1

-- name: stuck_delays
SELECT s.job_id FROM mainspring.schedule s
WHERE s.active AND s.next_fire IS NULL AND s.delay IS NOT NULL
  AND NOT EXISTS (SELECT FROM mainspring.run r WHERE r.job_id = s.job_id)
  AND NOT EXISTS (SELECT FROM mainspring.waiting w WHERE w.job_id = s.job_id)
LIMIT $1

-- name: prune_sessions
-- A session with runs is never forgotten.
DELETE FROM mainspring.session s
WHERE NOT s.live AND s.ended_at < mainspring.now_us() - $1::bigint
  AND NOT EXISTS (SELECT FROM mainspring.run r WHERE r.session = s.id AND r.state = 4)
  AND NOT EXISTS (SELECT FROM mainspring.shard h WHERE h.owner = s.id)

-- name: prune_gates
DELETE FROM mainspring.gate WHERE key = ANY (ARRAY(
    SELECT g.key FROM mainspring.gate g
    WHERE g.holder IS NULL AND NOT EXISTS (SELECT FROM mainspring.waiting w WHERE w.gate = g.key AND w.state = 2)
    LIMIT $1 FOR UPDATE SKIP LOCKED))

-- name: prune_outbox
-- What every reader has done with; all of it when there is none.
WITH slowest AS MATERIALIZED (
    SELECT xid, position FROM mainspring.outbox_cursor ORDER BY xid, position LIMIT 1
)
DELETE FROM mainspring.outbox WHERE id = ANY (ARRAY(
    SELECT o.id FROM mainspring.outbox o
    WHERE (o.xid, o.id) <= (coalesce((SELECT xid FROM slowest), '18446744073709551615'),
                            coalesce((SELECT position FROM slowest), 9223372036854775807))
    ORDER BY o.xid, o.id LIMIT $1))

-- name: dead_rows
SELECT c.relname, pg_stat_get_dead_tuples(c.oid) AS dead
FROM pg_class c WHERE c.oid = ANY (ARRAY['mainspring.run'::regclass, 'mainspring.waiting'::regclass,
                                         'mainspring.schedule'::regclass, 'mainspring.session'::regclass])
