-- name: claim
-- Starts the best runs of some queues: counts the attempt and gives the batch one fence, in one statement.
-- It finds nothing if anything is paused or a tenant has a quota (then best_runs), if the worker has claim groups of its own
-- or a limit per period exists (then claim_from_groups), or if a queue has a policy (then best_of_claim_groups). Each of these
-- checks is cheap while the feature is not used.
-- A claim that another one overtook between its fence and its rows must still give a greater fence than the run had.
-- `start_ranks`: the rank to start at, by queue; 0 is the front.
-- ready_at, if later than due: since when the run could have started. Ended pauses are kept for this.
-- `= ANY (ARRAY(…))` pins the plan: the array is built from the ready index, then the primary key is probed.
WITH clock AS MATERIALIZED (
    SELECT mainspring.now_us() AS now
), alive AS MATERIALIZED (
    SELECT s.id FROM mainspring.session s, clock
    WHERE s.id = :session AND s.live AND NOT s.draining AND s.lease_until > clock.now AND s.claim_groups IS NULL
      AND NOT EXISTS (SELECT FROM mainspring.pause WHERE until IS NULL OR until > mainspring.now_us())
      AND NOT EXISTS (SELECT FROM mainspring.tenant WHERE running IS NOT NULL)
      AND NOT EXISTS (SELECT FROM mainspring.queue_policy q WHERE q.closely AND q.queue = ANY (:queues::int[]))
      AND NOT EXISTS (SELECT FROM mainspring.limiter WHERE kind = :LIMIT_PER_PERIOD)
    FOR SHARE OF s
), batch AS MATERIALIZED (
    SELECT ((SELECT store_epoch FROM mainspring.meta)::bigint << 40) + nextval('mainspring.fence_seq') AS fence FROM alive
), taken AS (
    UPDATE mainspring.run
    SET state = :RUNNING, attempt = attempt + 1, fence = greatest(batch.fence, run.fence + 1), claim = :claim, session = :session,
        started_at = greatest(clock.now, run.due), attempt_until = least(clock.now + run.timeout, run.deadline)
    FROM clock, batch
    WHERE run.id = ANY (ARRAY(
        SELECT best.id
        FROM alive, unnest(:queues::int[], :limits::int[], :start_ranks::bigint[]) AS w(queue, most, floor), LATERAL (
            SELECT r.id FROM mainspring.run r
            WHERE r.queue = w.queue AND r.claim_group = 0 AND r.state = :QUEUED AND r.rank >= w.floor
              AND (r.start_by IS NULL OR r.attempt > 0 OR r.start_by >= (SELECT now FROM clock))
              AND (r.deadline IS NULL OR r.deadline > (SELECT now FROM clock))
            ORDER BY r.rank, r.id LIMIT w.most FOR UPDATE SKIP LOCKED
        ) AS best
    ))
    RETURNING run.id, run.body_bucket, run.body_id, run.fence, run.queue, run.tenant, run.priority, run.attempt, run.lost,
              run.due, run.started_at, run.attempt_until, run.deadline, run.job_id, run.scheduled_at, run.key_lock, run.origin,
              run.rank, run.cancel_at, run.queued_at, run.limits, run.has_children,
              greatest(run.ready_at, CASE WHEN EXISTS (SELECT FROM mainspring.pause) THEN (
                  SELECT max(p.until) FROM mainspring.pause p
                  WHERE p.tenant IN (0, run.tenant) AND p.queue IN (0, run.queue) AND p.until <= clock.now) END) AS ready_at
), emitted AS (
    INSERT INTO mainspring.outbox (at, kind, tenant, runs)
    SELECT (SELECT now FROM clock), 'run.started', tenant, array_agg(id) FROM taken
    WHERE EXISTS (SELECT FROM mainspring.outbox_cursor) GROUP BY tenant
)
SELECT t.*, b.task, b.policy, b.payload,
       -- A run that has been claimed before has a queued_at; most runs have none, and no checkpoint.
       CASE WHEN t.queued_at IS NOT NULL THEN (SELECT c.state FROM mainspring.checkpoint c WHERE c.run_id = t.id) END AS checkpoint
FROM taken t JOIN mainspring.body b ON b.bucket = t.body_bucket AND b.id = coalesce(t.body_id, t.id)
ORDER BY t.rank, t.id

-- name: lowest_ranks
-- The first rank of each queue, where claims may start.
SELECT w.queue, best.rank
FROM unnest(:queues::int[]) AS w(queue), LATERAL (
    SELECT r.rank FROM mainspring.run r
    WHERE r.queue = w.queue AND r.claim_group = 0 AND r.state = :QUEUED
    ORDER BY r.rank, r.id LIMIT 1
) AS best

-- name: claim_hinted
-- Starts the queued runs of hints from a broker. As claim, it finds nothing if a rule must be checked.
-- Ids are sorted, so that two claims with common runs lock them in one order. `state + 0` keeps the planner from the index of
-- all queued runs.
WITH clock AS MATERIALIZED (
    SELECT mainspring.now_us() AS now
), alive AS MATERIALIZED (
    SELECT s.id FROM mainspring.session s, clock
    WHERE s.id = :session AND s.live AND NOT s.draining AND s.lease_until > clock.now
      AND NOT EXISTS (SELECT FROM mainspring.pause WHERE until IS NULL OR until > mainspring.now_us())
      AND NOT EXISTS (SELECT FROM mainspring.tenant WHERE running IS NOT NULL)
      AND NOT EXISTS (SELECT FROM mainspring.queue_policy q WHERE q.closely AND q.queue = ANY (:queues::int[]))
      AND NOT EXISTS (SELECT FROM mainspring.limiter WHERE kind = :LIMIT_PER_PERIOD)
    FOR SHARE OF s
), batch AS MATERIALIZED (
    SELECT ((SELECT store_epoch FROM mainspring.meta)::bigint << 40) + nextval('mainspring.fence_seq') AS fence FROM alive
), taken AS (
    UPDATE mainspring.run
    SET state = :RUNNING, attempt = attempt + 1, fence = greatest(batch.fence, run.fence + 1), claim = :claim, session = :session,
        started_at = greatest(clock.now, run.due), attempt_until = least(clock.now + run.timeout, run.deadline)
    FROM clock, batch
    WHERE run.id = ANY (ARRAY(
        SELECT r.id FROM alive, mainspring.run r
        WHERE r.id = ANY (:runs::uuid[]) AND r.queue = ANY (:queues::int[]) AND r.claim_group = 0 AND r.state + 0 = :QUEUED
          AND (r.start_by IS NULL OR r.attempt > 0 OR r.start_by >= (SELECT now FROM clock))
          AND (r.deadline IS NULL OR r.deadline > (SELECT now FROM clock))
        ORDER BY r.id FOR UPDATE OF r SKIP LOCKED
    ))
    RETURNING run.id, run.body_bucket, run.body_id, run.fence, run.queue, run.tenant, run.priority, run.attempt, run.lost,
              run.due, run.started_at, run.attempt_until, run.deadline, run.job_id, run.scheduled_at, run.key_lock, run.origin,
              run.rank, run.cancel_at, run.queued_at, run.limits, run.has_children,
              greatest(run.ready_at, CASE WHEN EXISTS (SELECT FROM mainspring.pause) THEN (
                  SELECT max(p.until) FROM mainspring.pause p
                  WHERE p.tenant IN (0, run.tenant) AND p.queue IN (0, run.queue) AND p.until <= clock.now) END) AS ready_at
), emitted AS (
    INSERT INTO mainspring.outbox (at, kind, tenant, runs)
    SELECT (SELECT now FROM clock), 'run.started', tenant, array_agg(id) FROM taken
    WHERE EXISTS (SELECT FROM mainspring.outbox_cursor) GROUP BY tenant
)
SELECT t.*, b.task, b.policy, b.payload,
       -- A run that has been claimed before has a queued_at; most runs have none, and no checkpoint.
       CASE WHEN t.queued_at IS NOT NULL THEN (SELECT c.state FROM mainspring.checkpoint c WHERE c.run_id = t.id) END AS checkpoint
FROM taken t JOIN mainspring.body b ON b.bucket = t.body_bucket AND b.id = coalesce(t.body_id, t.id)
ORDER BY t.rank, t.id

-- name: claim_from_groups
-- As claim, for a worker with claim groups of its own and for limits per period: best first over the claim groups of a queue.
-- First counts without a lock how many of each claim group are among the best, then takes that many of each. A run that is not
-- taken is not locked, since other claims would skip it.
WITH clock AS MATERIALIZED (
    SELECT mainspring.now_us() AS now
), alive AS MATERIALIZED (
    SELECT s.id, s.claim_groups FROM mainspring.session s, clock
    WHERE s.id = :session AND s.live AND NOT s.draining AND s.lease_until > clock.now
      AND NOT EXISTS (SELECT FROM mainspring.pause WHERE until IS NULL OR until > mainspring.now_us())
      AND NOT EXISTS (SELECT FROM mainspring.tenant WHERE running IS NOT NULL)
      AND NOT EXISTS (SELECT FROM mainspring.queue_policy q WHERE q.closely AND q.queue = ANY (:queues::int[]))
    FOR SHARE OF s
), batch AS MATERIALIZED (
    SELECT ((SELECT store_epoch FROM mainspring.meta)::bigint << 40) + nextval('mainspring.fence_seq') AS fence FROM alive
), share AS MATERIALIZED (
    SELECT best.queue, best.claim_group, count(*) AS most
    FROM alive, unnest(:queues::int[], :limits::int[]) AS w(queue, most), LATERAL (
        SELECT first.queue, first.claim_group FROM unnest(alive.claim_groups || 0) AS l(claim_group), LATERAL (
            SELECT r.queue, r.claim_group, r.rank, r.id FROM mainspring.run r
            WHERE r.queue = w.queue AND r.claim_group = l.claim_group AND r.state = :QUEUED
              AND (r.start_by IS NULL OR r.attempt > 0 OR r.start_by >= (SELECT now FROM clock))
              AND (r.deadline IS NULL OR r.deadline > (SELECT now FROM clock))
            ORDER BY r.rank, r.id LIMIT w.most
        ) AS first ORDER BY first.rank, first.id LIMIT w.most
    ) AS best GROUP BY best.queue, best.claim_group
), taken AS (
    UPDATE mainspring.run
    SET state = :RUNNING, attempt = attempt + 1, fence = greatest(batch.fence, run.fence + 1), claim = :claim, session = :session,
        started_at = greatest(clock.now, run.due), attempt_until = least(clock.now + run.timeout, run.deadline)
    FROM clock, batch
    WHERE run.id = ANY (ARRAY(
        SELECT best.id
        FROM share, LATERAL (
            SELECT r.id FROM mainspring.run r
            WHERE r.queue = share.queue AND r.claim_group = share.claim_group AND r.state = :QUEUED
              AND (r.start_by IS NULL OR r.attempt > 0 OR r.start_by >= (SELECT now FROM clock))
              AND (r.deadline IS NULL OR r.deadline > (SELECT now FROM clock))
            ORDER BY r.rank, r.id LIMIT share.most FOR UPDATE SKIP LOCKED
        ) AS best
    ))
    RETURNING run.id, run.body_bucket, run.body_id, run.fence, run.queue, run.tenant, run.priority, run.attempt, run.lost,
              run.due, run.started_at, run.attempt_until, run.deadline, run.job_id, run.scheduled_at, run.key_lock, run.origin,
              run.rank, run.cancel_at, run.queued_at, run.limits, run.has_children,
              greatest(run.ready_at, CASE WHEN EXISTS (SELECT FROM mainspring.pause) THEN (
                  SELECT max(p.until) FROM mainspring.pause p
                  WHERE p.tenant IN (0, run.tenant) AND p.queue IN (0, run.queue) AND p.until <= clock.now) END) AS ready_at
), started AS MATERIALIZED (
    -- Limits per period count a run from the time of its start.
    SELECT g.number, g.per, count(*)::int AS runs
    FROM taken t, mainspring.unpack_limits(t.limits) AS g WHERE g.kind = :LIMIT_PER_PERIOD GROUP BY g.number, g.per
), locked AS MATERIALIZED (
    SELECT l.number FROM mainspring.limiter l
    WHERE l.number = ANY (ARRAY(SELECT number FROM started)) ORDER BY l.number FOR UPDATE
), counted AS (
    UPDATE mainspring.limiter l
    SET used = greatest(l.used - s.runs, 0), times = mainspring.times_after(l.times, clock.now, s.per, s.runs),
        forget_at = greatest(l.forget_at, clock.now + s.per),
        wake_at = CASE WHEN l.head IS NOT NULL THEN (mainspring.times_after(l.times, clock.now, s.per, s.runs))[1] + s.per END
    FROM started s, clock
    WHERE l.number = ANY (ARRAY(SELECT number FROM locked)) AND s.number = l.number
), emitted AS (
    INSERT INTO mainspring.outbox (at, kind, tenant, runs)
    SELECT (SELECT now FROM clock), 'run.started', tenant, array_agg(id) FROM taken
    WHERE EXISTS (SELECT FROM mainspring.outbox_cursor) GROUP BY tenant
)
SELECT t.*, b.task, b.policy, b.payload,
       -- A run that has been claimed before has a queued_at; most runs have none, and no checkpoint.
       CASE WHEN t.queued_at IS NOT NULL THEN (SELECT c.state FROM mainspring.checkpoint c WHERE c.run_id = t.id) END AS checkpoint
FROM taken t JOIN mainspring.body b ON b.bucket = t.body_bucket AND b.id = coalesce(t.body_id, t.id)
ORDER BY t.rank, t.id

-- name: is_limited
SELECT EXISTS (SELECT FROM mainspring.pause WHERE until IS NULL OR until > mainspring.now_us())
       OR EXISTS (SELECT FROM mainspring.tenant WHERE running IS NOT NULL)

-- name: explain_empty_claim
-- Why a claim may have found nothing. for_lanes: claim_from_groups must be used.
SELECT EXISTS (SELECT FROM mainspring.pause WHERE until IS NULL OR until > mainspring.now_us())
       OR EXISTS (SELECT FROM mainspring.tenant WHERE running IS NOT NULL) AS limited,
       EXISTS (SELECT FROM mainspring.session WHERE id = :session AND claim_groups IS NOT NULL)
           OR EXISTS (SELECT FROM mainspring.limiter WHERE kind = :LIMIT_PER_PERIOD) AS for_lanes,
       ARRAY(SELECT queue FROM mainspring.queue_policy WHERE closely AND queue = ANY (:queues::int[])) AS policed

-- name: claiming_session
-- The first step of a claim that must check rules.
SELECT s.claim_groups FROM mainspring.session s
WHERE s.id = :session AND s.live AND NOT s.draining AND s.lease_until > mainspring.now_us() FOR SHARE OF s

-- name: paused_tenants
SELECT tenant, queue FROM mainspring.pause WHERE queue = ANY (:queues::int[] || 0) AND (until IS NULL OR until > mainspring.now_us())

-- name: lock_quotas
-- Serializes claims while quotas apply; the next statement counts what other claims have taken.
SELECT number, running FROM mainspring.tenant
WHERE running IS NOT NULL AND (:tenants::int[] IS NULL OR number = ANY (:tenants::int[])) ORDER BY number FOR UPDATE

-- name: running_by_tenant
SELECT tenant, count(*) AS running FROM mainspring.run WHERE state = :RUNNING AND tenant = ANY (:tenants::int[]) GROUP BY tenant

-- name: best_runs
-- The best runs of a claim group of a queue, of one tenant (null: any), except paused tenants and tenants without room.
SELECT r.id, r.tenant, r.rank FROM mainspring.run r
WHERE r.queue = :queue AND r.claim_group = :claim_group AND r.state = :QUEUED
  AND (:tenant::int IS NULL OR r.tenant = :tenant) AND r.tenant <> ALL (:excluded_tenants::int[]) AND r.id <> ALL (:excluded_runs::uuid[])
  AND (r.start_by IS NULL OR r.attempt > 0 OR r.start_by >= mainspring.now_us())
  AND (r.deadline IS NULL OR r.deadline > mainspring.now_us())
ORDER BY r.rank, r.id LIMIT :limit FOR UPDATE SKIP LOCKED

-- name: claim_chosen
-- Starts runs that the caller has locked. Its transaction may have begun before some of them were due, so the clock is read now.
WITH clock AS MATERIALIZED (
    SELECT mainspring.clock_us() AS now
), batch AS MATERIALIZED (
    SELECT ((SELECT store_epoch FROM mainspring.meta)::bigint << 40) + nextval('mainspring.fence_seq') AS fence
), taken AS (
    UPDATE mainspring.run
    SET state = :RUNNING, attempt = attempt + 1, fence = greatest(batch.fence, run.fence + 1), claim = :claim, session = :session,
        started_at = greatest(clock.now, run.due), attempt_until = least(clock.now + run.timeout, run.deadline)
    FROM clock, batch
    WHERE run.id = ANY (:runs::uuid[])
    RETURNING run.id, run.body_bucket, run.body_id, run.fence, run.queue, run.tenant, run.priority, run.attempt, run.lost,
              run.due, run.started_at, run.attempt_until, run.deadline, run.job_id, run.scheduled_at, run.key_lock, run.origin,
              run.rank, run.cancel_at, run.queued_at, run.limits, run.has_children,
              greatest(run.ready_at, CASE WHEN EXISTS (SELECT FROM mainspring.pause) THEN (
                  SELECT max(p.until) FROM mainspring.pause p
                  WHERE p.tenant IN (0, run.tenant) AND p.queue IN (0, run.queue) AND p.until <= clock.now) END) AS ready_at
), started AS MATERIALIZED (
    -- Limits per period count a run from the time of its start.
    SELECT g.number, g.per, count(*)::int AS runs
    FROM taken t, mainspring.unpack_limits(t.limits) AS g WHERE g.kind = :LIMIT_PER_PERIOD GROUP BY g.number, g.per
), locked AS MATERIALIZED (
    SELECT l.number FROM mainspring.limiter l
    WHERE l.number = ANY (ARRAY(SELECT number FROM started)) ORDER BY l.number FOR UPDATE
), counted AS (
    UPDATE mainspring.limiter l
    SET used = greatest(l.used - s.runs, 0), times = mainspring.times_after(l.times, clock.now, s.per, s.runs),
        forget_at = greatest(l.forget_at, clock.now + s.per),
        wake_at = CASE WHEN l.head IS NOT NULL THEN (mainspring.times_after(l.times, clock.now, s.per, s.runs))[1] + s.per END
    FROM started s, clock
    WHERE l.number = ANY (ARRAY(SELECT number FROM locked)) AND s.number = l.number
), emitted AS (
    INSERT INTO mainspring.outbox (at, kind, tenant, runs)
    SELECT (SELECT now FROM clock), 'run.started', tenant, array_agg(id) FROM taken
    WHERE EXISTS (SELECT FROM mainspring.outbox_cursor) GROUP BY tenant
)
SELECT t.*, b.task, b.policy, b.payload,
       -- A run that has been claimed before has a queued_at; most runs have none, and no checkpoint.
       CASE WHEN t.queued_at IS NOT NULL THEN (SELECT c.state FROM mainspring.checkpoint c WHERE c.run_id = t.id) END AS checkpoint
FROM taken t JOIN mainspring.body b ON b.bucket = t.body_bucket AND b.id = coalesce(t.body_id, t.id)
ORDER BY t.rank, t.id

-- name: held
SELECT r.id, r.body_bucket, r.body_id, r.fence, r.queue, r.tenant, r.priority, r.attempt, r.lost, r.due, r.started_at,
       r.attempt_until, r.deadline, r.job_id, r.scheduled_at, r.key_lock, r.origin, r.cancel_at, r.session, r.limits,
       r.has_children, r.ready_at, b.task, b.policy, b.payload
FROM mainspring.run r JOIN mainspring.body b ON b.bucket = r.body_bucket AND b.id = coalesce(r.body_id, r.id)
WHERE r.id = ANY (:runs::uuid[]) AND r.claim IS NOT NULL

-- name: open_session
WITH opened AS (
    INSERT INTO mainspring.session
        (kind, name, datacenter, version, started_at, lease_until, lease, queues, tasks, owner, serves, labels,
         priorities, slots)
    SELECT :kind, :name, :datacenter, :version, now, now + :ttl::bigint, :ttl::bigint, :queues, :tasks, :owner, :serves, :labels, :priorities, :slots
    FROM (SELECT mainspring.now_us() AS now) AS clock
    RETURNING id, kind, started_at
), emitted AS (
    INSERT INTO mainspring.outbox (at, kind, tenant, runs)
    SELECT started_at, 'worker.joined', 0, ARRAY[lpad(to_hex(id), 32, '0')::uuid] FROM opened
    WHERE kind = :WORKER AND EXISTS (SELECT FROM mainspring.outbox_cursor)
)
SELECT id FROM opened

-- name: grant_claim_groups
-- Grants workers, or one of them, the claim groups that their labels cover. Called after a worker registers and after a new label
-- set is added, each in its own transaction: the later one sees the earlier. Groups are only added, so that concurrent calls do
-- not remove each other's.
UPDATE mainspring.session s
SET claim_groups = ARRAY(SELECT unnest(s.claim_groups) UNION
                  SELECT n.id FROM mainspring.name n WHERE n.kind = :LABEL_SET_NAME AND string_to_array(n.name, ',') <@ s.labels)
WHERE s.live AND s.labels <> '{}' AND (:session::bigint IS NULL OR s.id = :session) AND EXISTS (
    SELECT FROM mainspring.name n
    WHERE n.kind = :LABEL_SET_NAME AND string_to_array(n.name, ',') <@ s.labels AND n.id <> ALL (coalesce(s.claim_groups, '{}')))

-- name: open_own_groups
-- Runs exist that only these workers may execute. Sessions are locked in the order of their ids.
UPDATE mainspring.session s SET claim_groups = coalesce(s.claim_groups, '{}') || (-s.id)::int
FROM (SELECT id FROM mainspring.session WHERE id = ANY (:workers::bigint[]) AND live ORDER BY id FOR UPDATE) AS these
WHERE s.id = these.id AND (-s.id)::int <> ALL (coalesce(s.claim_groups, '{}'))

-- name: lock_own_groups
SELECT id FROM mainspring.session WHERE live AND (-id)::int = ANY (claim_groups) ORDER BY id FOR UPDATE SKIP LOCKED

-- name: close_own_groups
-- The workers are locked, so no further run can be added for them; those without targeted runs lose their own group.
UPDATE mainspring.session s SET claim_groups = nullif(array_remove(s.claim_groups, (-s.id)::int), '{}')
WHERE s.id = ANY (:workers::bigint[])
  AND NOT EXISTS (SELECT FROM mainspring.run r WHERE r.target = s.id)
  AND NOT EXISTS (SELECT FROM mainspring.waiting w WHERE w.target = s.id)

-- name: heartbeat
-- Extends the lease, requeues runs that the worker does not know, and returns the runs to cancel.
-- The row lock on the session serializes a heartbeat with the expiry of the session: one of them sees the other.
WITH clock AS MATERIALIZED (
    SELECT mainspring.now_us() AS now
), kept AS (
    UPDATE mainspring.session s SET lease_until = clock.now + :ttl::bigint
    FROM clock WHERE s.id = :session AND s.live
    RETURNING s.id, s.draining
), mine AS MATERIALIZED (
    SELECT r.id, r.cancel_at IS NOT NULL AS stops, r.cancel_at IS NULL AND r.limits IS NULL AS free, r.claim <= :last_claim AND r.claim <> ALL (:pending::int[]) AND r.id <> ALL (:held::uuid[]) AS unknown
    FROM mainspring.run r WHERE r.session = :session AND r.state = :RUNNING
), returned AS (
    UPDATE mainspring.run r
    SET state = :QUEUED, attempt = r.attempt - 1, claim = NULL, session = NULL, started_at = NULL,
        attempt_until = NULL, queued_at = (SELECT now FROM clock), ready_at = (SELECT now FROM clock)
    FROM kept
    WHERE r.id = ANY (ARRAY(SELECT id FROM mine WHERE unknown AND free))
      AND r.session = :session AND r.claim <= :last_claim AND r.cancel_at IS NULL AND r.limits IS NULL
    RETURNING r.id, r.tenant
), emitted AS (
    INSERT INTO mainspring.outbox (at, kind, tenant, runs)
    SELECT (SELECT now FROM clock), 'run.released', tenant, array_agg(id) FROM returned
    WHERE EXISTS (SELECT FROM mainspring.outbox_cursor) GROUP BY tenant
)
SELECT clock.now, EXISTS (SELECT FROM kept) AS alive, (SELECT count(*) FROM returned) AS returned,
       coalesce((SELECT draining FROM kept), false) AS draining,
       -- Cancelled runs and runs with limits are completed by the caller, because more than their row changes.
       ARRAY(SELECT mine.id FROM mine, kept WHERE unknown AND NOT free) AS other_unknown,
       ARRAY(SELECT id FROM mine WHERE NOT unknown AND stops AND id = ANY (:held::uuid[])) AS cancels
FROM clock

-- name: renew_leases
-- Renews the leases of many workers. Sessions are locked in the order of their ids.
WITH clock AS MATERIALIZED (
    SELECT mainspring.now_us() AS now
), these AS MATERIALIZED (
    SELECT s.id, i.ttl FROM (SELECT id, max(ttl) AS ttl FROM unnest(:sessions::bigint[], :ttls::bigint[]) AS i(id, ttl) GROUP BY id) AS i
    JOIN mainspring.session s ON s.id = i.id WHERE s.live ORDER BY s.id FOR UPDATE OF s
), kept AS (
    UPDATE mainspring.session s SET lease_until = clock.now + t.ttl FROM these t, clock WHERE s.id = t.id
    RETURNING s.id, s.draining
)
SELECT clock.now, kept.id, kept.draining FROM clock LEFT JOIN kept ON true

-- name: fences
-- A run that the session has claimed again since its heartbeat has a greater claim number.
SELECT id, fence FROM mainspring.run WHERE id = ANY (:runs::uuid[]) AND session = :session AND claim <= :last_claim

-- name: close_session
WITH closed AS (
    UPDATE mainspring.session SET live = false, ended_at = mainspring.now_us() WHERE id = :session AND live
    RETURNING id, kind, ended_at
)
INSERT INTO mainspring.outbox (at, kind, tenant, runs)
SELECT ended_at, 'worker.left', 0, ARRAY[lpad(to_hex(id), 32, '0')::uuid] FROM closed
WHERE kind = :WORKER AND EXISTS (SELECT FROM mainspring.outbox_cursor)
