-- name: fire
-- Advances schedules, writes their ticks and creates their runs: one statement for many jobs without keys.
-- A schedule advances only under the rev that it was planned with; a recorded tick creates no second run.
-- `IS TRUE` keeps a hash join, where the planner would choose a nested loop: it cannot know how many ticks there are.
WITH clock AS MATERIALIZED (
    SELECT mainspring.now_us() AS now
), moved AS (
    UPDATE mainspring.schedule s
    SET rev = s.rev + 1, next_fire = f.next_fire, tick = f.tick, active = NOT f.finished, tick_no = s.tick_no + f.ticks
    FROM unnest(:jobs::uuid[], :revs::bigint[], :next_fires::bigint[], :finished::boolean[], :tick_counts::int[], :exclusive::boolean[], :last_ticks::bigint[],
                :next_ticks::bigint[])
             AS f(job_id, rev, next_fire, finished, ticks, exclusive, last_tick, tick),
         mainspring.shard h, mainspring.session owner, clock
    WHERE s.job_id = f.job_id AND s.rev = f.rev AND s.active AND h.id = s.shard AND h.owner = :owner
      AND owner.id = :owner AND owner.live AND owner.lease_until > clock.now AND f.last_tick <= clock.now
    RETURNING s.job_id, s.shard, h.epoch, f.finished, f.exclusive AND (
        EXISTS (SELECT FROM mainspring.run r WHERE r.job_id = s.job_id) OR
        EXISTS (SELECT FROM mainspring.waiting w WHERE w.job_id = s.job_id)) AS busy
), ended AS (
    UPDATE mainspring.job SET state = :JOB_FINISHED, updated_at = clock.now FROM moved m, clock
    WHERE job.id = m.job_id AND m.finished AND job.state IN (:JOB_SCHEDULED, :JOB_PAUSED)
), ticks AS MATERIALIZED (
    SELECT t.*, m.shard, m.epoch, m.busy
    FROM unnest(:job_id::uuid[], :scheduled_at::bigint[], :decision::smallint[], :reason::text[], :run_id::uuid[], :due::bigint[], :late::boolean[], :ticks::int[],
                :last_at::bigint[], :version::int[], :tenant::int[], :queue::int[], :priority::smallint[], :timeout::bigint[], :start_by::bigint[], :deadline::bigint[],
                :body_id::uuid[], :origin::smallint[], :claim_group::int[], :limits::text[], :target::text[], :bucket::int[])
             AS t(job_id, scheduled_at, decision, reason, run_id, due, late, ticks, last_at, version, tenant, queue, priority,
                  timeout, start_by, deadline, body_id, origin, claim_group, limits, target, bucket)
    JOIN moved m ON m.job_id = t.job_id
), recorded AS (
    INSERT INTO mainspring.ledger (job_id, scheduled_at, decision, job_version, epoch, run_id, reason, ticks, last_at, tenant,
                                   target)
    SELECT t.job_id, t.scheduled_at, CASE WHEN t.busy THEN :TICK_SKIPPED ELSE t.decision END, t.version, t.epoch,
           CASE WHEN NOT t.busy THEN t.run_id END,
           CASE WHEN t.busy AND t.decision = :TICK_RUN THEN 'overlap' ELSE t.reason END, t.ticks, t.last_at, t.tenant, t.target
    FROM ticks t ON CONFLICT DO NOTHING
    RETURNING job_id, scheduled_at, target, decision
), made AS MATERIALIZED (
    SELECT t.* FROM ticks t
    WHERE ((t.job_id, t.scheduled_at, t.target) IN (
        SELECT job_id, scheduled_at, target FROM recorded WHERE decision = :TICK_RUN)) IS TRUE
), queued AS (
    INSERT INTO mainspring.run (id, shard, state, priority, attempt, lost, tenant, queue, claim_group, body_bucket, rank, due,
                                created_at, timeout, start_by, deadline, scheduled_at, job_id, job_version, body_id, origin)
    SELECT m.run_id, m.shard, :QUEUED, m.priority, 0, 0, m.tenant, m.queue, m.claim_group, m.bucket,
           clock.now + m.priority * :HEAD_START::bigint + CASE WHEN m.late THEN :LATE_PENALTY ELSE 0 END, m.due, clock.now, m.timeout,
           m.start_by, m.deadline, m.scheduled_at, m.job_id, m.version, m.body_id, m.origin
    FROM made m, clock WHERE m.due <= clock.now AND m.limits IS NULL
), later AS (
    INSERT INTO mainspring.waiting (id, shard, state, priority, attempt, lost, tenant, queue, claim_group, body_bucket, due, created_at,
                                    timeout, late, start_by, deadline, scheduled_at, job_id, job_version, body_id, origin,
                                    limits)
    SELECT m.run_id, m.shard, :SCHEDULED, m.priority, 0, 0, m.tenant, m.queue, m.claim_group, m.bucket, m.due, clock.now, m.timeout, m.late,
           m.start_by, m.deadline, m.scheduled_at, m.job_id, m.version, m.body_id, m.origin, m.limits::bigint[]
    FROM made m, clock WHERE m.due > clock.now OR m.limits IS NOT NULL
), emitted AS (
    INSERT INTO mainspring.outbox (at, kind, tenant, runs)
    SELECT (SELECT now FROM clock), 'run.submitted', tenant, array_agg(run_id) FROM made
    WHERE EXISTS (SELECT FROM mainspring.outbox_cursor) GROUP BY tenant
)
SELECT job_id, count(run_id) AS runs
FROM (SELECT job_id, NULL::uuid AS run_id FROM moved UNION ALL SELECT job_id, run_id FROM made) AS fired GROUP BY job_id

-- name: move_schedule
-- The first step of firing a job whose runs have a key. It locks the row of the schedule.
UPDATE mainspring.schedule s
SET rev = s.rev + 1, next_fire = :next_fire, tick = :next_tick, active = NOT :finished::boolean, tick_no = s.tick_no + :ticks::int
FROM mainspring.shard h, mainspring.session owner
WHERE s.job_id = :job AND s.rev = :rev AND s.active AND h.id = s.shard AND h.owner = :owner
  AND owner.id = :owner AND owner.live AND owner.lease_until > mainspring.now_us() AND :last_tick::bigint <= mainspring.now_us()
RETURNING s.shard, h.epoch, mainspring.now_us() AS now

-- name: finish_job
UPDATE mainspring.job SET state = :JOB_FINISHED, updated_at = mainspring.now_us() WHERE id = :job AND state IN (:JOB_SCHEDULED, :JOB_PAUSED)

-- name: record_tick
INSERT INTO mainspring.ledger (job_id, scheduled_at, decision, job_version, epoch, run_id, reason, ticks, last_at, tenant, target)
VALUES (:job, :scheduled_at, :decision, :version, :epoch, :run, :reason, :ticks, :last_at, :tenant, :target) ON CONFLICT DO NOTHING
RETURNING job_id

-- name: recorded_ticks
-- Separate from `fire`, which would lock every partition of the ledger if it read the table. `OFFSET 0` keeps one index
-- probe per tick, where a join would read the whole ledger.
SELECT t.job_id, t.scheduled_at
FROM unnest(:jobs::uuid[], :times::bigint[], :targets::text[]) AS t(job_id, scheduled_at, target)
WHERE EXISTS (
    SELECT FROM mainspring.ledger l
    WHERE l.job_id = t.job_id AND l.scheduled_at = t.scheduled_at AND l.target = t.target OFFSET 0)

-- name: active_of_job
SELECT id, state, key_lock FROM mainspring.waiting WHERE job_id = :job
UNION ALL SELECT id, state, key_lock FROM mainspring.run WHERE job_id = :job

-- name: unstopped_of_job
SELECT id FROM mainspring.waiting WHERE job_id = :job
UNION ALL SELECT id FROM mainspring.run WHERE job_id = :job AND cancel_at IS NULL

-- name: put_jobs
-- Declares jobs in the given order. The row locks serialize declarations of one name.
INSERT INTO mainspring.job AS j (id, tenant, name, version, state, created_at, updated_at)
SELECT i.id, i.tenant, i.name, 0, :JOB_SCHEDULED, now, now
FROM (SELECT mainspring.now_us() AS now) AS clock,
     unnest(:jobs::uuid[], :tenants::int[], :names::text[]) WITH ORDINALITY AS i(id, tenant, name, position)
ORDER BY i.position
ON CONFLICT (tenant, name) DO UPDATE SET updated_at = j.updated_at
RETURNING id, tenant, name, version, state, mainspring.now_us() AS now

-- name: job_versions
-- A job without versions returns null.
SELECT i.job_id,
       (SELECT v.spec FROM mainspring.job_version v WHERE v.job_id = i.job_id AND v.version = i.version) AS spec,
       (SELECT b.payload FROM mainspring.body b WHERE b.bucket = :FOREVER_BUCKET AND b.id = i.body_id) AS payload
FROM unnest(:jobs::uuid[], :versions::int[], :bodies::uuid[]) AS i(job_id, version, body_id)

-- name: add_versions
WITH written AS (
    INSERT INTO mainspring.job_version (job_id, version, spec, made_by, why, made_at, tenant)
    SELECT i.job_id, i.version, i.spec, i.made_by, i.why, mainspring.now_us(), i.tenant
    FROM unnest(:job::uuid[], :version::int[], :spec::bytea[], :author::text[], :why::text[], :tenant::int[])
      AS i(job_id, version, spec, made_by, why, tenant)
)
INSERT INTO mainspring.body (bucket, id, task, policy, payload, tenant)
SELECT 0, i.id, i.task, i.policy, i.payload, i.tenant
FROM unnest(:body::uuid[], :task::int[], :policy::bytea[], :payload::bytea[], :tenant::int[]) AS i(id, task, policy, payload, tenant)
-- A purged job of this id may have left a body for its runs.
ON CONFLICT (bucket, id) DO UPDATE SET task = excluded.task, policy = excluded.policy, payload = excluded.payload

-- name: update_jobs
UPDATE mainspring.job SET version = i.version, state = i.state, updated_at = mainspring.now_us()
FROM unnest(:jobs::uuid[], :versions::int[], :states::smallint[]) AS i(id, version, state) WHERE job.id = i.id

-- name: set_job_state
UPDATE mainspring.job SET state = :state, updated_at = mainspring.now_us() WHERE id = :job

-- name: put_schedules
INSERT INTO mainspring.schedule AS s (job_id, shard, next_fire, delay, active, tenant, tick, calendar_rev)
SELECT i.job_id, i.shard, i.next_fire, i.delay, i.next_fire IS NOT NULL, i.tenant, i.tick, i.calendar_rev
FROM unnest(:job::uuid[], :shard::smallint[], :next_fire::bigint[], :delay::bigint[], :tenant::int[], :next_tick::bigint[], :calendar_rev::bigint[])
         AS i(job_id, shard, next_fire, delay, tenant, tick, calendar_rev)
ORDER BY i.job_id
-- A job that is declared again has no pause left.
ON CONFLICT (job_id) DO UPDATE SET next_fire = excluded.next_fire, delay = excluded.delay, active = excluded.active, rev = s.rev + 1,
    resume_at = CASE WHEN s.active THEN s.resume_at END, paused_until = CASE WHEN s.active THEN s.paused_until END,
    tick = excluded.tick, calendar_rev = excluded.calendar_rev

-- name: touch_schedule
-- Records a change of the job; false: no more ticks.
UPDATE mainspring.schedule
SET rev = rev + 1, active = active AND :active::boolean, next_fire = CASE WHEN active AND :active::boolean THEN next_fire END,
    tick = CASE WHEN active AND :active::boolean THEN tick END
WHERE job_id = ANY (:jobs::uuid[])

-- name: note_pause
-- Starts a pause that ends at `resume_at`, for the reason `why`; a null reason: resumed or cancelled. `was_paused`: the job was paused
-- before. A pause ends now or at its end time, whichever is earlier; its ticks stay paused.
UPDATE mainspring.schedule
SET resume_at = :resume_at, pause_why = coalesce(:why::text, pause_why),
    paused_until = CASE WHEN :was_paused::boolean THEN greatest(paused_until, least(resume_at, mainspring.now_us()))
                        ELSE paused_until END
WHERE job_id = :job

-- name: resume_due
-- A concurrent fire has decided by the same time, and then finds another rev.
WITH due AS MATERIALIZED (
    SELECT s.job_id FROM mainspring.schedule s JOIN mainspring.job j ON j.id = s.job_id
    WHERE s.resume_at <= mainspring.now_us() AND s.active AND j.state = :JOB_PAUSED
    ORDER BY s.resume_at LIMIT :limit FOR UPDATE OF j, s SKIP LOCKED
), resumed AS (
    UPDATE mainspring.job SET state = :JOB_SCHEDULED, updated_at = mainspring.now_us() WHERE id IN (SELECT job_id FROM due)
)
UPDATE mainspring.schedule
SET paused_until = greatest(paused_until, resume_at), resume_at = NULL, rev = rev + 1
WHERE job_id IN (SELECT job_id FROM due)

-- name: ending_schedules
-- Locks schedules that are about to end: their due ticks were fired before, or are dropped now.
SELECT s.job_id, j.tenant, j.version, v.spec, s.next_fire, s.tick, s.rev, h.epoch, mainspring.now_us() AS now
FROM mainspring.schedule s
JOIN mainspring.job j ON j.id = s.job_id
JOIN mainspring.job_version v ON v.job_id = j.id AND v.version = j.version
JOIN mainspring.shard h ON h.id = s.shard
WHERE s.job_id = ANY (:jobs::uuid[]) AND s.active ORDER BY s.job_id FOR UPDATE OF s

-- name: drop_ticks
INSERT INTO mainspring.ledger (job_id, scheduled_at, decision, job_version, epoch, reason, ticks, last_at, tenant, target)
SELECT :job::uuid, i.scheduled_at, :TICK_SKIPPED, :version::int, :epoch::bigint, i.reason, i.ticks, i.last_at, :tenant::int, i.target
FROM unnest(:times::bigint[], :reasons::text[], :ticks::int[], :last_times::bigint[], :targets::text[]) AS i(scheduled_at, reason, ticks, last_at, target)
ON CONFLICT DO NOTHING

-- name: lock_jobs
SELECT j.id, j.tenant, j.version, j.state, s.resume_at
FROM mainspring.job j LEFT JOIN mainspring.schedule s ON s.job_id = j.id
WHERE j.id = ANY (:jobs::uuid[]) ORDER BY j.id FOR UPDATE OF j

-- name: jobs
SELECT j.id, j.tenant, j.version, j.state, j.created_at, j.updated_at, s.next_fire, s.rev, v.spec, s.resume_at, s.paused_until,
       s.pause_why, s.tick, s.calendar_rev
FROM mainspring.job j
JOIN mainspring.job_version v ON v.job_id = j.id AND v.version = j.version
JOIN mainspring.schedule s ON s.job_id = j.id
WHERE j.id = ANY (:jobs::uuid[]) AND (:tenant::int IS NULL OR j.tenant = :tenant)

-- name: bodies
SELECT id, payload FROM mainspring.body
WHERE bucket = :FOREVER_BUCKET AND id = ANY (:bodies::uuid[]) AND (:tenant::int IS NULL OR tenant = :tenant)
