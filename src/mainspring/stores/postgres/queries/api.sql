-- name: count_ahead
SELECT (SELECT count(*) FROM (
    SELECT FROM mainspring.run a
    WHERE a.queue = r.queue AND a.claim_group = r.claim_group AND a.state = :QUEUED AND (a.rank, a.id) < (r.rank, r.id) LIMIT 10000
) AS better) AS ahead
FROM mainspring.run r WHERE r.id = :run AND r.state = :QUEUED

-- name: limiter_state
SELECT used, times, open_until FROM mainspring.limiter WHERE number = :number

-- name: runs_inside_limiter
-- Some of the live runs that count against a limiter.
SELECT r.id FROM mainspring.run r
WHERE r.limits IS NOT NULL AND EXISTS (SELECT FROM mainspring.unpack_limits(r.limits) AS g WHERE g.number = :number) ORDER BY r.id LIMIT :limit

-- name: list_jobs
-- Newest first, in id order, of one tenant.
SELECT j.id, j.tenant, j.version, j.state, j.created_at, j.updated_at, s.next_fire, s.rev, v.spec, s.resume_at, s.paused_until,
       s.pause_why, s.tick, s.calendar_rev
FROM (
    SELECT * FROM mainspring.job WHERE tenant = :tenant AND id < :below AND id >= :first ORDER BY id DESC LIMIT :limit
) AS j
JOIN mainspring.job_version v ON v.job_id = j.id AND v.version = j.version
JOIN mainspring.schedule s ON s.job_id = j.id
ORDER BY j.id DESC

-- name: list_all_jobs
SELECT j.id, j.tenant, j.version, j.state, j.created_at, j.updated_at, s.next_fire, s.rev, v.spec, s.resume_at, s.paused_until,
       s.pause_why, s.tick, s.calendar_rev
FROM (
    SELECT * FROM mainspring.job WHERE id < :below AND id >= :first ORDER BY id DESC LIMIT :limit
) AS j
JOIN mainspring.job_version v ON v.job_id = j.id AND v.version = j.version
JOIN mainspring.schedule s ON s.job_id = j.id
ORDER BY j.id DESC

-- name: versions
SELECT version, spec, made_by, why, made_at FROM mainspring.job_version
WHERE job_id = :job AND (:tenant::int IS NULL OR tenant = :tenant) AND version < :below ORDER BY version DESC LIMIT :limit

-- name: count_jobs
SELECT count(*) FROM (SELECT 1 FROM mainspring.job WHERE tenant = :tenant AND state IN (:JOB_SCHEDULED, :JOB_PAUSED) LIMIT :limit) AS found

-- name: sessions
SELECT s.*, (SELECT count(*) FROM mainspring.run r WHERE r.session = s.id AND r.state = :RUNNING) AS running,
       (SELECT count(*) FROM mainspring.shard h WHERE h.owner = s.id) AS shards
FROM mainspring.session s WHERE s.kind = :kind AND s.live AND s.lease_until > mainspring.now_us() ORDER BY s.id

-- name: session
SELECT s.*, (SELECT count(*) FROM mainspring.run r WHERE r.session = s.id AND r.state = :RUNNING) AS running,
       (SELECT count(*) FROM mainspring.shard h WHERE h.owner = s.id) AS shards
FROM mainspring.session s WHERE s.id = :session

-- name: pauses
-- The pauses of one tenant or of all. Pauses of every tenant are always included.
SELECT tenant, queue, since, author, why, until FROM mainspring.pause
WHERE (:tenant::int IS NULL OR tenant IN (0, :tenant)) AND (until IS NULL OR until > mainspring.now_us())

-- name: minutes
SELECT at / :step::bigint * :step::bigint AS at, queue, sum(succeeded)::bigint AS succeeded, sum(failed)::bigint AS failed, sum(cancelled)::bigint AS cancelled,
       sum(skipped)::bigint AS skipped, sum(retried)::bigint AS retried, sum(started)::bigint AS started,
       sum(late_total)::bigint AS late_total, max(late_most) AS late_most, sum(took_total)::bigint AS took_total,
       max(took_most) AS took_most
FROM mainspring.minute WHERE at >= :since AND at < :until AND (:tenant::int IS NULL OR tenant = :tenant) GROUP BY 1, queue

-- name: loads
-- One row a minute, over all tenants.
SELECT at, queued, running, lag FROM mainspring.load
WHERE at >= :since AND at < :until AND tenant = -1 ORDER BY at

-- name: loads_by_tenant
SELECT k.at, coalesce(sum(l.queued), 0)::bigint AS queued, coalesce(sum(l.running), 0)::bigint AS running,
       coalesce(max(l.lag), 0) AS lag
FROM mainspring.load_seen k
LEFT JOIN mainspring.load l ON l.at = k.at AND l.tenant > 0 AND (:tenant::int IS NULL OR l.tenant = :tenant)
    AND (:queue::int IS NULL OR l.queue = :queue)
WHERE k.at >= :since AND k.at < :until GROUP BY k.at ORDER BY k.at

-- name: timings
SELECT bucket, sum(late)::bigint AS late, sum(took)::bigint AS took FROM mainspring.timing
WHERE at > :after AND at < :until AND (:tenant::int IS NULL OR tenant = :tenant) AND (:queue::int IS NULL OR queue = :queue) GROUP BY bucket

-- name: dead_samples
SELECT id, reason, error FROM mainspring.history
WHERE id = ANY (:runs::uuid[]) AND finished_at >= :since AND finished_at <= :until AND (:tenant::int IS NULL OR tenant = :tenant)

-- name: due_by_minute
SELECT w.due / :MINUTE * :MINUTE AS minute, count(*) AS runs
FROM unnest(:shards::smallint[]) AS s(id), LATERAL (
    SELECT due FROM mainspring.waiting
    WHERE shard = s.id AND state = :SCHEDULED AND due >= :since AND due < :until AND (:tenant::int IS NULL OR tenant = :tenant)
) AS w GROUP BY 1 ORDER BY 1

-- name: log
SELECT position, at, attempt, text FROM mainspring.log
WHERE run_id = :run AND position > :after AND (:tenant::int IS NULL OR tenant = :tenant)
UNION ALL SELECT position, at, attempt, text FROM mainspring.log_kept
WHERE run_id = :run AND position > :after AND (:tenant::int IS NULL OR tenant = :tenant) ORDER BY position LIMIT :limit

-- name: log_before
-- The last lines first.
SELECT position, at, attempt, text FROM mainspring.log
WHERE run_id = :run AND position < :before AND (:tenant::int IS NULL OR tenant = :tenant)
UNION ALL SELECT position, at, attempt, text FROM mainspring.log_kept
WHERE run_id = :run AND position < :before AND (:tenant::int IS NULL OR tenant = :tenant) ORDER BY position DESC LIMIT :limit

-- name: logs_after
-- Each run has a position of its own. The caller has checked access to the runs, so no tenant is compared.
SELECT p.run_id, l.position, l.at, l.attempt, l.text
FROM unnest(:runs::uuid[], :positions::bigint[]) AS p(run_id, after), LATERAL (
    SELECT position, at, attempt, text FROM mainspring.log
    WHERE run_id = p.run_id AND position > p.after ORDER BY position LIMIT :limit
) AS l ORDER BY p.run_id, l.position

-- name: running_attempts
-- The attempt of a locked run cannot end before its report is stored.
SELECT id, fence, attempt, tenant FROM mainspring.run WHERE id = ANY (:runs::uuid[]) AND claim IS NOT NULL ORDER BY id FOR KEY SHARE

-- name: report_progress
-- One report per run.
INSERT INTO mainspring.progress (run_id, at, done, total, note, tenant)
SELECT i.id, mainspring.now_us(), i.done, i.total, i.note, i.tenant
FROM unnest(:runs::uuid[], :done::float8[], :totals::float8[], :notes::text[], :tenants::int[]) AS i(id, done, total, note, tenant) ORDER BY i.id
ON CONFLICT (run_id) DO UPDATE SET at = excluded.at, done = excluded.done, total = excluded.total, note = excluded.note

-- name: save_checkpoints
-- One checkpoint per run.
INSERT INTO mainspring.checkpoint (run_id, tenant, state)
SELECT i.id, i.tenant, i.state FROM unnest(:runs::uuid[], :tenants::int[], :states::bytea[]) AS i(id, tenant, state) ORDER BY i.id
ON CONFLICT (run_id) DO UPDATE SET state = excluded.state

-- name: logged_runs
-- Steps from one run to the next, however many lines they have.
WITH RECURSIVE having_lines AS (
    (SELECT run_id FROM mainspring.log WHERE run_id > :after::uuid ORDER BY run_id LIMIT 1)
    UNION ALL
    SELECT l.run_id FROM having_lines h, LATERAL (
        SELECT run_id FROM mainspring.log WHERE run_id > h.run_id ORDER BY run_id LIMIT 1
    ) AS l
)
SELECT run_id FROM having_lines LIMIT :limit

-- name: delete_logs
DELETE FROM mainspring.log WHERE run_id = ANY (:runs::uuid[])

-- name: log_sizes
-- The log size of each run, also without lines; and of its tenant, the daily quota and the bytes of today.
SELECT s.*, (convert_from(t.quotas, 'UTF8')::jsonb ->> 'log_bytes_per_day')::bigint AS most, (
    SELECT coalesce(sum(d.bytes), 0)::bigint FROM mainspring.log_day d
    WHERE d.tenant = s.tenant AND d.day = mainspring.now_us() / :DAY
) AS used
FROM (
    SELECT i.id, i.tenant, count(l.position) AS pieces, coalesce(sum(octet_length(l.text)), 0)::bigint AS size,
           coalesce(bool_or(l.text = ANY (:cut_marks::text[])), false) AS cut
    FROM (SELECT DISTINCT id, tenant FROM unnest(:runs::uuid[], :tenants::int[]) AS u(id, tenant)) AS i
    LEFT JOIN mainspring.log l ON l.run_id = i.id
    GROUP BY i.id, i.tenant
) AS s LEFT JOIN mainspring.tenant t ON t.number = s.tenant

-- name: count_log_bytes
-- Each tenant has several rows a day, chosen by connection, so that concurrent reports do not wait for each other.
INSERT INTO mainspring.log_day (tenant, day, slot, bytes)
SELECT i.tenant, mainspring.now_us() / :DAY, pg_backend_pid() % 16, i.bytes
FROM unnest(:tenants::int[], :bytes::bigint[]) AS i(tenant, bytes) ORDER BY i.tenant
ON CONFLICT (day, tenant, slot) DO UPDATE SET bytes = log_day.bytes + excluded.bytes

-- name: prune_log_days
DELETE FROM mainspring.log_day WHERE day < mainspring.now_us() / :DAY

-- name: append_log
INSERT INTO mainspring.log (run_id, at, attempt, text, tenant)
SELECT i.id, mainspring.now_us(), i.attempt, i.text, i.tenant
FROM unnest(:runs::uuid[], :attempts::smallint[], :texts::text[], :tenants::int[]) WITH ORDINALITY AS i(id, attempt, text, tenant, position)
ORDER BY i.position

-- name: put_tenant
INSERT INTO mainspring.tenant (number, created_at, running, quotas) VALUES (:number, mainspring.now_us(), :running, :quotas)
ON CONFLICT (number) DO UPDATE SET running = excluded.running, quotas = excluded.quotas
RETURNING created_at

-- name: tenant
SELECT quotas, created_at FROM mainspring.tenant WHERE number = :number

-- name: lock_tenants
-- A claim reads this table and keeps its lock until it commits. With this lock, no claim is under way.
LOCK TABLE mainspring.tenant IN ACCESS EXCLUSIVE MODE

-- name: tenant_classes
-- Tenants with a retention class of their own.
SELECT n.name, t.class FROM mainspring.name n
JOIN (SELECT number, convert_from(quotas, 'UTF8')::jsonb ->> 'retention' AS class FROM mainspring.tenant) AS t ON t.number = n.id
WHERE t.class IS NOT NULL

-- name: tenants
SELECT n.name, t.quotas, t.created_at FROM mainspring.name n LEFT JOIN mainspring.tenant t ON t.number = n.id WHERE n.kind = :TENANT_NAME

-- name: put_key
INSERT INTO mainspring.api_key (id, tenant, name, role, secret_hash, queues, made_by, created_at, expires_at, revoked_at,
                                last_used_at)
VALUES (:id, :tenant, :name, :role, :secret_hash, :queues, :made_by, mainspring.now_us(), :expires_at, :revoked_at, :last_used_at) ON CONFLICT DO NOTHING
RETURNING id

-- name: api_key
SELECT * FROM mainspring.api_key WHERE id = :key

-- name: lock_key
SELECT * FROM mainspring.api_key WHERE id = :key FOR UPDATE

-- name: api_keys
SELECT * FROM mainspring.api_key WHERE :tenant::text IS NULL OR tenant = :tenant ORDER BY created_at DESC, id COLLATE "C" DESC

-- name: revoke_key
UPDATE mainspring.api_key SET revoked_at = mainspring.now_us() WHERE id = :key

-- name: sign_out
WITH over AS (DELETE FROM mainspring.signed_out WHERE ends_at <= mainspring.now_us() AND id <> :session)
INSERT INTO mainspring.signed_out (id, ends_at) VALUES (:session, :ends_at) ON CONFLICT DO NOTHING

-- name: signed_out
SELECT 1 FROM mainspring.signed_out WHERE id = :session

-- name: touch_api_keys
UPDATE mainspring.api_key SET last_used_at = mainspring.now_us() WHERE id = ANY (:keys::text[])

-- name: audit
SELECT * FROM mainspring.audit
WHERE (:tenant::text IS NULL OR tenant = :tenant) AND (:target::text = '' OR target = :target) AND (:author::text = '' OR author = :author)
  AND position < :before::bigint AND (:action::text = '' OR :action IN (action, split_part(action, '.', 1))) AND at >= :since::bigint
  AND at < :until::bigint
ORDER BY position DESC LIMIT :limit

-- name: discard
UPDATE mainspring.dead_letter SET state = :DEAD_LETTER_DISCARDED WHERE run_id = ANY (:runs::uuid[]) AND state = :DEAD_LETTER_OPEN RETURNING run_id AS id, tenant

-- name: bring_back
UPDATE mainspring.dead_letter SET state = :DEAD_LETTER_OPEN WHERE run_id = ANY (:runs::uuid[]) AND state = :DEAD_LETTER_DISCARDED RETURNING run_id AS id, tenant

-- name: purge_history
DELETE FROM mainspring.history WHERE id = ANY (:runs::uuid[]) RETURNING id, tenant, body_bucket, body_id IS NULL AS own_body

-- name: purge_bodies
-- The body of a run that was moved or edited has a second row, in the bucket of a day within `days_ahead` of its creation.
WITH gone AS (
    SELECT i.id, b.bucket FROM unnest(:runs::uuid[], :buckets::int[], :days::int[]) AS i(id, bucket, day), LATERAL (
        SELECT i.bucket UNION SELECT :KEPT_BUCKET UNION SELECT generate_series(i.day, i.day + :days_ahead::int)
        UNION SELECT c.class * :CLASS_WIDTH + d / c.unit
        FROM generate_series(i.day, i.day + :days_ahead::int) AS d, (VALUES (1, 1), (2, 7), (3, 30)) AS c(class, unit)
        WHERE c.class = (i.bucket + 1) / :CLASS_WIDTH
        UNION SELECT (i.bucket + 1) / :CLASS_WIDTH * :CLASS_WIDTH - 1) AS b(bucket)
), labels AS (
    DELETE FROM mainspring.label l USING gone g WHERE l.bucket = g.bucket AND l.id = g.id
)
DELETE FROM mainspring.body b USING gone g WHERE b.bucket = g.bucket AND b.id = g.id

-- name: purge_rest
WITH attempts AS (
    DELETE FROM mainspring.attempt WHERE run_id = ANY (:runs::uuid[])
), attempts_kept AS (
    DELETE FROM mainspring.attempt_kept WHERE run_id = ANY (:runs::uuid[])
), logs_kept AS (
    DELETE FROM mainspring.log_kept WHERE run_id = ANY (:runs::uuid[])
), lines AS (
    DELETE FROM mainspring.log WHERE run_id = ANY (:runs::uuid[])
), reports AS (
    DELETE FROM mainspring.progress WHERE run_id = ANY (:runs::uuid[])
), checkpoints AS (
    DELETE FROM mainspring.checkpoint WHERE run_id = ANY (:runs::uuid[])
), edges AS (
    DELETE FROM mainspring.edge WHERE child = ANY (:runs::uuid[])
), rules AS (
    DELETE FROM mainspring.dependent WHERE run_id = ANY (:runs::uuid[])
)
DELETE FROM mainspring.dead_letter WHERE run_id = ANY (:runs::uuid[])

-- name: purge_jobs
-- The bodies of the versions stay, because runs of the job still refer to them.
WITH schedules AS (
    DELETE FROM mainspring.schedule WHERE job_id = ANY (:jobs::uuid[])
), versions AS (
    DELETE FROM mainspring.job_version WHERE job_id = ANY (:jobs::uuid[])
), ticks AS (
    DELETE FROM mainspring.ledger WHERE job_id = ANY (:jobs::uuid[])
), ticks_kept AS (
    DELETE FROM mainspring.ledger_kept WHERE job_id = ANY (:jobs::uuid[])
), slos AS (
    DELETE FROM mainspring.slo WHERE job_id = ANY (:jobs::uuid[])
)
DELETE FROM mainspring.job WHERE id = ANY (:jobs::uuid[])

-- name: one_off_bodies
-- The buckets with the bodies of one-off runs.
SELECT r.id, r.tenant, r.body_bucket AS bucket FROM mainspring.run r WHERE r.id = ANY (:runs::uuid[]) AND r.job_id IS NULL
UNION ALL SELECT w.id, w.tenant, w.body_bucket FROM mainspring.waiting w WHERE w.id = ANY (:runs::uuid[]) AND w.job_id IS NULL
UNION ALL SELECT h.id, h.tenant, b.bucket FROM mainspring.history h, LATERAL (
    SELECT b.bucket FROM mainspring.body b WHERE b.bucket IN (h.body_bucket, :KEPT_BUCKET) AND b.id = h.id) AS b
WHERE h.id = ANY (:runs::uuid[]) AND h.job_id IS NULL

-- name: lock_bodies
SELECT b.id, b.bucket, b.about FROM unnest(:runs::uuid[], :buckets::int[]) AS i(id, bucket)
JOIN mainspring.body b ON b.bucket = i.bucket AND b.id = i.id ORDER BY b.id, b.bucket FOR UPDATE OF b

-- name: set_about
UPDATE mainspring.body b SET about = i.about FROM unnest(:runs::uuid[], :buckets::int[], :abouts::bytea[]) AS i(id, bucket, about)
WHERE b.bucket = i.bucket AND b.id = i.id

-- name: lock_pauses
-- As lock_tenants.
LOCK TABLE mainspring.pause IN ACCESS EXCLUSIVE MODE

-- name: pause
INSERT INTO mainspring.pause AS p (tenant, queue, since, author, why, until) VALUES (:tenant, :queue, mainspring.now_us(), :author, :why, :until)
ON CONFLICT (tenant, queue) DO UPDATE
SET since = excluded.since, author = excluded.author, why = excluded.why, until = excluded.until
WHERE p.until IS DISTINCT FROM excluded.until OR p.until <= mainspring.now_us()
RETURNING tenant

-- name: resume
-- Ends a pause now. Its row is kept for a day, because runs that waited for it are not late.
UPDATE mainspring.pause SET until = mainspring.now_us()
WHERE tenant = :tenant AND queue = :queue AND (until IS NULL OR until > mainspring.now_us()) RETURNING tenant

-- name: pause_again
INSERT INTO mainspring.pause (tenant, queue, since, author, why, until)
SELECT :tenant, :queue, :since, :author, :why, :until::bigint WHERE :until::bigint IS NULL OR :until::bigint > mainspring.now_us()
ON CONFLICT (tenant, queue) DO UPDATE
SET since = excluded.since, author = excluded.author, why = excluded.why, until = excluded.until

-- name: draining
SELECT draining FROM mainspring.session
WHERE id = :worker AND kind = :WORKER AND live AND lease_until > mainspring.now_us() FOR UPDATE

-- name: drain
UPDATE mainspring.session SET draining = true WHERE id = :worker

-- name: revoke_lease
UPDATE mainspring.session s SET live = false, ended_at = clock.now
FROM (SELECT mainspring.now_us() AS now) AS clock
WHERE s.id = :scheduler AND s.kind = :SCHEDULER AND s.live AND s.lease_until > clock.now
RETURNING clock.now

-- name: editable_waiting
-- A one-off run of a tenant that never started, locked.
SELECT id, state, key_lock, body_bucket, created_at, replay_of, target, NULL::bigint AS queued_at, mainspring.now_us() AS now,
       NULL::bigint[] AS limits, has_children, CASE WHEN state = :BLOCKED_BY_LIMIT THEN waits END AS waits, mainspring.now_us() AS ready_at
FROM mainspring.waiting
WHERE id = :run AND tenant = :tenant AND job_id IS NULL AND fence = 0 FOR UPDATE

-- name: editable_queued
SELECT id, state, key_lock, body_bucket, created_at, replay_of, target, coalesce(queued_at, created_at) AS queued_at,
       mainspring.now_us() AS now, limits, has_children, NULL::bigint AS waits, ready_at
FROM mainspring.run
WHERE id = :run AND tenant = :tenant AND job_id IS NULL AND fence = 0 AND claim IS NULL FOR UPDATE

-- name: keep_ready
UPDATE mainspring.run SET ready_at = :ready_at WHERE id = :run

-- name: remove_waiting
DELETE FROM mainspring.waiting WHERE id = :run

-- name: remove_queued
DELETE FROM mainspring.run WHERE id = :run

-- name: edit_body
-- A new row beside the first body, which stays where a repeated submit of the run looks for it.
INSERT INTO mainspring.body (bucket, id, task, policy, payload, tenant, about) VALUES (:bucket, :run, :task, :policy, :payload, :tenant, :about)
ON CONFLICT (bucket, id) DO UPDATE
SET task = excluded.task, policy = excluded.policy, payload = excluded.payload, about = excluded.about

-- name: first_in_line
SELECT id, due FROM mainspring.waiting WHERE key_lock = :key AND state = :BLOCKED AND id <> :run ORDER BY due, id LIMIT 1
