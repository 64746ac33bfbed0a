-- name: expire_sessions
-- Sessions whose lease has expired. The row lock serializes this with their last heartbeat. A session that a claim or a heartbeat has
-- locked is skipped until the next call, so that a frozen process does not delay the others.
WITH expired AS (
    UPDATE mainspring.session SET live = false, ended_at = now
    FROM (SELECT mainspring.now_us() AS now) AS clock
    WHERE id = ANY (ARRAY(
        SELECT s.id FROM mainspring.session s WHERE s.live AND s.lease_until <= mainspring.now_us() FOR UPDATE SKIP LOCKED))
    RETURNING id, kind, ended_at
)
INSERT INTO mainspring.outbox (at, kind, tenant, runs)
SELECT ended_at, 'worker.lost', 0, array_agg(lpad(to_hex(id), 32, '0')::uuid) FROM expired
WHERE kind = :WORKER AND EXISTS (SELECT FROM mainspring.outbox_cursor) GROUP BY ended_at

-- name: lost_runs
-- By state, not by event: a run of a dead session is returned until it is completed.
-- Driven from the sessions, because the index of running runs has a dead entry for every run of the last seconds.
SELECT r.id, r.body_bucket, r.body_id, r.fence, r.queue, r.tenant, r.priority, r.attempt, r.lost, r.due, r.started_at,
       r.attempt_until, r.deadline, r.job_id, r.scheduled_at, r.key_lock, r.origin, r.cancel_at, r.limits, r.has_children,
       r.ready_at, b.task, b.policy, b.payload
FROM (SELECT id FROM mainspring.session WHERE NOT live) AS s, LATERAL (
    SELECT * FROM mainspring.run WHERE session = s.id AND state = :RUNNING LIMIT :limit
) AS r
JOIN mainspring.body b ON b.bucket = r.body_bucket AND b.id = coalesce(r.body_id, r.id)
LIMIT :limit

-- name: overdue_runs
SELECT r.id, r.body_bucket, r.body_id, r.fence, r.queue, r.tenant, r.priority, r.attempt, r.lost, r.due, r.started_at,
       r.attempt_until, r.deadline, r.job_id, r.scheduled_at, r.key_lock, r.origin, r.cancel_at, r.limits, r.has_children,
       r.ready_at, b.task, b.policy, b.payload
FROM mainspring.run r
JOIN mainspring.session s ON s.id = r.session AND s.live
JOIN mainspring.body b ON b.bucket = r.body_bucket AND b.id = coalesce(r.body_id, r.id)
WHERE r.state = :RUNNING AND r.attempt_until < mainspring.now_us() - :grace::bigint LIMIT :limit

-- name: expire
-- Ends runs that did not start in time: skipped after start_by, failed after their deadline, skipped if their target worker has ended.
WITH clock AS MATERIALIZED (
    SELECT mainspring.now_us() AS now
), waited AS (
    DELETE FROM mainspring.waiting WHERE id = ANY (ARRAY(
        (SELECT id FROM mainspring.waiting w WHERE w.start_by < (SELECT now FROM clock) AND w.attempt = 0 ORDER BY w.start_by LIMIT :limit
         FOR UPDATE SKIP LOCKED))
        || ARRAY(
        (SELECT id FROM mainspring.waiting w WHERE w.deadline <= (SELECT now FROM clock) ORDER BY w.deadline LIMIT :limit
         FOR UPDATE SKIP LOCKED))
        || ARRAY(
        (SELECT id FROM mainspring.waiting w WHERE w.target IS NOT NULL
         AND NOT EXISTS (SELECT FROM mainspring.session s WHERE s.id = w.target AND s.live)
         ORDER BY w.target LIMIT :limit FOR UPDATE OF w SKIP LOCKED)))
    RETURNING id, shard, priority, attempt, lost, tenant, queue, body_bucket, due, created_at, fence, scheduled_at, job_id,
              job_version, body_id, replay_of, target, origin, key_lock, start_by, deadline, NULL::bigint[] AS limits, has_children,
              CASE WHEN state = :BLOCKED_BY_LIMIT THEN waits END AS waits
), queued AS (
    DELETE FROM mainspring.run WHERE id = ANY (ARRAY(
        (SELECT id FROM mainspring.run r WHERE r.state = :QUEUED AND r.start_by < (SELECT now FROM clock) AND r.attempt = 0
         ORDER BY r.start_by LIMIT :limit
         FOR UPDATE SKIP LOCKED))
        || ARRAY(
        (SELECT id FROM mainspring.run r WHERE r.state = :QUEUED AND r.deadline <= (SELECT now FROM clock) ORDER BY r.deadline LIMIT :limit
         FOR UPDATE SKIP LOCKED))
        || ARRAY(
        (SELECT id FROM mainspring.run r WHERE r.state = :QUEUED AND r.target IS NOT NULL
         AND NOT EXISTS (SELECT FROM mainspring.session s WHERE s.id = r.target AND s.live)
         ORDER BY r.target LIMIT :limit FOR UPDATE OF r SKIP LOCKED)))
    RETURNING id, shard, priority, attempt, lost, tenant, queue, body_bucket, due, created_at, fence, scheduled_at, job_id,
              job_version, body_id, replay_of, target, origin, key_lock, start_by, deadline, limits, has_children,
              NULL::bigint AS waits
), gone AS (
    -- A run that has missed both counts as failed.
    SELECT g.*, NOT g.gone AND (g.attempt > 0 OR coalesce(g.start_by >= clock.now, true)) AS failed
    FROM clock, (SELECT e.*, e.target IS NOT NULL
                     AND NOT EXISTS (SELECT FROM mainspring.session s WHERE s.id = e.target AND s.live) AS gone
                 FROM (SELECT * FROM waited UNION ALL SELECT * FROM queued) AS e) AS g
), ended AS (
    INSERT INTO mainspring.history (id, class, state, priority, attempt, lost, origin, tenant, queue, body_bucket,
                                    finished_at, due, created_at, fence, scheduled_at, job_version, target, job_id, body_id,
                                    replay_of, reason, start_by, deadline)
    SELECT g.id, CASE WHEN g.body_bucket < :CLASS_WIDTH + :KEPT_BUCKET THEN :UNSUCCESSFUL_CLASS ELSE (g.body_bucket - :KEPT_BUCKET) / :CLASS_WIDTH + :UNSUCCESSFUL_CLASS END,
           CASE WHEN g.failed THEN :FAILED ELSE :SKIPPED END, g.priority, g.attempt, g.lost, g.origin, g.tenant, g.queue,
           g.body_bucket, clock.now, g.due, g.created_at, g.fence, g.scheduled_at, g.job_version, g.target, g.job_id,
           g.body_id, g.replay_of, CASE WHEN g.failed THEN 'deadline' WHEN g.gone THEN 'its worker left' ELSE 'expired' END, g.start_by, g.deadline
    FROM gone g, clock
), dead AS (
    INSERT INTO mainspring.dead_letter (run_id, tenant, task, queue, at, fingerprint)
    SELECT g.id, g.tenant, (SELECT b.task FROM mainspring.body b WHERE b.bucket = g.body_bucket AND b.id = coalesce(g.body_id, g.id)),
           g.queue, clock.now, :fingerprint
    FROM gone g, clock WHERE g.failed
    ON CONFLICT (run_id) DO NOTHING
), parents AS (
    INSERT INTO mainspring.ended_parent (run_id, state, at)
    SELECT g.id, CASE WHEN g.failed THEN :FAILED ELSE :SKIPPED END, clock.now FROM gone g, clock WHERE g.has_children ON CONFLICT DO NOTHING
), emitted AS (
    INSERT INTO mainspring.outbox (at, kind, tenant, runs)
    SELECT clock.now, CASE WHEN e.failed THEN 'run.failed' ELSE 'run.skipped' END, e.tenant, e.runs
    FROM clock, (SELECT failed, tenant, array_agg(id) AS runs FROM gone GROUP BY failed, tenant) AS e
    WHERE EXISTS (SELECT FROM mainspring.outbox_cursor)
)
SELECT id, key_lock, CASE WHEN origin = :ORIGIN_FIXED_DELAY THEN job_id END AS delayed_job, limits, has_children, waits FROM gone

-- name: stuck_ordering_keys
-- A check from first principles: keys that block runs and have no holder.
SELECT DISTINCT w.key_lock FROM mainspring.waiting w
WHERE w.state = :BLOCKED AND NOT EXISTS (
    SELECT FROM mainspring.key_lock g WHERE g.key = w.key_lock AND (
        EXISTS (SELECT FROM mainspring.run r WHERE r.id = g.holder OFFSET 0) OR
        EXISTS (SELECT FROM mainspring.waiting h WHERE h.id = g.holder AND h.holds OFFSET 0)))
LIMIT :limit

-- name: stuck_delays
SELECT s.job_id FROM mainspring.schedule s
WHERE s.active AND s.next_fire IS NULL AND s.delay IS NOT NULL
  AND NOT EXISTS (SELECT FROM mainspring.run r WHERE r.job_id = s.job_id)
  AND NOT EXISTS (SELECT FROM mainspring.waiting w WHERE w.job_id = s.job_id)
LIMIT :limit

-- name: prune_sessions
-- A session with runs is kept.
DELETE FROM mainspring.session s
WHERE NOT s.live AND s.ended_at < mainspring.now_us() - :kept::bigint
  AND NOT EXISTS (SELECT FROM mainspring.run r WHERE r.session = s.id AND r.state = :RUNNING)
  AND NOT EXISTS (SELECT FROM mainspring.shard h WHERE h.owner = s.id)

-- name: prune_ordering_keys
DELETE FROM mainspring.key_lock WHERE key = ANY (ARRAY(
    SELECT g.key FROM mainspring.key_lock g
    WHERE g.holder IS NULL AND NOT EXISTS (SELECT FROM mainspring.waiting w WHERE w.key_lock = g.key AND w.state = :BLOCKED)
    LIMIT :limit FOR UPDATE SKIP LOCKED))

-- name: prune_readers
DELETE FROM mainspring.outbox_cursor WHERE until < mainspring.now_us()

-- name: prune_outbox
-- Deletes events that every reader has handled and no reader may resume at; without readers, all. Writes the horizon with it, so that
-- a reader before it is notified of the gap.
WITH slowest AS MATERIALIZED (
    SELECT xid, position FROM mainspring.outbox_cursor ORDER BY xid, position LIMIT 1
), gone AS (
    DELETE FROM mainspring.outbox WHERE id = ANY (ARRAY(
        SELECT o.id FROM (
            SELECT o.id, o.at FROM mainspring.outbox o
            WHERE (o.xid, o.id) <= (coalesce((SELECT xid FROM slowest), '18446744073709551615'),
                                    coalesce((SELECT position FROM slowest), 9223372036854775807))
            ORDER BY o.xid, o.id LIMIT :limit
        ) AS o
        WHERE o.at < mainspring.now_us() - :kept::bigint OR NOT EXISTS (SELECT FROM slowest)))
    RETURNING xid, id
), moved AS (
    INSERT INTO mainspring.outbox_horizon AS h (xid, id) SELECT xid, id FROM gone ORDER BY xid DESC, id DESC LIMIT 1
    ON CONFLICT (only_row) DO UPDATE SET xid = excluded.xid, id = excluded.id
    WHERE (excluded.xid, excluded.id) > (h.xid, h.id)
)
SELECT count(*) FROM gone

-- name: prune_idempotency_keys
DELETE FROM mainspring.idempotency WHERE (tenant, key) IN (
    SELECT tenant, key FROM mainspring.idempotency WHERE expires_at <= mainspring.now_us()
    LIMIT :limit FOR UPDATE SKIP LOCKED)

-- name: prune_pauses
-- A day after their end, a run that still waits is late in any case.
DELETE FROM mainspring.pause WHERE until <= mainspring.now_us() - :DAY

-- name: prune_minutes
DELETE FROM mainspring.minute WHERE at < :before

-- name: prune_timings
DELETE FROM mainspring.timing WHERE at < :before

-- name: try_lock
SELECT pg_try_advisory_xact_lock(hashtext(:name))

-- name: rolled_up
-- Until when runs and attempts are counted, and until when they can be. The first roll-up starts with the oldest, since attempts may
-- fail before any run has ended.
SELECT coalesce((SELECT until FROM mainspring.rolled_up), least((SELECT min(finished_at) FROM mainspring.history),
                (SELECT min(ended_at) FROM mainspring.attempt)), mainspring.now_us()) AS since,
       mainspring.now_us() - :behind::bigint AS until

-- name: roll_up
-- Two buckets per power of two, from 100 us.
WITH ended AS (
    SELECT h.finished_at / :MINUTE * :MINUTE AS at, h.tenant, h.queue,
           floor(ln(greatest(h.started_at - h.due, 100) / 100.0::float8) * 2 / ln(2.0::float8))::int AS late_bucket,
           floor(ln(greatest(h.finished_at - h.started_at, 100) / 100.0::float8) * 2 / ln(2.0::float8))::int AS took_bucket,
           count(*) FILTER (WHERE h.state = :SUCCEEDED) AS succeeded, count(*) FILTER (WHERE h.state = :FAILED) AS failed,
           count(*) FILTER (WHERE h.state = :CANCELLED) AS cancelled, count(*) FILTER (WHERE h.state = :SKIPPED) AS skipped, 0 AS retried,
           count(h.started_at) AS started,
           coalesce(sum(h.started_at - h.due), 0)::bigint AS late_total, greatest(max(h.started_at - h.due), 0) AS late_most,
           coalesce(sum(h.finished_at - h.started_at), 0)::bigint AS took_total,
           greatest(max(h.finished_at - h.started_at), 0) AS took_most
    FROM mainspring.history h WHERE h.finished_at >= :since::bigint AND h.finished_at < :until::bigint GROUP BY 1, 2, 3, 4, 5
    UNION ALL
    SELECT a.ended_at / :MINUTE * :MINUTE, a.tenant, a.queue, NULL, NULL, 0, 0, 0, 0, count(*), 0, 0, 0, 0, 0
    FROM mainspring.attempt a
    WHERE a.ended_at >= :since::bigint AND a.ended_at < :until::bigint AND a.outcome IN (:OUTCOME_ERROR, :OUTCOME_TIMEOUT, :OUTCOME_LOST) GROUP BY 1, 2, 3
), timed AS (
    INSERT INTO mainspring.timing AS t (at, tenant, queue, bucket, late, took)
    SELECT at / 300000000 * 300000000, tenant, queue, bucket, sum(late), sum(took) FROM (
        SELECT at, tenant, queue, late_bucket AS bucket, started AS late, 0 AS took FROM ended WHERE started > 0
        UNION ALL SELECT at, tenant, queue, took_bucket, 0, started FROM ended WHERE started > 0
    ) AS spans GROUP BY 1, 2, 3, 4
    ON CONFLICT (at, tenant, queue, bucket) DO UPDATE SET late = t.late + excluded.late, took = t.took + excluded.took
), reached AS (
    INSERT INTO mainspring.rolled_up (until) VALUES (:until::bigint) ON CONFLICT (only_row) DO UPDATE SET until = excluded.until
)
INSERT INTO mainspring.minute AS m (at, tenant, queue, succeeded, failed, cancelled, skipped, retried, started, late_total,
                                    late_most, took_total, took_most)
SELECT at, tenant, queue, sum(succeeded), sum(failed), sum(cancelled), sum(skipped), sum(retried), sum(started),
       sum(late_total), max(late_most), sum(took_total), max(took_most)
FROM ended GROUP BY at, tenant, queue
ON CONFLICT (at, tenant, queue) DO UPDATE SET
    succeeded = m.succeeded + excluded.succeeded, failed = m.failed + excluded.failed,
    cancelled = m.cancelled + excluded.cancelled, skipped = m.skipped + excluded.skipped,
    retried = m.retried + excluded.retried, started = m.started + excluded.started,
    late_total = m.late_total + excluded.late_total, late_most = greatest(m.late_most, excluded.late_most),
    took_total = m.took_total + excluded.took_total, took_most = greatest(m.took_most, excluded.took_most)

-- name: sample_load
-- The second call in a minute counts nothing. `kept`: how long samples are kept. `limit`: how many of the largest are stored separately.
WITH minute AS (
    INSERT INTO mainspring.load_seen (at) VALUES (mainspring.now_us() / :MINUTE * :MINUTE) ON CONFLICT DO NOTHING RETURNING at
), found AS MATERIALIZED (
    SELECT r.tenant, r.queue, count(*) FILTER (WHERE r.state = :QUEUED) AS queued, count(*) FILTER (WHERE r.state = :RUNNING) AS running,
           greatest(mainspring.now_us() - min(r.due) FILTER (WHERE r.state = :QUEUED), 0) AS lag
    FROM mainspring.run r WHERE EXISTS (SELECT FROM minute) GROUP BY r.tenant, r.queue
), kept AS (
    INSERT INTO mainspring.load (at, tenant, queue, queued, running, lag)
    SELECT m.at, s.* FROM minute m, (
        SELECT -1, 0, coalesce(sum(queued), 0), coalesce(sum(running), 0), coalesce(max(lag), 0) FROM found
        UNION ALL (SELECT * FROM found ORDER BY queued + running DESC, tenant, queue LIMIT :limit)
    ) AS s
), forgotten AS (
    DELETE FROM mainspring.load WHERE at < mainspring.now_us() - :kept::bigint
), unseen AS (
    DELETE FROM mainspring.load_seen WHERE at < mainspring.now_us() - :kept::bigint
)
SELECT mainspring.now_us() AS now

-- name: unattempted
-- Runs that ended without an attempt. The task is unknown if the run was purged, because its body is gone.
SELECT b.task, h.state, count(*) AS runs
FROM mainspring.history h JOIN mainspring.body b ON b.bucket = h.body_bucket AND b.id = coalesce(h.body_id, h.id)
WHERE h.finished_at >= :since::bigint AND h.finished_at < :until::bigint AND h.class <> :SUCCEEDED_CLASS AND h.state > :SUCCEEDED AND h.started_at IS NULL
GROUP BY b.task, h.state

-- name: dead_rows
SELECT c.relname, pg_stat_get_dead_tuples(c.oid) AS dead
FROM pg_class c WHERE c.oid = ANY (ARRAY['mainspring.run'::regclass, 'mainspring.waiting'::regclass,
                                         'mainspring.schedule'::regclass, 'mainspring.session'::regclass])
