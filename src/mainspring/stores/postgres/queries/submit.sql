-- name: submit_now
-- Runs that are due now, without keys: two inserts. A known id violates a primary key; submit_bodies then handles the batch.
-- `channel` and `message`: a notification to send with the commit, or null.
WITH made AS (
    INSERT INTO mainspring.body (bucket, id, task, policy, payload, tenant)
    SELECT i.bucket, i.id, i.task, i.policy, i.payload, i.tenant
    FROM unnest(:id::uuid[], :bucket::int[], :task::int[], :policy::bytea[], :payload::bytea[], :tenant::int[])
             AS i(id, bucket, task, policy, payload, tenant)
), queued AS (
    INSERT INTO mainspring.run (id, shard, state, priority, attempt, lost, tenant, queue, body_bucket, rank, due,
                                created_at, timeout, start_by, deadline, replay_of, of_task)
    SELECT i.id, i.shard, :QUEUED, i.priority, 0, 0, i.tenant, i.queue, i.bucket,
           clock.now + i.priority * :HEAD_START::bigint, clock.now, clock.now, i.timeout,
           clock.now + i.start_within, clock.now + i.deadline, i.replay_of, i.task
    FROM (SELECT mainspring.now_us() AS now) AS clock,
         unnest(:id::uuid[], :bucket::int[], :shard::smallint[], :priority::smallint[], :tenant::int[], :queue::int[], :timeout::bigint[], :start_within::bigint[],
                :deadline::bigint[], :replay_of::uuid[], :task::int[])
             AS i(id, bucket, shard, priority, tenant, queue, timeout, start_within, deadline, replay_of, task)
), emitted AS (
    INSERT INTO mainspring.outbox (at, kind, tenant, runs, tasks, queues)
    SELECT mainspring.now_us(), 'run.submitted', i.tenant, array_agg(i.id), array_agg(i.task), array_agg(i.queue)
    FROM unnest(:id::uuid[], :tenant::int[], :task::int[], :queue::int[]) AS i(id, tenant, task, queue)
    WHERE EXISTS (SELECT FROM mainspring.outbox_cursor) GROUP BY i.tenant
)
SELECT pg_notify(:channel, :message) WHERE :message::text IS NOT NULL

-- name: submit_one
-- The same for a single run: without arrays it is noticeably cheaper.
WITH made AS (
    INSERT INTO mainspring.body (bucket, id, task, policy, payload, tenant) VALUES (:bucket, :id, :task, :policy, :payload, :tenant)
), queued AS (
    INSERT INTO mainspring.run (id, shard, state, priority, attempt, lost, tenant, queue, body_bucket, rank, due,
                                created_at, timeout, start_by, deadline, replay_of, of_task)
    SELECT :id, :shard, :QUEUED, :priority::smallint, 0, 0, :tenant, :queue, :bucket, clock.now + :priority * :HEAD_START::bigint, clock.now, clock.now, :timeout,
           clock.now + :start_within::bigint, clock.now + :deadline::bigint, :replay_of, :task
    FROM (SELECT mainspring.now_us() AS now) AS clock
), emitted AS (
    INSERT INTO mainspring.outbox (at, kind, tenant, runs, tasks, queues)
    SELECT mainspring.now_us(), 'run.submitted', :tenant, ARRAY[:id], ARRAY[:task], ARRAY[:queue] WHERE EXISTS (SELECT FROM mainspring.outbox_cursor)
)
SELECT pg_notify(:channel, :message) WHERE :message::text IS NOT NULL

-- name: submit_any
-- As submit_now, for batches with runs for later.
WITH clock AS MATERIALIZED (
    SELECT mainspring.now_us() AS now
), input AS MATERIALIZED (
    SELECT i.*, coalesce(i.at, clock.now + i.delay) AS due, clock.now
    FROM clock,
         unnest(:id::uuid[], :bucket::int[], :task::int[], :policy::bytea[], :payload::bytea[], :shard::smallint[], :priority::smallint[], :tenant::int[],
                :queue::int[], :timeout::bigint[], :start_within::bigint[], :deadline::bigint[], :replay_of::uuid[], :at::bigint[], :delay::bigint[])
             AS i(id, bucket, task, policy, payload, shard, priority, tenant, queue, timeout, start_within, deadline, replay_of,
                  at, delay)
), made AS (
    INSERT INTO mainspring.body (bucket, id, task, policy, payload, tenant)
    SELECT bucket, id, task, policy, payload, tenant FROM input
), queued AS (
    INSERT INTO mainspring.run (id, shard, state, priority, attempt, lost, tenant, queue, body_bucket, rank, due,
                                created_at, timeout, start_by, deadline, replay_of, of_task)
    SELECT id, shard, :QUEUED, priority, 0, 0, tenant, queue, bucket, now + priority * :HEAD_START::bigint, due, now, timeout,
           due + start_within, due + deadline, replay_of, task
    FROM input WHERE due <= now
    RETURNING id
), later AS (
    INSERT INTO mainspring.waiting (id, shard, state, priority, attempt, lost, tenant, queue, body_bucket, due, created_at,
                                    timeout, start_by, deadline, replay_of)
    SELECT id, shard, :SCHEDULED, priority, 0, 0, tenant, queue, bucket, due, now, timeout, due + start_within,
           due + deadline, replay_of
    FROM input WHERE due > now
), emitted AS (
    INSERT INTO mainspring.outbox (at, kind, tenant, runs, tasks, queues)
    SELECT (SELECT now FROM clock), 'run.submitted', tenant, array_agg(id), array_agg(task), array_agg(queue) FROM input
    WHERE EXISTS (SELECT FROM mainspring.outbox_cursor) GROUP BY tenant
)
SELECT id FROM queued

-- name: submit_bodies
-- The first step of a submit that needs checks: returns which ids are new.
WITH clock AS (SELECT mainspring.now_us() AS now)
INSERT INTO mainspring.body (bucket, id, task, policy, payload, tenant, about)
SELECT i.bucket, i.id, i.task, i.policy, i.payload, i.tenant, i.about
FROM unnest(:id::uuid[], :bucket::int[], :task::int[], :policy::bytea[], :payload::bytea[], :tenant::int[], :about::bytea[])
         AS i(id, bucket, task, policy, payload, tenant, about)
ORDER BY i.id
ON CONFLICT DO NOTHING
RETURNING id, (SELECT now FROM clock) AS now

-- name: lock_ordering_keys
-- Locks ordering keys in their order, and creates missing ones. Returns the newest rows.
INSERT INTO mainspring.key_lock AS g (key)
SELECT key FROM unnest(:keys::bigint[]) AS key ORDER BY key
ON CONFLICT (key) DO UPDATE SET key = g.key
RETURNING key, holder

-- name: set_key_holders
UPDATE mainspring.key_lock SET holder = i.holder
FROM unnest(:keys::bigint[], :holders::uuid[]) AS i(key, holder)
WHERE key_lock.key = i.key

-- name: insert_queued
INSERT INTO mainspring.run (id, shard, state, priority, attempt, lost, tenant, queue, body_bucket, due, created_at, timeout,
                            start_by, deadline, key_lock, scheduled_at, job_id, job_version, body_id, replay_of, origin, claim_group,
                            target, rank, queued_at, limits, has_children)
SELECT i.id, i.shard, :QUEUED, i.priority, 0, 0, i.tenant, i.queue, i.bucket, i.due, i.created_at, i.timeout, i.start_by,
       i.deadline, i.key_lock, i.scheduled_at, i.job_id, i.job_version, i.body_id, i.replay_of, i.origin, i.claim_group, i.target, i.rank,
       i.queued_at, i.limits::bigint[], i.has_children
FROM unnest(:id::uuid[], :shard::smallint[], :priority::smallint[], :tenant::int[], :queue::int[], :bucket::int[], :due::bigint[], :created_at::bigint[],
            :timeout::bigint[], :start_by::bigint[], :deadline::bigint[], :key_lock::bigint[], :scheduled_at::bigint[], :job_id::uuid[], :job_version::int[], :body_id::uuid[],
            :replay_of::uuid[], :origin::smallint[], :claim_group::int[], :target::int[], :limits::text[], :has_children::boolean[], :rank::bigint[], :queued_at::bigint[])
    AS i(id, shard, priority, tenant, queue, bucket, due, created_at, timeout, start_by, deadline, key_lock, scheduled_at,
         job_id, job_version, body_id, replay_of, origin, claim_group, target, limits, has_children, rank, queued_at)

-- name: insert_waiting
INSERT INTO mainspring.waiting (id, shard, state, priority, attempt, lost, tenant, queue, body_bucket, due, created_at,
                                timeout, start_by, deadline, key_lock, scheduled_at, job_id, job_version, body_id, replay_of,
                                origin, claim_group, target, late, limits, has_children, waits, holds)
SELECT i.id, i.shard, i.state, i.priority, 0, 0, i.tenant, i.queue, i.bucket, i.due, i.created_at, i.timeout, i.start_by,
       i.deadline, i.key_lock, i.scheduled_at, i.job_id, i.job_version, i.body_id, i.replay_of, i.origin, i.claim_group, i.target, i.late,
       i.limits::bigint[], i.has_children, i.waits, i.holds
FROM unnest(:id::uuid[], :shard::smallint[], :priority::smallint[], :tenant::int[], :queue::int[], :bucket::int[], :due::bigint[], :created_at::bigint[],
            :timeout::bigint[], :start_by::bigint[], :deadline::bigint[], :key_lock::bigint[], :scheduled_at::bigint[], :job_id::uuid[], :job_version::int[], :body_id::uuid[],
            :replay_of::uuid[], :origin::smallint[], :claim_group::int[], :target::int[], :limits::text[], :has_children::boolean[], :state::smallint[], :late::boolean[],
            :waits::bigint[], :holds::boolean[])
    AS i(id, shard, priority, tenant, queue, bucket, due, created_at, timeout, start_by, deadline, key_lock, scheduled_at,
         job_id, job_version, body_id, replay_of, origin, claim_group, target, limits, has_children, state, late, waits, holds)

-- name: emit_events
-- One row per kind of event and tenant, if there is a reader.
INSERT INTO mainspring.outbox (at, kind, tenant, runs)
SELECT mainspring.now_us(), :kind, i.tenant, array_agg(i.id) FROM unnest(:runs::uuid[], :tenants::int[]) AS i(id, tenant)
WHERE EXISTS (SELECT FROM mainspring.outbox_cursor) GROUP BY i.tenant

-- name: known_bodies
SELECT b.id FROM unnest(:runs::uuid[], :buckets::int[]) AS i(id, bucket)
JOIN mainspring.body b ON b.bucket = i.bucket AND b.id = i.id

-- name: take_idempotency_keys
-- Inserted in the order of the keys, so that two batches with the same keys do not deadlock.
INSERT INTO mainspring.idempotency (tenant, key, kind, id, fingerprint, expires_at)
SELECT i.tenant, i.key, :kind::smallint, i.id, i.fingerprint, mainspring.now_us() + :kept::bigint
FROM unnest(:tenants::int[], :keys::bytea[], :ids::uuid[], :fingerprints::bytea[]) AS i(tenant, key, id, fingerprint)
ORDER BY i.tenant, i.key
ON CONFLICT DO NOTHING
RETURNING tenant, key

-- name: lock_idempotency_keys
SELECT k.tenant, k.key FROM unnest(:tenants::int[], :keys::bytea[]) AS i(tenant, key)
JOIN mainspring.idempotency k ON k.tenant = i.tenant AND k.key = i.key
ORDER BY k.tenant, k.key FOR UPDATE OF k

-- name: used_idempotency_keys
-- A separate statement after the lock, so that it sees everything created with a key.
SELECT k.tenant, k.key, k.kind, k.id, k.fingerprint, k.expires_at > mainspring.now_us() AND CASE k.kind
    WHEN 2 THEN EXISTS (SELECT FROM mainspring.job j WHERE j.id = k.id)
    ELSE EXISTS (SELECT FROM mainspring.run r WHERE r.id = k.id)
      OR EXISTS (SELECT FROM mainspring.waiting w WHERE w.id = k.id)
      OR EXISTS (SELECT FROM mainspring.history h WHERE h.id = k.id) END AS counts
FROM unnest(:tenants::int[], :keys::bytea[]) AS i(tenant, key)
JOIN mainspring.idempotency k ON k.tenant = i.tenant AND k.key = i.key

-- name: replace_idempotency_keys
-- Reuses keys that the caller has locked.
UPDATE mainspring.idempotency k
SET kind = :kind::smallint, id = i.id, fingerprint = i.fingerprint, expires_at = mainspring.now_us() + :kept::bigint
FROM unnest(:tenants::int[], :keys::bytea[], :ids::uuid[], :fingerprints::bytea[]) AS i(tenant, key, id, fingerprint)
WHERE k.tenant = i.tenant AND k.key = i.key

-- name: free_idempotency_keys
DELETE FROM mainspring.idempotency k USING unnest(:tenants::int[], :keys::bytea[]) AS i(tenant, key)
WHERE k.tenant = i.tenant AND k.key = i.key

-- name: add_labels
INSERT INTO mainspring.label (bucket, id, tenant, label)
SELECT i.bucket, i.id, i.tenant, i.label
FROM unnest(:buckets::int[], :ids::uuid[], :tenants::int[], :labels::text[]) AS i(bucket, id, tenant, label)
ON CONFLICT DO NOTHING

-- name: remove_labels
DELETE FROM mainspring.label l USING unnest(:buckets::int[], :ids::uuid[]) AS i(bucket, id)
WHERE l.bucket = i.bucket AND l.id = i.id

-- name: mark_replayed
UPDATE mainspring.dead_letter d SET state = :DEAD_LETTER_REPLAYED FROM unnest(:runs::uuid[], :tenants::int[]) AS i(run_id, tenant)
WHERE d.run_id = i.run_id AND d.tenant = i.tenant AND d.state IN (:DEAD_LETTER_OPEN, :DEAD_LETTER_DISCARDED)

-- name: add_audit
INSERT INTO mainspring.audit (at, tenant, author, action, target, count, before, after, why)
VALUES (mainspring.now_us(), :tenant, :author, :action, :target, :count, :before, :after, :why)
