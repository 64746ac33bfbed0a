-- name: claim
-- Start the best runs of some queues: the attempt is counted and the batch gets one fence, in one statement.
-- Where anything is paused or a tenant has a quota it finds nothing: then claim_best looks closer. Nor does it for a worker
-- with claim_groups of its own, or where anything has a limit per period: claim_lanes is for that; nor where one of the queues has
-- a policy that a claim must look at. What is not in use costs an empty look.
-- A claim that was overtaken between its fence and its rows must still give a greater one than the run had.
-- `start_ranks`: the rank to begin at, by queue; 0 is the front.
-- ready_at, where it is later than due: since when the run could have started. Pauses that are over are kept for that.
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
    SET state = :RUNNING, attempt = attempt + 1, rev = rev + 1, fence = greatest(batch.fence, run.fence + 1), claim = :claim, session = :session,
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
              run.rank, run.cancel_at, run.rev, run.limits, run.has_children,
              greatest(run.ready_at, CASE WHEN EXISTS (SELECT FROM mainspring.pause) THEN (
                  SELECT max(p.until) FROM mainspring.pause p
                  WHERE p.tenant IN (0, run.tenant) AND p.queue IN (0, run.queue) AND p.until <= clock.now) END) AS ready_at
), emitted AS (
    INSERT INTO mainspring.outbox (at, kind, tenant, runs)
    SELECT (SELECT now FROM clock), 'run.started', tenant, array_agg(id) FROM taken
    WHERE EXISTS (SELECT FROM mainspring.outbox_cursor) GROUP BY tenant
)
SELECT t.*, b.task, b.policy, b.payload,
       -- Nothing has happened to most of them but that they were made and claimed.
       CASE WHEN t.rev > 2 THEN (SELECT c.state FROM mainspring.checkpoint c WHERE c.run_id = t.id) END AS checkpoint
FROM taken t JOIN mainspring.body b ON b.bucket = t.body_bucket AND b.id = coalesce(t.body_id, t.id)
ORDER BY t.rank, t.id

-- name: lowest_ranks
-- Where claims of some queues may begin.
SELECT w.queue, best.rank
FROM unnest(:queues::int[]) AS w(queue), LATERAL (
    SELECT r.rank FROM mainspring.run r
    WHERE r.queue = w.queue AND r.claim_group = 0 AND r.state = :QUEUED
    ORDER BY r.rank, r.id LIMIT 1
) AS best

-- name: claim_hinted
-- Start runs that an engine has hinted at, as far as they are queued. As claim it finds nothing where a rule must be looked at.
-- The ids are sorted, so that two claims that share some take them in the same order. The sum keeps the planner from the index of
-- all that is ready.
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
    SET state = :RUNNING, attempt = attempt + 1, rev = rev + 1, fence = greatest(batch.fence, run.fence + 1), claim = :claim, session = :session,
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
              run.rank, run.cancel_at, run.rev, run.limits, run.has_children,
              greatest(run.ready_at, CASE WHEN EXISTS (SELECT FROM mainspring.pause) THEN (
                  SELECT max(p.until) FROM mainspring.pause p
                  WHERE p.tenant IN (0, run.tenant) AND p.queue IN (0, run.queue) AND p.until <= clock.now) END) AS ready_at
), emitted AS (
    INSERT INTO mainspring.outbox (at, kind, tenant, runs)
    SELECT (SELECT now FROM clock), 'run.started', tenant, array_agg(id) FROM taken
    WHERE EXISTS (SELECT FROM mainspring.outbox_cursor) GROUP BY tenant
)
SELECT t.*, b.task, b.policy, b.payload,
       -- Nothing has happened to most of them but that they were made and claimed.
       CASE WHEN t.rev > 2 THEN (SELECT c.state FROM mainspring.checkpoint c WHERE c.run_id = t.id) END AS checkpoint
FROM taken t JOIN mainspring.body b ON b.bucket = t.body_bucket AND b.id = coalesce(t.body_id, t.id)
ORDER BY t.rank, t.id

-- name: claim_from_groups
-- The same for a worker with claim_groups of its own, best first across the claim_groups of a queue; and where there are limits per
-- period. First it is looked, without a lock, how many of each claim_group are among the best; then so many of each are taken.
-- Nothing is locked that is not taken: others would pass it over.
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
    SET state = :RUNNING, attempt = attempt + 1, rev = rev + 1, fence = greatest(batch.fence, run.fence + 1), claim = :claim, session = :session,
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
              run.rank, run.cancel_at, run.rev, run.limits, run.has_children,
              greatest(run.ready_at, CASE WHEN EXISTS (SELECT FROM mainspring.pause) THEN (
                  SELECT max(p.until) FROM mainspring.pause p
                  WHERE p.tenant IN (0, run.tenant) AND p.queue IN (0, run.queue) AND p.until <= clock.now) END) AS ready_at
), started AS MATERIALIZED (
    -- Of limits per period. They count from now on by the time of their start.
    SELECT g.number, count(*)::int AS runs, max(g.per) AS per
    FROM taken t, mainspring.unpack_limits(t.limits) AS g WHERE t.limits IS NOT NULL AND g.kind = :LIMIT_PER_PERIOD GROUP BY g.number
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
       -- Nothing has happened to most of them but that they were made and claimed.
       CASE WHEN t.rev > 2 THEN (SELECT c.state FROM mainspring.checkpoint c WHERE c.run_id = t.id) END AS checkpoint
FROM taken t JOIN mainspring.body b ON b.bucket = t.body_bucket AND b.id = coalesce(t.body_id, t.id)
ORDER BY t.rank, t.id

-- name: is_limited
SELECT EXISTS (SELECT FROM mainspring.pause WHERE until IS NULL OR until > mainspring.now_us())
       OR EXISTS (SELECT FROM mainspring.tenant WHERE running IS NOT NULL)

-- name: explain_empty_claim
-- Why a claim may have found nothing. for_lanes: claim_lanes is to be asked.
SELECT EXISTS (SELECT FROM mainspring.pause WHERE until IS NULL OR until > mainspring.now_us())
       OR EXISTS (SELECT FROM mainspring.tenant WHERE running IS NOT NULL) AS limited,
       EXISTS (SELECT FROM mainspring.session WHERE id = :session AND claim_groups IS NOT NULL)
           OR EXISTS (SELECT FROM mainspring.limiter WHERE kind = :LIMIT_PER_PERIOD) AS for_lanes,
       ARRAY(SELECT queue FROM mainspring.queue_policy WHERE closely AND queue = ANY (:queues::int[])) AS policed

-- name: claiming_session
-- The first step of a claim that must look closer.
SELECT s.claim_groups FROM mainspring.session s
WHERE s.id = :session AND s.live AND NOT s.draining AND s.lease_until > mainspring.now_us() FOR SHARE OF s

-- name: paused_tenants
SELECT tenant, queue FROM mainspring.pause WHERE queue = ANY (:queues::int[] || 0) AND (until IS NULL OR until > mainspring.now_us())

-- name: lock_quotas
-- One claim at a time where quotas are to be kept; what others have claimed is counted by the next statement.
SELECT number, running FROM mainspring.tenant
WHERE running IS NOT NULL AND (:tenants::int[] IS NULL OR number = ANY (:tenants::int[])) ORDER BY number FOR UPDATE

-- name: running_by_tenant
SELECT tenant, count(*) AS running FROM mainspring.run WHERE state = :RUNNING AND tenant = ANY (:tenants::int[]) GROUP BY tenant

-- name: best_runs
-- The best of a claim_group of a queue, of one tenant (null: any), but of none of those that are paused or have no room.
SELECT r.id, r.tenant, r.rank FROM mainspring.run r
WHERE r.queue = :queue AND r.claim_group = :claim_group AND r.state = :QUEUED
  AND (:tenant::int IS NULL OR r.tenant = :tenant) AND r.tenant <> ALL (:excluded_tenants::int[]) AND r.id <> ALL (:excluded_runs::uuid[])
  AND (r.start_by IS NULL OR r.attempt > 0 OR r.start_by >= mainspring.now_us())
  AND (r.deadline IS NULL OR r.deadline > mainspring.now_us())
ORDER BY r.rank, r.id LIMIT :limit FOR UPDATE SKIP LOCKED

-- name: claim_chosen
-- Start runs that the caller has locked. Its transaction may have begun before some of them were due: the time is that of now.
WITH clock AS MATERIALIZED (
    SELECT mainspring.clock_us() AS now
), batch AS MATERIALIZED (
    SELECT ((SELECT store_epoch FROM mainspring.meta)::bigint << 40) + nextval('mainspring.fence_seq') AS fence
), taken AS (
    UPDATE mainspring.run
    SET state = :RUNNING, attempt = attempt + 1, rev = rev + 1, fence = greatest(batch.fence, run.fence + 1), claim = :claim, session = :session,
        started_at = greatest(clock.now, run.due), attempt_until = least(clock.now + run.timeout, run.deadline)
    FROM clock, batch
    WHERE run.id = ANY (:runs::uuid[])
    RETURNING run.id, run.body_bucket, run.body_id, run.fence, run.queue, run.tenant, run.priority, run.attempt, run.lost,
              run.due, run.started_at, run.attempt_until, run.deadline, run.job_id, run.scheduled_at, run.key_lock, run.origin,
              run.rank, run.cancel_at, run.rev, run.limits, run.has_children,
              greatest(run.ready_at, CASE WHEN EXISTS (SELECT FROM mainspring.pause) THEN (
                  SELECT max(p.until) FROM mainspring.pause p
                  WHERE p.tenant IN (0, run.tenant) AND p.queue IN (0, run.queue) AND p.until <= clock.now) END) AS ready_at
), started AS MATERIALIZED (
    -- Of limits per period. They count from now on by the time of their start.
    SELECT g.number, count(*)::int AS runs, max(g.per) AS per
    FROM taken t, mainspring.unpack_limits(t.limits) AS g WHERE t.limits IS NOT NULL AND g.kind = :LIMIT_PER_PERIOD GROUP BY g.number
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
       -- Nothing has happened to most of them but that they were made and claimed.
       CASE WHEN t.rev > 2 THEN (SELECT c.state FROM mainspring.checkpoint c WHERE c.run_id = t.id) END AS checkpoint
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
-- Workers, or one of them, get the claim_groups that their labels are enough for. Asked after a worker has come and after a new
-- set of labels is required, each in a transaction of its own: whoever comes second sees the first. Lanes only come, so that
-- one who has waited for another does not take away what that one gave.
UPDATE mainspring.session s
SET claim_groups = ARRAY(SELECT unnest(s.claim_groups) UNION
                  SELECT n.id FROM mainspring.name n WHERE n.kind = :LABEL_SET_NAME AND string_to_array(n.name, ',') <@ s.labels)
WHERE s.live AND s.labels <> '{}' AND (:session::bigint IS NULL OR s.id = :session) AND EXISTS (
    SELECT FROM mainspring.name n
    WHERE n.kind = :LABEL_SET_NAME AND string_to_array(n.name, ',') <@ s.labels AND n.id <> ALL (coalesce(s.claim_groups, '{}')))

-- name: open_own_groups
-- There is something for these workers alone. In the order of their numbers, as everybody who locks several.
UPDATE mainspring.session s SET claim_groups = coalesce(s.claim_groups, '{}') || (-s.id)::int
FROM (SELECT id FROM mainspring.session WHERE id = ANY (:workers::bigint[]) AND live ORDER BY id FOR UPDATE) AS these
WHERE s.id = these.id AND (-s.id)::int <> ALL (coalesce(s.claim_groups, '{}'))

-- name: lock_own_groups
SELECT id FROM mainspring.session WHERE live AND (-id)::int = ANY (claim_groups) ORDER BY id FOR UPDATE SKIP LOCKED

-- name: close_own_groups
-- Of workers that are locked, so that nothing more can come for them: there is nothing left for them alone.
UPDATE mainspring.session s SET claim_groups = nullif(array_remove(s.claim_groups, (-s.id)::int), '{}')
WHERE s.id = ANY (:workers::bigint[])
  AND NOT EXISTS (SELECT FROM mainspring.run r WHERE r.target = s.id)
  AND NOT EXISTS (SELECT FROM mainspring.waiting w WHERE w.target = s.id)

-- name: heartbeat
-- Extend the lease, queue again what the worker does not know of, and tell it what should stop.
-- The row lock on the session serialises a beat with its burial: one of them sees the other.
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
    SET state = :QUEUED, attempt = r.attempt - 1, rev = r.rev + 1, claim = NULL, session = NULL, started_at = NULL,
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
       -- What was asked to stop, or has limits, is settled: it is more than a change of its row.
       ARRAY(SELECT mine.id FROM mine, kept WHERE unknown AND NOT free) AS other_unknown,
       ARRAY(SELECT id FROM mine WHERE NOT unknown AND stops AND id = ANY (:held::uuid[])) AS cancels
FROM clock

-- name: renew_leases
-- Of many workers that have nothing to tell, in the order of their numbers, as everybody who locks several.
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
