-- name: server
SELECT current_setting('server_version_num')::int AS version, current_setting('server_version') AS words,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now, pg_backend_pid() AS pid,
       current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit, current_setting('autovacuum') AS autovacuum,
       current_setting('track_counts') AS track_counts, current_setting('enable_seqscan') AS enable_seqscan,
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int AS connections,
       -- An ordinary role sees the sessions of other roles, but not their details.
       (SELECT count(*) FROM pg_stat_activity WHERE datid IS NOT NULL AND usesysid IS NOT NULL
            AND coalesce(backend_type, 'client backend') = 'client backend') AS connected,
       -- The server stops for the oldest transaction of any of its databases.
       frozen.age AS xid_age, frozen.datname AS xid_database, pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS sees_all, pg_is_in_recovery() AS standby
FROM (SELECT datname, age(datfrozenxid) AS age FROM pg_database ORDER BY 2 DESC LIMIT 1) AS frozen

-- name: schema_version
SELECT coalesce(max(version), 0) AS version, coalesce(max(needs), 0) AS needs FROM mainspring.migration

-- name: vacuum
SELECT c.relname AS name, pg_stat_get_dead_tuples(c.oid) AS dead, pg_stat_get_live_tuples(c.oid) AS live,
       pg_table_size(c.oid) AS size,
       (extract(epoch FROM now() - greatest(pg_stat_get_last_vacuum_time(c.oid), pg_stat_get_last_autovacuum_time(c.oid)))
        * 1000000)::bigint AS ago
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = :schema AND c.relname IN ('run', 'waiting', 'schedule', 'session', 'key_lock')

-- name: transactions
-- What holds back vacuum, oldest first. A transaction without a snapshot or a write holds back nothing.
-- For queries of a standby (hot_standby_feedback without a slot), the age is known, but not the duration.
SELECT * FROM (
    SELECT 'process ' || pid || coalesce(' (' || nullif(application_name, '') || ')', '') AS who, coalesce(state, '') AS state,
           (extract(epoch FROM clock_timestamp() - xact_start) * 1000000)::bigint AS age,
           greatest(age(backend_xmin), age(backend_xid)) AS xids, '' AS snapshot
    FROM pg_stat_activity
    WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'
      AND datname = current_database() AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
    UNION ALL
    SELECT 'prepared transaction ' || gid, 'prepared', (extract(epoch FROM clock_timestamp() - prepared) * 1000000)::bigint,
           age(transaction), ''
    FROM pg_prepared_xacts WHERE database = current_database()
    UNION ALL
    SELECT 'a query on standby ' || coalesce(nullif(application_name, ''), host(client_addr), 'without a name'), 'standby', 0,
           age(backend_xmin), backend_xmin::text
    FROM pg_stat_replication WHERE backend_xmin IS NOT NULL AND age(backend_xmin) > 0
) AS held ORDER BY xids DESC, age DESC LIMIT 5

-- name: idle
-- The longest idle transactions, of those that hold back only locks and their connection.
SELECT pid, 'process ' || pid || coalesce(' (' || nullif(application_name, '') || ')', '') AS who,
       (extract(epoch FROM clock_timestamp() - state_change) * 1000000)::bigint AS age
FROM pg_stat_activity
WHERE state LIKE 'idle in transaction%' AND backend_xmin IS NULL AND backend_xid IS NULL AND pid <> pg_backend_pid()
  AND datname = current_database()
ORDER BY 3 DESC LIMIT 1

-- name: vitals
-- A missed objective is in the state of its job; a met one is left out.
SELECT pg_database_size(current_database()) AS size,
       (SELECT count(*) FROM mainspring.slo
        WHERE position('"late_since"' IN convert_from(state, 'UTF8')) > 0
           OR position('"quiet_since"' IN convert_from(state, 'UTF8')) > 0) AS missed,
       -- A session that was closed ends before its lease.
       (SELECT count(*) FROM mainspring.session
        WHERE kind = :WORKER AND NOT live AND ended_at >= lease_until AND ended_at > mainspring.now_us() - 6 * :HOUR)
           AS lost_workers,
       CASE WHEN NOT pg_is_in_recovery() THEN coalesce(
           (SELECT max(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)) FROM pg_replication_slots), 0)::bigint END
           AS wal_kept

-- name: standbys
-- The standbys. A standby that still receives old data appears as current as the last data sent, so bytes are counted, too.
SELECT coalesce(nullif(application_name, ''), host(client_addr), 'one') AS name,
       coalesce((extract(epoch FROM replay_lag) * 1000000)::bigint, 0) AS late,
       coalesce(CASE WHEN NOT pg_is_in_recovery() THEN pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn) END, 0)::bigint AS bytes
FROM pg_stat_replication WHERE state IN ('catchup', 'streaming') ORDER BY 2 DESC, 3 DESC

-- name: slots
SELECT slot_name AS name, active, greatest(coalesce(age(xmin), 0), coalesce(age(catalog_xmin), 0)) AS xids,
       coalesce(CASE WHEN NOT pg_is_in_recovery() THEN pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) END, 0)::bigint
           AS kept
FROM pg_replication_slots

-- name: indexes
SELECT c.relname AS name, i.indisvalid AND i.indisready AS valid FROM pg_index i
JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = :schema

-- name: unlogged
SELECT c.relname AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = :schema AND c.relkind = 'r' AND c.relpersistence = 'u' ORDER BY 1

-- name: partitions
SELECT c.relname AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = :schema AND c.relkind = 'r' AND c.relispartition AND c.relname ~ '_d[0-9]+$'

-- name: identity
-- As the store itself returns it.
SELECT replace(store_id::text, '-', '') FROM mainspring.meta

-- name: workers
SELECT name, queues, tasks, labels, datacenter, draining FROM mainspring.session
WHERE kind = :WORKER AND live AND lease_until > mainspring.now_us() ORDER BY id LIMIT 10000

-- name: schedulers
SELECT count(*) FROM mainspring.session WHERE kind = :SCHEDULER AND live AND lease_until > mainspring.now_us()

-- name: clocks
SELECT name, clock_offset, clock_error FROM mainspring.session
WHERE live AND lease_until > mainspring.now_us() AND clock_offset IS NOT NULL ORDER BY id LIMIT 10000

-- name: tzdata
SELECT name, tzdata FROM mainspring.session
WHERE kind = :SCHEDULER AND live AND lease_until > mainspring.now_us() AND tzdata <> '' ORDER BY id LIMIT 10000

-- name: expired_sessions
SELECT name FROM mainspring.session WHERE live AND lease_until < :since ORDER BY id LIMIT 100

-- name: queued
-- With runs that come back within a minute after an attempt or a release. A worker releases runs of unknown tasks.
-- A claim group of a tenant or a priority requires the labels of its label set.
SELECT q.name AS queue, t.name AS task, string_to_array(coalesce(l.name, ''), ',') AS requires, sum(n)::bigint AS runs FROM (
    SELECT r.queue, b.task, r.claim_group, count(*) AS n
    FROM (
        (SELECT queue, greatest(claim_group, 0) AS claim_group, body_bucket, coalesce(body_id, id) AS body
         FROM mainspring.run WHERE state = :QUEUED LIMIT 100000)
        UNION ALL
        SELECT w.queue, greatest(w.claim_group, 0), w.body_bucket, coalesce(w.body_id, w.id)
        FROM mainspring.shard h, LATERAL (
            SELECT * FROM mainspring.waiting w
            WHERE w.shard = h.id AND w.state = :SCHEDULED AND w.due <= mainspring.now_us() + :MINUTE ORDER BY due LIMIT 1000
        ) AS w WHERE w.fence > 0
    ) AS r
    JOIN mainspring.body b ON b.bucket = r.body_bucket AND b.id = r.body GROUP BY 1, 2, 3
) AS c JOIN mainspring.name q ON q.id = c.queue JOIN mainspring.name t ON t.id = c.task
LEFT JOIN mainspring.name w ON w.id = c.claim_group AND w.kind IN (:LABEL_SET_NAME, :CLAIM_GROUP_NAME)
LEFT JOIN mainspring.name l ON l.kind = :LABEL_SET_NAME AND l.id = CASE w.kind WHEN :CLAIM_GROUP_NAME THEN split_part(w.name, ':', 2)::int ELSE w.id END
GROUP BY 1, 2, 3 ORDER BY 4 DESC

-- name: unstaged
SELECT count(w.due) AS count, min(w.due) AS oldest FROM mainspring.shard h, LATERAL (
    SELECT due FROM mainspring.waiting w
    WHERE w.shard = h.id AND w.state = :SCHEDULED AND w.due <= mainspring.now_us() ORDER BY due LIMIT 1000
) AS w

-- name: unfired
SELECT count(s.next_fire) AS count, min(s.next_fire) AS oldest FROM mainspring.shard h, LATERAL (
    SELECT next_fire FROM mainspring.schedule s
    WHERE s.shard = h.id AND s.active AND s.next_fire <= mainspring.now_us() ORDER BY next_fire LIMIT 1000
) AS s

-- name: waiting
SELECT EXISTS (SELECT FROM mainspring.waiting WHERE state = :SCHEDULED) OR EXISTS (SELECT FROM mainspring.schedule WHERE active)

-- name: unqueued
-- Scheduled runs, and runs blocked by a key, limits or parents. Each is counted in its own index up to 10,000; for more, the
-- planner's estimate is used.
SELECT coalesce(sum(w.runs) FILTER (WHERE w.scheduled), 0)::bigint AS scheduled,
       coalesce(sum(w.runs) FILTER (WHERE NOT w.scheduled), 0)::bigint AS blocked
FROM (
    SELECT c.scheduled, CASE WHEN c.runs <= 10000 THEN c.runs
                             ELSE greatest(c.runs, (SELECT i.reltuples::bigint FROM pg_class i WHERE i.oid = c.index)) END AS runs
    FROM (
        SELECT true AS scheduled, 'mainspring.waiting_due'::regclass AS index, count(*) AS runs
        FROM (SELECT FROM mainspring.waiting WHERE state = :SCHEDULED LIMIT 10001) AS w
        UNION ALL SELECT false, 'mainspring.waiting_blocked'::regclass, count(*)
        FROM (SELECT FROM mainspring.waiting WHERE state = :BLOCKED LIMIT 10001) AS w
        UNION ALL SELECT false, 'mainspring.waiting_limit'::regclass, count(*)
        FROM (SELECT FROM mainspring.waiting WHERE state = :BLOCKED_BY_LIMIT LIMIT 10001) AS w
        UNION ALL SELECT false, 'mainspring.waiting_parents'::regclass, count(*)
        FROM (SELECT FROM mainspring.waiting WHERE state = :BLOCKED_BY_PARENTS LIMIT 10001) AS w
    ) AS c
) AS w

-- name: readers
-- A reader with a short time to live is skipped: it is deleted soon if it does not read.
SELECT c.reader AS name, CASE WHEN c.until IS NULL OR c.until > mainspring.now_us() + 1800000000 THEN (
           SELECT o.at FROM mainspring.outbox o WHERE (o.xid, o.id) > (c.xid, c.position) ORDER BY o.xid, o.id LIMIT 1
       ) END AS oldest
FROM mainspring.outbox_cursor c ORDER BY 1 LIMIT 1000

-- name: dead_letters
SELECT count(*) FROM mainspring.dead_letter WHERE state = :DEAD_LETTER_OPEN

-- name: pauses
SELECT coalesce(t.name, '') AS tenant, coalesce(q.name, '') AS queue FROM mainspring.pause p
LEFT JOIN mainspring.name t ON t.id = p.tenant LEFT JOIN mainspring.name q ON q.id = p.queue
WHERE p.until IS NULL OR p.until > mainspring.now_us() ORDER BY 1, 2 LIMIT 1000

-- name: paused_jobs
SELECT t.name AS tenant, j.name AS job FROM mainspring.job j JOIN mainspring.schedule s ON s.job_id = j.id
JOIN mainspring.name t ON t.id = j.tenant
WHERE j.state = :JOB_PAUSED AND (s.resume_at IS NULL OR s.resume_at > mainspring.now_us()) ORDER BY 1, 2 LIMIT 1000

-- name: processes
SELECT count(*) FROM mainspring.session WHERE live AND lease_until > mainspring.now_us()
