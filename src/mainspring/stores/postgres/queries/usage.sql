-- name: roll_up_usage
-- Adds ended runs to the sums of their day. Each attempt counts once: a success is in history, all others among the attempts. A run
-- without a start had no attempt. The task is unknown if the run was purged, because its body is gone.
WITH spending AS NOT MATERIALIZED (
    SELECT h.finished_at / :DAY * :DAY AS day, h.tenant,
           coalesce(h.of_task, (SELECT b.task FROM mainspring.body b
                                WHERE b.bucket = h.body_bucket AND b.id = coalesce(h.body_id, h.id)), 0) AS task,
           coalesce(h.job_id, '00000000-0000-0000-0000-000000000000') AS job_id, 1 AS charged,
           h.finished_at - h.started_at AS wall, h.cpu, h.units
    FROM mainspring.history h
    WHERE h.finished_at >= :since::bigint AND h.finished_at < :until::bigint AND h.state = :SUCCEEDED AND h.started_at IS NOT NULL
    UNION ALL
    SELECT a.ended_at / :DAY * :DAY, a.tenant, coalesce(b.task, 0),
           coalesce(a.job_id, '00000000-0000-0000-0000-000000000000'), (a.outcome <> :OUTCOME_RELEASED)::int,
           a.ended_at - a.started_at, a.cpu, a.units
    FROM mainspring.attempt a
    LEFT JOIN mainspring.body b ON b.bucket = a.body_bucket AND b.id = coalesce(a.body_id, a.run_id)
    WHERE a.ended_at >= :since::bigint AND a.ended_at < :until::bigint
), counted AS (
    SELECT day, tenant, task, job_id, sum(charged) AS charged, sum(wall) AS wall, sum(cpu) AS cpu
    FROM spending GROUP BY day, tenant, task, job_id
), summed AS (
    SELECT c.day, c.tenant, c.task, c.job_id, u.unit, u.amount FROM counted c, LATERAL (
        VALUES ('attempts', c.charged::double precision), ('wall', c.wall::double precision),
               ('cpu', c.cpu::double precision)
    ) AS u(unit, amount)
    UNION ALL
    SELECT s.day, s.tenant, s.task, s.job_id, u.key, sum(u.value::double precision)
    FROM spending s, LATERAL json_each_text(s.units::json) AS u WHERE s.units IS NOT NULL GROUP BY 1, 2, 3, 4, 5
)
INSERT INTO mainspring.usage AS u (tenant, day, task, job_id, unit, amount)
SELECT tenant, day, task, job_id, unit, amount FROM summed WHERE amount > 0
ON CONFLICT (tenant, day, task, job_id, unit) DO UPDATE SET amount = u.amount + excluded.amount

-- name: prune_usage
DELETE FROM mainspring.usage WHERE day < :before

-- name: usage_by_job
SELECT day, tenant, job_id AS key, unit, sum(amount) AS amount FROM mainspring.usage
WHERE (:tenant::int IS NULL OR tenant = :tenant) AND day >= :since AND day < :until AND (:key::uuid IS NULL OR job_id = :key)
GROUP BY day, tenant, job_id, unit ORDER BY day, tenant, job_id, unit LIMIT :limit

-- name: usage_by_task
SELECT day, tenant, task AS key, unit, sum(amount) AS amount FROM mainspring.usage
WHERE (:tenant::int IS NULL OR tenant = :tenant) AND day >= :since AND day < :until AND (:key::int IS NULL OR task = :key)
GROUP BY day, tenant, task, unit ORDER BY day, tenant, task, unit LIMIT :limit

-- name: usage_by_tenant
SELECT day, tenant, tenant AS key, unit, sum(amount) AS amount FROM mainspring.usage
WHERE (:tenant::int IS NULL OR tenant = :tenant) AND day >= :since AND day < :until AND (:key::int IS NULL OR tenant = :key)
GROUP BY day, tenant, unit ORDER BY day, tenant, unit LIMIT :limit

-- name: spent
SELECT coalesce(sum(amount), 0) AS spent FROM mainspring.usage
WHERE tenant = :tenant AND day >= :since AND unit = :unit AND (:task::int IS NULL OR task = :task) AND (:job::uuid IS NULL OR job_id = :job)

-- name: budgets
SELECT id, tenant, name, spec, state, since, spent, held FROM mainspring.budget WHERE :tenant::int IS NULL OR tenant = :tenant

-- name: budget
SELECT id, tenant, name, spec, state, since, spent, held FROM mainspring.budget WHERE tenant = :tenant AND name = :name FOR UPDATE

-- name: put_budget
INSERT INTO mainspring.budget AS b (id, tenant, name, spec) VALUES (:budget, :tenant, :name, :spec)
ON CONFLICT (tenant, name) DO UPDATE SET spec = excluded.spec
RETURNING b.id, b.tenant, b.name, b.spec, b.state, b.since, b.spent, b.held

-- name: drop_budget
DELETE FROM mainspring.budget WHERE tenant = :tenant AND name = :name RETURNING id

-- name: mark_budget
UPDATE mainspring.budget SET state = :state, since = :since, spent = :spent, held = :held
WHERE id = :budget AND state = :old_state AND since = :old_since RETURNING tenant

-- name: emit_budget_events
INSERT INTO mainspring.outbox (at, kind, tenant, runs)
SELECT mainspring.now_us(), kind, :tenant::int, ARRAY[:budget::uuid] FROM unnest(:kinds::text[]) WITH ORDINALITY AS e(kind, position)
WHERE EXISTS (SELECT FROM mainspring.outbox_cursor) ORDER BY position

-- name: lower_priority
-- Gives queued runs of a tenant, or of one of its jobs or tasks, the lowest priority; they keep their age. Skips runs that are being
-- claimed.
UPDATE mainspring.run SET priority = :IDLE_PRIORITY, rank = rank + (:IDLE_PRIORITY - priority) * :HEAD_START::bigint
WHERE id = ANY (ARRAY(
    SELECT r.id FROM mainspring.run r
    WHERE r.state = :QUEUED AND r.queue = ANY (ARRAY(SELECT id FROM mainspring.name WHERE kind = :QUEUE_NAME)) AND r.tenant = :tenant
      AND r.priority < :IDLE_PRIORITY AND (:job::uuid IS NULL OR r.job_id = :job) AND (:task::int IS NULL OR :task = (
          SELECT b.task FROM mainspring.body b WHERE b.bucket = r.body_bucket AND b.id = coalesce(r.body_id, r.id)))
    LIMIT :limit FOR UPDATE OF r SKIP LOCKED))
RETURNING id
