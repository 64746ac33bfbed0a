-- name: lock_waiting_parents
-- Marks waiting parents as having children. None of them can end before the dependency is stored.
WITH locked AS MATERIALIZED (
    SELECT id, tenant FROM mainspring.waiting WHERE id = ANY (:runs::uuid[]) ORDER BY id FOR NO KEY UPDATE
), flagged AS (
    UPDATE mainspring.waiting w SET has_children = true
    WHERE w.id = ANY (ARRAY(SELECT id FROM locked)) AND w.has_children IS NULL
)
SELECT id, tenant, NULL::smallint AS state FROM locked

-- name: lock_live_parents
WITH locked AS MATERIALIZED (
    SELECT id, tenant FROM mainspring.run WHERE id = ANY (:runs::uuid[]) ORDER BY id FOR NO KEY UPDATE
), flagged AS (
    UPDATE mainspring.run r SET has_children = true
    WHERE r.id = ANY (ARRAY(SELECT id FROM locked)) AND r.has_children IS NULL
)
SELECT id, tenant, NULL::smallint AS state FROM locked

-- name: ended_parents
SELECT id, tenant, state FROM mainspring.history WHERE id = ANY (:runs::uuid[])

-- name: add_edges
INSERT INTO mainspring.edge (child, parent, place, tenant, state)
SELECT i.child, i.parent, i.place, i.tenant, i.state
FROM unnest(:children::uuid[], :parents::uuid[], :positions::int[], :tenants::int[], :states::smallint[]) AS i(child, parent, place, tenant, state)

-- name: add_dependents
INSERT INTO mainspring.dependent (run_id, tenant, rule, parents, succeeded, otherwise, failed, start_within, deadline)
SELECT * FROM unnest(:run::uuid[], :tenant::int[], :rule::smallint[], :parents::int[], :succeeded::int[], :otherwise::int[], :failed::int[], :start_within::bigint[], :deadline::bigint[])

-- name: pending_decisions
-- Whether there is anything to resolve.
SELECT EXISTS (SELECT FROM mainspring.ended_parent) AS families, EXISTS (SELECT FROM mainspring.limiter WHERE recalls) AS recalls

-- name: take_ended_parents
SELECT run_id, state FROM mainspring.ended_parent ORDER BY run_id LIMIT :limit FOR UPDATE SKIP LOCKED

-- name: decide_edges
-- Children of parents that the caller has locked. Each edge is counted once.
WITH these AS MATERIALIZED (
    SELECT e.child, e.parent, p.state FROM unnest(:parents::uuid[], :states::smallint[]) AS p(id, state), LATERAL (
        SELECT child, parent FROM mainspring.edge WHERE parent = p.id AND state IS NULL ORDER BY child LIMIT :limit
    ) AS e LIMIT :limit
)
UPDATE mainspring.edge e SET state = t.state FROM these t WHERE e.child = t.child AND e.parent = t.parent
RETURNING e.child, e.parent, e.state

-- name: delete_ended_parents
DELETE FROM mainspring.ended_parent p WHERE p.run_id = ANY (:parents::uuid[])
  AND NOT EXISTS (SELECT FROM mainspring.edge e WHERE e.parent = p.run_id AND e.state IS NULL)

-- name: lock_children
SELECT id FROM mainspring.waiting WHERE id = ANY (:children::uuid[]) AND state = :BLOCKED_BY_PARENTS ORDER BY id FOR UPDATE

-- name: count_parents
-- The caller has locked the children.
UPDATE mainspring.dependent d
SET succeeded = d.succeeded + i.succeeded, otherwise = d.otherwise + i.otherwise, failed = d.failed + i.failed
FROM unnest(:children::uuid[], :succeeded::int[], :otherwise::int[], :failed::int[]) AS i(id, succeeded, otherwise, failed)
WHERE d.run_id = ANY (:children::uuid[]) AND d.run_id = i.id
RETURNING d.run_id, d.rule, d.parents, d.succeeded, d.otherwise, d.failed

-- name: recount_parents
UPDATE mainspring.dependent d
SET succeeded = i.succeeded, otherwise = i.otherwise, failed = i.failed
FROM unnest(:children::uuid[]) AS c(id), LATERAL (
    SELECT count(*) FILTER (WHERE e.state = :SUCCEEDED) AS succeeded, count(*) FILTER (WHERE e.state > :SUCCEEDED) AS otherwise,
           count(*) FILTER (WHERE e.state = :FAILED) AS failed
    FROM mainspring.edge e WHERE e.child = c.id
) AS i WHERE d.run_id = c.id
RETURNING d.run_id, d.rule, d.parents, d.succeeded, d.otherwise, d.failed

-- name: release_children
-- Their rule is met: sets the times that count from now, and returns the runs that are due.
WITH clock AS MATERIALIZED (
    SELECT mainspring.now_us() AS now
), released AS (
    UPDATE mainspring.waiting w
    SET state = :SCHEDULED, due = greatest(w.due, clock.now),
        start_by = greatest(w.due, clock.now) + d.start_within, deadline = greatest(w.due, clock.now) + d.deadline
    FROM clock, mainspring.dependent d
    -- `IS TRUE` keeps the join from choosing another index than the primary key.
    WHERE w.id = ANY (:children::uuid[]) AND d.run_id = ANY (:children::uuid[]) AND (d.run_id = w.id) IS TRUE
    RETURNING w.id, w.tenant, w.key_lock, w.holds, w.queue, w.due, w.limits, w.due <= clock.now AS is_due
), emitted AS (
    INSERT INTO mainspring.outbox (at, kind, tenant, runs)
    SELECT (SELECT now FROM clock), 'dependency.resolved', tenant, array_agg(id) FROM released
    WHERE EXISTS (SELECT FROM mainspring.outbox_cursor) GROUP BY tenant
)
SELECT id, key_lock, holds, queue, due, limits, is_due FROM released

-- name: skip_runs
-- Ends runs that have not started as skipped, each with its own reason.
WITH clock AS MATERIALIZED (
    SELECT mainspring.now_us() AS now
), waited AS (
    DELETE FROM mainspring.waiting WHERE id = ANY (:runs::uuid[])
    RETURNING id, priority, attempt, lost, tenant, queue, body_bucket, due, created_at, fence, scheduled_at, job_id, job_version,
              body_id, replay_of, target, origin, key_lock, start_by, deadline, NULL::bigint[] AS limits, has_children,
              CASE WHEN state = :BLOCKED_BY_LIMIT THEN waits END AS waits
), queued AS (
    DELETE FROM mainspring.run WHERE id = ANY (:runs::uuid[]) AND claim IS NULL
    RETURNING id, priority, attempt, lost, tenant, queue, body_bucket, due, created_at, fence, scheduled_at, job_id, job_version,
              body_id, replay_of, target, origin, key_lock, start_by, deadline, limits, has_children,
              NULL::bigint AS waits
), gone AS (
    SELECT * FROM waited UNION ALL SELECT * FROM queued
), ended AS (
    INSERT INTO mainspring.history (id, class, state, priority, attempt, lost, origin, tenant, queue, body_bucket,
                                    finished_at, due, created_at, fence, scheduled_at, job_version, target, job_id, body_id,
                                    replay_of, reason, start_by, deadline)
    SELECT g.id, CASE WHEN g.body_bucket < :CLASS_WIDTH + :KEPT_BUCKET THEN :UNSUCCESSFUL_CLASS ELSE (g.body_bucket - :KEPT_BUCKET) / :CLASS_WIDTH + :UNSUCCESSFUL_CLASS END,
           :SKIPPED, g.priority, g.attempt, g.lost, g.origin, g.tenant, g.queue, g.body_bucket, clock.now, g.due,
           g.created_at, g.fence, g.scheduled_at, g.job_version, g.target, g.job_id, g.body_id, g.replay_of,
           (:reasons::text[])[array_position(:runs::uuid[], g.id)], g.start_by, g.deadline
    FROM gone g, clock
), parents AS (
    INSERT INTO mainspring.ended_parent (run_id, state, at)
    SELECT g.id, :SKIPPED, clock.now FROM gone g, clock WHERE g.has_children ON CONFLICT DO NOTHING
), emitted AS (
    INSERT INTO mainspring.outbox (at, kind, tenant, runs)
    SELECT (SELECT now FROM clock), 'run.skipped', tenant, array_agg(id) FROM gone
    WHERE EXISTS (SELECT FROM mainspring.outbox_cursor) GROUP BY tenant
)
SELECT id, key_lock, CASE WHEN origin = :ORIGIN_FIXED_DELAY THEN job_id END AS delayed_job, limits, has_children, waits FROM gone

-- name: undecided_children
-- A check from first principles: waiting children after `after`, by id, with undecided parents that are no longer live and not about
-- to be resolved. A parent without any row counts as skipped.
SELECT c.id AS child, p.parent,
       coalesce((SELECT h.state FROM mainspring.history h WHERE h.id = p.parent LIMIT 1), :SKIPPED)::smallint AS state,
       NOT EXISTS (SELECT FROM mainspring.edge u WHERE u.child = c.id AND u.state IS NULL) AS decided
FROM (SELECT w.id FROM mainspring.waiting w WHERE w.state = :BLOCKED_BY_PARENTS AND w.id > :after ORDER BY w.id LIMIT :limit) AS c
LEFT JOIN LATERAL (
    SELECT e.parent FROM mainspring.edge e
    WHERE e.child = c.id AND e.state IS NULL
      AND NOT EXISTS (SELECT FROM mainspring.run r WHERE r.id = e.parent OFFSET 0)
      AND NOT EXISTS (SELECT FROM mainspring.waiting w WHERE w.id = e.parent OFFSET 0)
      AND NOT EXISTS (SELECT FROM mainspring.ended_parent d WHERE d.run_id = e.parent OFFSET 0)
) AS p ON true
ORDER BY c.id

-- name: add_ended_parents
INSERT INTO mainspring.ended_parent (run_id, state, at)
SELECT i.id, i.state, mainspring.now_us() FROM unnest(:parents::uuid[], :states::smallint[]) AS i(id, state) ORDER BY i.id
ON CONFLICT DO NOTHING

-- name: parents
SELECT parent AS id FROM mainspring.edge WHERE child = :run AND (:tenant::int IS NULL OR tenant = :tenant) ORDER BY place

-- name: children
SELECT child AS id FROM mainspring.edge
WHERE parent = :run AND child > :after AND (:tenant::int IS NULL OR tenant = :tenant) ORDER BY child LIMIT :limit

-- name: edit_dependent
-- An edited run with parents: its times count from when its rule is met.
UPDATE mainspring.dependent SET start_within = :start_within, deadline = :deadline WHERE run_id = :run

-- name: lock_unique_keys
-- Locked in the order of the keys, so that two batches with the same keys do not deadlock.
SELECT u.tenant, u.key, u.run_id, u.until FROM unnest(:tenants::int[], :keys::bytea[]) AS i(tenant, key)
JOIN mainspring.unique_run u ON u.tenant = i.tenant AND u.key = i.key
ORDER BY u.tenant, u.key FOR UPDATE OF u

-- name: take_unique_keys
INSERT INTO mainspring.unique_run (tenant, key, run_id, until)
SELECT i.tenant, i.key, i.run_id, mainspring.now_us() + i.period
FROM unnest(:tenants::int[], :keys::bytea[], :runs::uuid[], :periods::bigint[]) AS i(tenant, key, run_id, period)
ORDER BY i.tenant, i.key
ON CONFLICT DO NOTHING
RETURNING tenant, key

-- name: unique_runs
-- A separate statement after the lock, so that it sees every run created with a key. started: the run may not be changed any more.
SELECT u.tenant, u.key, u.run_id,
       CASE WHEN u.until IS NULL THEN f.state IS NOT NULL
            ELSE u.until > mainspring.now_us()
                 AND (f.state IS NOT NULL OR EXISTS (SELECT FROM mainspring.history h WHERE h.id = u.run_id)) END AS counts,
       f.state IS NULL OR f.fence > 0 OR f.job_id IS NOT NULL AS started
FROM unnest(:tenants::int[], :keys::bytea[]) AS i(tenant, key)
JOIN mainspring.unique_run u ON u.tenant = i.tenant AND u.key = i.key
LEFT JOIN LATERAL (
    SELECT r.state, r.fence, r.job_id FROM mainspring.run r WHERE r.id = u.run_id
    UNION ALL SELECT w.state, w.fence, w.job_id FROM mainspring.waiting w WHERE w.id = u.run_id
) AS f ON true

-- name: replace_unique_keys
-- Gives locked keys to other runs.
UPDATE mainspring.unique_run u SET run_id = i.run_id, until = mainspring.now_us() + i.period
FROM unnest(:tenants::int[], :keys::bytea[], :runs::uuid[], :periods::bigint[]) AS i(tenant, key, run_id, period)
WHERE u.tenant = i.tenant AND u.key = i.key

-- name: prune_unique_keys
DELETE FROM mainspring.unique_run WHERE (tenant, key) IN (
    SELECT u.tenant, u.key FROM mainspring.unique_run u
    WHERE CASE WHEN u.until IS NULL
        THEN NOT EXISTS (SELECT FROM mainspring.run r WHERE r.id = u.run_id OFFSET 0)
             AND NOT EXISTS (SELECT FROM mainspring.waiting w WHERE w.id = u.run_id OFFSET 0)
        ELSE u.until <= mainspring.now_us() END
    LIMIT :limit FOR UPDATE SKIP LOCKED)
