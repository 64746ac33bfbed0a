-- name: submit_now
-- All immediate, none with a key: two inserts. A known id breaks a primary key; then submit_bodies sorts it out.
-- The last two arguments are a wake-up to send with the commit: channel and message, or null.
WITH made AS (
    INSERT INTO mainspring.body (bucket, id, task, policy, payload)
    SELECT i.bucket, i.id, i.task, i.policy, i.payload
    FROM unnest($1::uuid[], $2::int[], $3::int[], $4::bytea[], $5::bytea[]) AS i(id, bucket, task, policy, payload)
), queued AS (
    INSERT INTO mainspring.run (id, shard, state, priority, attempt, lost, tenant, queue, body_bucket, rank, due,
                                created_at, timeout, start_by, deadline, replay_of)
    SELECT i.id, i.shard, 3, i.priority, 0, 0, i.tenant, i.queue, i.bucket,
           clock.now + i.priority * 1000000000::bigint, clock.now, clock.now, i.timeout,
           clock.now + i.start_within, clock.now + i.deadline, i.replay_of
    FROM (SELECT mainspring.now_us() AS now) AS clock,
         unnest($1::uuid[], $2::int[], $6::smallint[], $7::smallint[], $8::int[], $9::int[], $10::bigint[], $11::bigint[],
                $12::bigint[], $13::uuid[])
             AS i(id, bucket, shard, priority, tenant, queue, timeout, start_within, deadline, replay_of)
), told AS (
    INSERT INTO mainspring.outbox (at, kind, runs)
    SELECT mainspring.now_us(), 'run.submitted', $1::uuid[] WHERE EXISTS (SELECT FROM mainspring.outbox_cursor)
)
SELECT pg_notify($14, $15) WHERE $15::text IS NOT NULL

-- name: submit_one
-- The same for a single run: without arrays it takes a good part less beside its commit.
WITH made AS (
    INSERT INTO mainspring.body (bucket, id, task, policy, payload) VALUES ($2, $1, $3, $4, $5)
), queued AS (
    INSERT INTO mainspring.run (id, shard, state, priority, attempt, lost, tenant, queue, body_bucket, rank, due,
                                created_at, timeout, start_by, deadline, replay_of)
    SELECT $1, $6, 3, $7::smallint, 0, 0, $8, $9, $2, clock.now + $7 * 1000000000::bigint, clock.now, clock.now, $10,
           clock.now + $11::bigint, clock.now + $12::bigint, $13
    FROM (SELECT mainspring.now_us() AS now) AS clock
), told AS (
    INSERT INTO mainspring.outbox (at, kind, runs)
    SELECT mainspring.now_us(), 'run.submitted', ARRAY[$1] WHERE EXISTS (SELECT FROM mainspring.outbox_cursor)
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
    INSERT INTO mainspring.body (bucket, id, task, policy, payload)
    SELECT bucket, id, task, policy, payload FROM input
), queued AS (
    INSERT INTO mainspring.run (id, shard, state, priority, attempt, lost, tenant, queue, body_bucket, rank, due,
                                created_at, timeout, start_by, deadline, replay_of)
    SELECT id, shard, 3, priority, 0, 0, tenant, queue, bucket, now + priority * 1000000000::bigint, due, now, timeout,
           due + start_within, due + deadline, replay_of
    FROM input WHERE due <= now
    RETURNING id
), later AS (
    INSERT INTO mainspring.waiting (id, shard, state, priority, attempt, lost, tenant, queue, body_bucket, due, created_at,
                                    timeout, start_by, deadline, replay_of)
    SELECT id, shard, 1, priority, 0, 0, tenant, queue, bucket, due, now, timeout, due + start_within,
           due + deadline, replay_of
    FROM input WHERE due > now
), told AS (
    INSERT INTO mainspring.outbox (at, kind, runs)
    SELECT clock.now, 'run.submitted', $1::uuid[] FROM clock WHERE EXISTS (SELECT FROM mainspring.outbox_cursor)
)
SELECT id FROM queued

-- name: submit_bodies
-- The first step of a submit that must look at what is there: which of these ids are new.
WITH clock AS (SELECT mainspring.now_us() AS now)
INSERT INTO mainspring.body (bucket, id, task, policy, payload)
SELECT i.bucket, i.id, i.task, i.policy, i.payload
FROM unnest($1::uuid[], $2::int[], $3::int[], $4::bytea[], $5::bytea[]) AS i(id, bucket, task, policy, payload)
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
                            start_by, deadline, gate, scheduled_at, job_id, job_version, body_id, replay_of, origin, rank)
SELECT i.id, i.shard, 3, i.priority, 0, 0, i.tenant, i.queue, i.bucket, i.due, i.created_at, i.timeout, i.start_by,
       i.deadline, i.gate, i.scheduled_at, i.job_id, i.job_version, i.body_id, i.replay_of, i.origin, i.rank
FROM unnest($1::uuid[], $2::smallint[], $3::smallint[], $4::int[], $5::int[], $6::int[], $7::bigint[], $8::bigint[],
            $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::uuid[], $15::int[], $16::uuid[],
            $17::uuid[], $18::smallint[], $19::bigint[])
    AS i(id, shard, priority, tenant, queue, bucket, due, created_at, timeout, start_by, deadline, gate, scheduled_at,
         job_id, job_version, body_id, replay_of, origin, rank)

-- name: insert_waiting
INSERT INTO mainspring.waiting (id, shard, state, priority, attempt, lost, tenant, queue, body_bucket, due, created_at,
                                timeout, start_by, deadline, gate, scheduled_at, job_id, job_version, body_id, replay_of,
                                origin, late)
SELECT i.id, i.shard, i.state, i.priority, 0, 0, i.tenant, i.queue, i.bucket, i.due, i.created_at, i.timeout, i.start_by,
       i.deadline, i.gate, i.scheduled_at, i.job_id, i.job_version, i.body_id, i.replay_of, i.origin, i.late
FROM unnest($1::uuid[], $2::smallint[], $3::smallint[], $4::int[], $5::int[], $6::int[], $7::bigint[], $8::bigint[],
            $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::uuid[], $15::int[], $16::uuid[],
            $17::uuid[], $18::smallint[], $19::smallint[], $20::boolean[])
    AS i(id, shard, priority, tenant, queue, bucket, due, created_at, timeout, start_by, deadline, gate, scheduled_at,
         job_id, job_version, body_id, replay_of, origin, state, late)

-- name: tell
-- One row a kind of event, while somebody reads.
INSERT INTO mainspring.outbox (at, kind, runs)
SELECT mainspring.now_us(), $1, $2::uuid[] WHERE EXISTS (SELECT FROM mainspring.outbox_cursor)
