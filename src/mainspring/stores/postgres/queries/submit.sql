-- name: submit_now
-- All immediate, none with a key: two inserts. A known id breaks a primary key; then submit_bodies sorts it out.
-- The last two arguments are a wake-up to send with the commit: channel and message, or null.
WITH made AS (
    INSERT INTO mainspring.body (bucket, id, task, policy, payload, tenant)
    SELECT i.bucket, i.id, i.task, i.policy, i.payload, i.tenant
    FROM unnest($1::uuid[], $2::int[], $3::int[], $4::bytea[], $5::bytea[], $8::int[])
             AS i(id, bucket, task, policy, payload, tenant)
), queued AS (
    INSERT INTO mainspring.run (id, shard, state, priority, attempt, lost, tenant, queue, body_bucket, rank, due,
                                created_at, timeout, start_by, deadline, replay_of, of_task)
    SELECT i.id, i.shard, 3, i.priority, 0, 0, i.tenant, i.queue, i.bucket,
           clock.now + i.priority * 1000000000::bigint, clock.now, clock.now, i.timeout,
           clock.now + i.start_within, clock.now + i.deadline, i.replay_of, i.task
    FROM (SELECT mainspring.now_us() AS now) AS clock,
         unnest($1::uuid[], $2::int[], $6::smallint[], $7::smallint[], $8::int[], $9::int[], $10::bigint[], $11::bigint[],
                $12::bigint[], $13::uuid[], $3::int[])
             AS i(id, bucket, shard, priority, tenant, queue, timeout, start_within, deadline, replay_of, task)
), told AS (
    INSERT INTO mainspring.outbox (at, kind, tenant, runs, tasks, queues)
    SELECT mainspring.now_us(), 'run.submitted', i.tenant, array_agg(i.id), array_agg(i.task), array_agg(i.queue)
    FROM unnest($1::uuid[], $8::int[], $3::int[], $9::int[]) AS i(id, tenant, task, queue)
    WHERE EXISTS (SELECT FROM mainspring.outbox_cursor) GROUP BY i.tenant
)
SELECT pg_notify($14, $15) WHERE $15::text IS NOT NULL

-- name: submit_one
-- The same for a single run: without arrays it takes a good part less beside its commit.
WITH made AS (
    INSERT INTO mainspring.body (bucket, id, task, policy, payload, tenant) VALUES ($2, $1, $3, $4, $5, $8)
), queued AS (
    INSERT INTO mainspring.run (id, shard, state, priority, attempt, lost, tenant, queue, body_bucket, rank, due,
                                created_at, timeout, start_by, deadline, replay_of, of_task)
    SELECT $1, $6, 3, $7::smallint, 0, 0, $8, $9, $2, clock.now + $7 * 1000000000::bigint, clock.now, clock.now, $10,
           clock.now + $11::bigint, clock.now + $12::bigint, $13, $3
    FROM (SELECT mainspring.now_us() AS now) AS clock
), told AS (
    INSERT INTO mainspring.outbox (at, kind, tenant, runs, tasks, queues)
    SELECT mainspring.now_us(), 'run.submitted', $8, ARRAY[$1], ARRAY[$3], ARRAY[$9] WHERE EXISTS (SELECT FROM mainspring.outbox_cursor)
)
SELECT pg_notify($14, $15) WHERE $15::text IS NOT NULL

-- name: submit_any
-- Some for later. Same arguments, then the time asked for and the delay.
WITH clock AS MATERIALIZED (
    SELECT mainspring.now_us() AS now
), input AS MATERIALIZED (
    SELECT i.*, coalesce(i.at, clock.now + i.delay) AS due, clock.now
    FROM clock,
         unnest($1::uuid[], $2::int[], $3::int[], $4::bytea[], $5::bytea[], $6::smallint[], $7::smallint[], $8::int[],
                $9::int[], $10::bigint[], $11::bigint[], $12::bigint[], $13::uuid[], $14::bigint[], $15::bigint[])
             AS i(id, bucket, task, policy, payload, shard, priority, tenant, queue, timeout, start_within, deadline, replay_of,
                  at, delay)
), made AS (
    INSERT INTO mainspring.body (bucket, id, task, policy, payload, tenant)
    SELECT bucket, id, task, policy, payload, tenant FROM input
), queued AS (
    INSERT INTO mainspring.run (id, shard, state, priority, attempt, lost, tenant, queue, body_bucket, rank, due,
                                created_at, timeout, start_by, deadline, replay_of, of_task)
    SELECT id, shard, 3, priority, 0, 0, tenant, queue, bucket, now + priority * 1000000000::bigint, due, now, timeout,
           due + start_within, due + deadline, replay_of, task
    FROM input WHERE due <= now
    RETURNING id
), later AS (
    INSERT INTO mainspring.waiting (id, shard, state, priority, attempt, lost, tenant, queue, body_bucket, due, created_at,
                                    timeout, start_by, deadline, replay_of)
    SELECT id, shard, 1, priority, 0, 0, tenant, queue, bucket, due, now, timeout, due + start_within,
           due + deadline, replay_of
    FROM input WHERE due > now
), told AS (
    INSERT INTO mainspring.outbox (at, kind, tenant, runs, tasks, queues)
    SELECT (SELECT now FROM clock), 'run.submitted', tenant, array_agg(id), array_agg(task), array_agg(queue) FROM input
    WHERE EXISTS (SELECT FROM mainspring.outbox_cursor) GROUP BY tenant
)
SELECT id FROM queued

-- name: submit_bodies
-- The first step of a submit that must look at what is there: which of these ids are new.
WITH clock AS (SELECT mainspring.now_us() AS now)
INSERT INTO mainspring.body (bucket, id, task, policy, payload, tenant, about)
SELECT i.bucket, i.id, i.task, i.policy, i.payload, i.tenant, i.about
FROM unnest($1::uuid[], $2::int[], $3::int[], $4::bytea[], $5::bytea[], $6::int[], $7::bytea[])
         AS i(id, bucket, task, policy, payload, tenant, about)
ORDER BY i.id
ON CONFLICT DO NOTHING
RETURNING id, (SELECT now FROM clock) AS now

-- name: lock_gates
-- Lock gates in the order of their keys, making them where they are missing. The row seen is the newest one.
INSERT INTO mainspring.gate AS g (key)
SELECT key FROM unnest($1::bigint[]) AS key ORDER BY key
ON CONFLICT (key) DO UPDATE SET key = g.key
RETURNING key, holder

-- name: hold_gates
UPDATE mainspring.gate SET holder = i.holder
FROM unnest($1::bigint[], $2::uuid[]) AS i(key, holder)
WHERE gate.key = i.key

-- name: insert_queued
INSERT INTO mainspring.run (id, shard, state, priority, attempt, lost, tenant, queue, body_bucket, due, created_at, timeout,
                            start_by, deadline, gate, scheduled_at, job_id, job_version, body_id, replay_of, origin, lane,
                            target, rank, queued_at, limits, has_children)
SELECT i.id, i.shard, 3, i.priority, 0, 0, i.tenant, i.queue, i.bucket, i.due, i.created_at, i.timeout, i.start_by,
       i.deadline, i.gate, i.scheduled_at, i.job_id, i.job_version, i.body_id, i.replay_of, i.origin, i.lane, i.target, i.rank,
       i.queued_at, i.limits::bigint[], i.has_children
FROM unnest($1::uuid[], $2::smallint[], $3::smallint[], $4::int[], $5::int[], $6::int[], $7::bigint[], $8::bigint[],
            $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::uuid[], $15::int[], $16::uuid[],
            $17::uuid[], $18::smallint[], $19::int[], $20::int[], $21::text[], $22::boolean[], $23::bigint[], $24::bigint[])
    AS i(id, shard, priority, tenant, queue, bucket, due, created_at, timeout, start_by, deadline, gate, scheduled_at,
         job_id, job_version, body_id, replay_of, origin, lane, target, limits, has_children, rank, queued_at)

-- name: insert_waiting
INSERT INTO mainspring.waiting (id, shard, state, priority, attempt, lost, tenant, queue, body_bucket, due, created_at,
                                timeout, start_by, deadline, gate, scheduled_at, job_id, job_version, body_id, replay_of,
                                origin, lane, target, late, limits, has_children, waits, holds)
SELECT i.id, i.shard, i.state, i.priority, 0, 0, i.tenant, i.queue, i.bucket, i.due, i.created_at, i.timeout, i.start_by,
       i.deadline, i.gate, i.scheduled_at, i.job_id, i.job_version, i.body_id, i.replay_of, i.origin, i.lane, i.target, i.late,
       i.limits::bigint[], i.has_children, i.waits, i.holds
FROM unnest($1::uuid[], $2::smallint[], $3::smallint[], $4::int[], $5::int[], $6::int[], $7::bigint[], $8::bigint[],
            $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::uuid[], $15::int[], $16::uuid[],
            $17::uuid[], $18::smallint[], $19::int[], $20::int[], $21::text[], $22::boolean[], $23::smallint[], $24::boolean[],
            $25::bigint[], $26::boolean[])
    AS i(id, shard, priority, tenant, queue, bucket, due, created_at, timeout, start_by, deadline, gate, scheduled_at,
         job_id, job_version, body_id, replay_of, origin, lane, target, limits, has_children, state, late, waits, holds)

-- name: tell
-- One row a kind of event and tenant, while somebody reads.
INSERT INTO mainspring.outbox (at, kind, tenant, runs)
SELECT mainspring.now_us(), $1, i.tenant, array_agg(i.id) FROM unnest($2::uuid[], $3::int[]) AS i(id, tenant)
WHERE EXISTS (SELECT FROM mainspring.outbox_cursor) GROUP BY i.tenant

-- name: known_bodies
SELECT b.id FROM unnest($1::uuid[], $2::int[]) AS i(id, bucket)
JOIN mainspring.body b ON b.bucket = i.bucket AND b.id = i.id

-- name: take_keys
-- In the order of the keys: two batches with the same ones do not lock each other out.
INSERT INTO mainspring.idempotency (tenant, key, kind, id, fingerprint, expires_at)
SELECT i.tenant, i.key, $5::smallint, i.id, i.fingerprint, mainspring.now_us() + $6::bigint
FROM unnest($1::int[], $2::bytea[], $3::uuid[], $4::bytea[]) AS i(tenant, key, id, fingerprint)
ORDER BY i.tenant, i.key
ON CONFLICT DO NOTHING
RETURNING tenant, key

-- name: lock_keys
SELECT k.tenant, k.key FROM unnest($1::int[], $2::bytea[]) AS i(tenant, key)
JOIN mainspring.idempotency k ON k.tenant = i.tenant AND k.key = i.key
ORDER BY k.tenant, k.key FOR UPDATE OF k

-- name: used_keys
-- A statement of its own, after the lock: only then is it sure to see what was made with a key.
SELECT k.tenant, k.key, k.kind, k.id, k.fingerprint, k.expires_at > mainspring.now_us() AND CASE k.kind
    WHEN 2 THEN EXISTS (SELECT FROM mainspring.job j WHERE j.id = k.id)
    ELSE EXISTS (SELECT FROM mainspring.run r WHERE r.id = k.id)
      OR EXISTS (SELECT FROM mainspring.waiting w WHERE w.id = k.id)
      OR EXISTS (SELECT FROM mainspring.history h WHERE h.id = k.id) END AS counts
FROM unnest($1::int[], $2::bytea[]) AS i(tenant, key)
JOIN mainspring.idempotency k ON k.tenant = i.tenant AND k.key = i.key

-- name: use_keys
-- Keys that the caller has locked are used for something else.
UPDATE mainspring.idempotency k
SET kind = $5::smallint, id = i.id, fingerprint = i.fingerprint, expires_at = mainspring.now_us() + $6::bigint
FROM unnest($1::int[], $2::bytea[], $3::uuid[], $4::bytea[]) AS i(tenant, key, id, fingerprint)
WHERE k.tenant = i.tenant AND k.key = i.key

-- name: free_keys
DELETE FROM mainspring.idempotency k USING unnest($1::int[], $2::bytea[]) AS i(tenant, key)
WHERE k.tenant = i.tenant AND k.key = i.key

-- name: add_labels
INSERT INTO mainspring.label (bucket, id, tenant, label)
SELECT i.bucket, i.id, i.tenant, i.label
FROM unnest($1::int[], $2::uuid[], $3::int[], $4::text[]) AS i(bucket, id, tenant, label)
ON CONFLICT DO NOTHING

-- name: remove_labels
DELETE FROM mainspring.label l USING unnest($1::int[], $2::uuid[]) AS i(bucket, id)
WHERE l.bucket = i.bucket AND l.id = i.id

-- name: mark_replayed
UPDATE mainspring.dead_letter d SET state = 2 FROM unnest($1::uuid[], $2::int[]) AS i(run_id, tenant)
WHERE d.run_id = i.run_id AND d.tenant = i.tenant AND d.state IN (1, 3)

-- name: add_audit
INSERT INTO mainspring.audit (at, tenant, author, action, target, count, before, after, why)
VALUES (mainspring.now_us(), $1, $2, $3, $4, $5, $6, $7, $8)
