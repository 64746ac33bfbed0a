-- name: now
SELECT mainspring.now_us()

-- name: runs
-- Runs in every table, of one tenant or of all. Payloads and results only on request, since both can be large.
-- CASE instead of coalesce, which counts as leaky and cannot be an index condition under row-level security.
SELECT r.id, r.state, b.task, r.queue, r.tenant, r.priority, r.attempt, r.due, r.created_at, r.lost, r.fence, NULL AS reason,
       r.job_id, r.job_version, r.scheduled_at, r.started_at, NULL::bigint AS finished_at, r.cancel_at, NULL::bytea AS result,
       NULL::text AS error, r.start_by, r.deadline, r.replay_of, coalesce(r.queued_at, r.created_at) AS queued_at, r.session,
       s.name AS executor, b.policy, b.about, CASE WHEN :payloads::boolean THEN b.payload END AS payload, NULL::text AS fingerprint,
       p.done, p.total, p.note, p.at AS progress_at, r.target, d.parents, d.rule, NULL::bigint AS waits, NULL::smallint AS class
FROM mainspring.run r
JOIN mainspring.body b ON b.bucket = r.body_bucket AND b.id = CASE WHEN r.body_id IS NULL THEN r.id ELSE r.body_id END
LEFT JOIN mainspring.session s ON s.id = r.session
LEFT JOIN mainspring.progress p ON p.run_id = r.id
LEFT JOIN mainspring.dependent d ON d.run_id = r.id
WHERE r.id = ANY (:runs::uuid[]) AND (:tenant::int IS NULL OR r.tenant = :tenant)
UNION ALL
SELECT w.id, w.state, b.task, w.queue, w.tenant, w.priority, w.attempt, w.due, w.created_at, w.lost, w.fence, w.reason,
       w.job_id, w.job_version, w.scheduled_at, NULL, NULL, w.cancel_at, NULL, NULL, w.start_by, w.deadline, w.replay_of, NULL,
       NULL, NULL, b.policy, b.about, CASE WHEN :payloads::boolean THEN b.payload END, NULL, p.done, p.total, p.note, p.at,
       w.target, d.parents, d.rule, CASE WHEN w.state = :BLOCKED_BY_LIMIT THEN w.waits END, NULL
FROM mainspring.waiting w
JOIN mainspring.body b ON b.bucket = w.body_bucket AND b.id = CASE WHEN w.body_id IS NULL THEN w.id ELSE w.body_id END
LEFT JOIN mainspring.progress p ON p.run_id = w.id
LEFT JOIN mainspring.dependent d ON d.run_id = w.id
WHERE w.id = ANY (:runs::uuid[]) AND (:tenant::int IS NULL OR w.tenant = :tenant)
UNION ALL
SELECT h.id, h.state, b.task, h.queue, h.tenant, h.priority, h.attempt, h.due, h.created_at, h.lost, h.fence, h.reason,
       h.job_id, h.job_version, h.scheduled_at, h.started_at, h.finished_at, NULL, CASE WHEN :results::boolean THEN h.result END,
       h.error, h.start_by, h.deadline, h.replay_of,
       CASE WHEN h.started_at IS NOT NULL THEN coalesce(h.queued_at, h.created_at) END, h.session, s.name, b.policy, b.about,
       b.payload, d.fingerprint, p.done, p.total, p.note, p.at, h.target, e.parents, e.rule, NULL, h.class
FROM mainspring.history h
LEFT JOIN LATERAL (SELECT b.task, b.policy, b.about, CASE WHEN :payloads::boolean THEN b.payload END AS payload
                   FROM mainspring.body b
                   WHERE b.bucket IN (h.body_bucket, :KEPT_BUCKET) AND b.id = CASE WHEN h.body_id IS NULL THEN h.id ELSE h.body_id END LIMIT 1) AS b ON true
LEFT JOIN mainspring.session s ON s.id = h.session
LEFT JOIN mainspring.dead_letter d ON d.run_id = h.id
LEFT JOIN mainspring.progress p ON p.run_id = h.id
LEFT JOIN mainspring.dependent e ON e.run_id = h.id
WHERE h.id = ANY (:runs::uuid[]) AND (:tenant::int IS NULL OR h.tenant = :tenant)

-- name: states
SELECT id, state, cancel_at FROM mainspring.run WHERE id = ANY (:runs::uuid[])
UNION ALL SELECT id, state, NULL FROM mainspring.waiting WHERE id = ANY (:runs::uuid[])
UNION ALL SELECT id, state, NULL FROM mainspring.history WHERE id = ANY (:runs::uuid[])

-- name: standings
-- Runs with a tag, created since `since`. History is partitioned by end: not before `ended_since`, not after now. A tag has two rows
-- while the body of its run is moved.
WITH mine AS MATERIALIZED (
    SELECT l.id FROM mainspring.label l WHERE l.tenant = ANY (:tenants::int[]) AND l.label = :tag::text AND l.id >= :since::uuid
    ORDER BY l.id DESC LIMIT :limit
), live AS MATERIALIZED (
    SELECT r.id, CASE WHEN r.state = :RUNNING AND r.cancel_at IS NOT NULL THEN :CANCELLING::smallint ELSE r.state END AS state, r.replay_of
    FROM mainspring.run r WHERE r.id = ANY (ARRAY(SELECT id FROM mine))
    UNION ALL
    SELECT w.id, CASE WHEN w.state IN (:BLOCKED_BY_LIMIT, :BLOCKED_BY_PARENTS) THEN :BLOCKED::smallint ELSE w.state END, w.replay_of
    FROM mainspring.waiting w WHERE w.id = ANY (ARRAY(SELECT id FROM mine))
)
SELECT state, array_agg(id ORDER BY id DESC) AS ids, array_agg(id) FILTER (WHERE replay_of IS NOT NULL) AS replays,
       array_agg(replay_of) FILTER (WHERE replay_of IS NOT NULL) AS replayed
FROM (
    SELECT id, state, replay_of FROM live
    UNION ALL
    SELECT h.id, h.state, h.replay_of FROM mainspring.history h
    WHERE h.id = ANY (ARRAY(SELECT m.id FROM mine m WHERE NOT EXISTS (SELECT FROM live WHERE live.id = m.id)))
      AND h.finished_at >= :ended_since AND h.finished_at <= (SELECT mainspring.now_us())
) AS found GROUP BY state

-- name: attempts
SELECT run_id, fence, number, outcome, reason, error, coalesce(started_at, ended_at) AS started_at, ended_at
FROM mainspring.attempt WHERE run_id = :run AND (:tenant::int IS NULL OR tenant = :tenant)
UNION ALL SELECT run_id, fence, number, outcome, reason, error, coalesce(started_at, ended_at), ended_at
FROM mainspring.attempt_kept WHERE run_id = :run AND (:tenant::int IS NULL OR tenant = :tenant) ORDER BY fence

-- name: ledger
SELECT job_id, scheduled_at, decision, reason, run_id, job_version, epoch, ticks, last_at, target
FROM mainspring.ledger
WHERE job_id = :job AND scheduled_at >= :since AND scheduled_at < :until AND (:tenant::int IS NULL OR tenant = :tenant)
UNION ALL SELECT job_id, scheduled_at, decision, reason, run_id, job_version, epoch, ticks, last_at, target
FROM mainspring.ledger_kept
WHERE job_id = :job AND scheduled_at >= :since AND scheduled_at < :until AND (:tenant::int IS NULL OR tenant = :tenant)
ORDER BY scheduled_at, target LIMIT :limit

-- name: last_ticks
SELECT newest.* FROM unnest(:jobs::uuid[]) AS wanted (job_id) CROSS JOIN LATERAL (
    SELECT l.job_id, l.scheduled_at, l.decision, l.reason, l.run_id, l.job_version, l.epoch, l.ticks, l.last_at, l.target
    FROM mainspring.ledger AS l WHERE l.job_id = wanted.job_id AND (:tenant::int IS NULL OR l.tenant = :tenant)
    ORDER BY l.scheduled_at DESC, l.target DESC LIMIT :limit
) AS newest

-- name: depths
-- By queue and claim group. oldest_ready: since when the run that waits longest for a worker could have started, without paused runs.
SELECT d.queue, d.claim_group, sum(d.queued)::bigint AS queued, sum(d.running)::bigint AS running, min(d.oldest_due) AS oldest_due,
       min(greatest(d.oldest_ready, p.over)) FILTER (WHERE d.queued > 0 AND NOT p.paused) AS oldest_ready
FROM (
    SELECT r.queue, r.tenant, r.claim_group, count(*) FILTER (WHERE r.state = :QUEUED) AS queued,
           count(*) FILTER (WHERE r.state = :RUNNING) AS running,
           min(r.due) FILTER (WHERE r.state = :QUEUED) AS oldest_due,
           min(greatest(r.due, r.ready_at)) FILTER (WHERE r.state = :QUEUED) AS oldest_ready
    FROM mainspring.run r WHERE :tenant::int IS NULL OR r.tenant = :tenant GROUP BY r.queue, r.tenant, r.claim_group
) AS d, LATERAL (
    SELECT max(p.until) FILTER (WHERE p.until <= mainspring.now_us()) AS over,
           coalesce(bool_or(p.until IS NULL OR p.until > mainspring.now_us()), false) AS paused
    FROM mainspring.pause p WHERE p.tenant IN (0, d.tenant) AND p.queue IN (0, d.queue)
) AS p
GROUP BY d.queue, d.claim_group

-- name: datacenters_of_claim_groups
-- The data center that each claim group requires. A claim group of a tenant or a priority requires that of its label set.
SELECT w.id, CASE WHEN strpos(n.name, '>') > 0 THEN o.serving ELSE substring(n.name from '(?:^|,)datacenter=([^,>]+)') END
             AS datacenter
FROM (
    SELECT id, CASE kind WHEN :CLAIM_GROUP_NAME THEN split_part(name, ':', 2)::int ELSE id END AS claim_group
    FROM mainspring.name WHERE id = ANY (:claim_groups::int[]) AND kind IN (:LABEL_SET_NAME, :CLAIM_GROUP_NAME)
) AS w JOIN mainspring.name n ON n.id = w.claim_group AND n.kind = :LABEL_SET_NAME LEFT JOIN mainspring.datacenter_order o ON o.claim_group = n.id

-- name: hint_key
SELECT hint_key::text FROM mainspring.meta

-- name: hints
-- Runs that any worker may take, or any worker of a data center: no target, no other labels. `state + 0` keeps the planner from the
-- index of all queued runs, which is long when this is called often.
SELECT r.id, r.queue, r.rank, r.priority, r.key_lock, r.attempt, CASE n.kind WHEN :LABEL_SET_NAME THEN substr(n.name, 12) ELSE '' END AS datacenter
FROM mainspring.run r LEFT JOIN mainspring.name n ON r.claim_group > 0 AND n.id = r.claim_group
WHERE r.id = ANY (:runs::uuid[]) AND r.state + 0 = :QUEUED AND r.target IS NULL
  AND (r.claim_group = 0 OR (n.kind = :CLAIM_GROUP_NAME AND split_part(n.name, ':', 2) = '0') OR (n.kind = :LABEL_SET_NAME AND n.name ~ '^datacenter=[^,>]+$'))

-- name: hints_ready
-- With the groups of each priority, for queues with slot pools and without fair turns.
SELECT best.*, claim_group.datacenter FROM mainspring.name q, (
    SELECT 0 AS id, '' AS datacenter
    UNION ALL SELECT n.id, substr(n.name, 12) FROM mainspring.name n WHERE n.kind = :LABEL_SET_NAME AND n.name ~ '^datacenter=[^,>]+$'
    UNION ALL SELECT n.id, '' FROM mainspring.name n WHERE n.kind = :CLAIM_GROUP_NAME AND n.name IN
        ('0:0:1', '0:0:2', '0:0:3', '0:0:4', '0:0:5', '0:0:6', '0:0:7', '0:0:8', '0:0:9', '0:0:10')
) AS claim_group, LATERAL (
    SELECT r.id, r.queue, r.rank, r.priority, r.key_lock, r.attempt FROM mainspring.run r
    WHERE r.queue = q.id AND r.claim_group = claim_group.id AND r.state = :QUEUED ORDER BY r.rank, r.id LIMIT :limit
) AS best
WHERE q.kind = :QUEUE_NAME AND (:queues::text[] IS NULL OR q.name = ANY (:queues::text[]))

-- name: event_facts
-- Runs that have not ended before `since`, nor after now, which limits history to one or two days. Most are not found at all.
WITH live AS MATERIALIZED (
    SELECT r.id, b.task, r.queue, r.job_id, r.scheduled_at, b.about
    FROM mainspring.run r
    JOIN mainspring.body b ON b.bucket = r.body_bucket AND b.id = CASE WHEN r.body_id IS NULL THEN r.id ELSE r.body_id END
    WHERE r.id = ANY (:runs::uuid[])
    UNION ALL
    SELECT w.id, b.task, w.queue, w.job_id, w.scheduled_at, b.about
    FROM mainspring.waiting w
    JOIN mainspring.body b ON b.bucket = w.body_bucket AND b.id = CASE WHEN w.body_id IS NULL THEN w.id ELSE w.body_id END
    WHERE w.id = ANY (:runs::uuid[])
)
SELECT id, task, queue, job_id, scheduled_at, false AS ended, 0::smallint AS attempt, NULL::text AS reason, NULL::text AS error, about FROM live
UNION ALL
SELECT h.id, b.task, h.queue, h.job_id, h.scheduled_at, true, h.attempt, h.reason, right(h.error, :max_error), b.about
FROM mainspring.history h
LEFT JOIN LATERAL (SELECT b.task, b.about FROM mainspring.body b
                   WHERE b.bucket IN (h.body_bucket, :KEPT_BUCKET) AND b.id = CASE WHEN h.body_id IS NULL THEN h.id ELSE h.body_id END LIMIT 1) AS b ON true
WHERE h.id = ANY (ARRAY(SELECT i.id FROM unnest(:runs::uuid[]) AS i(id) WHERE NOT EXISTS (SELECT FROM live WHERE live.id = i.id)))
  AND h.finished_at >= :since AND h.finished_at <= (SELECT mainspring.now_us())

-- name: worker_facts
SELECT id, name, version, datacenter, queues FROM mainspring.session WHERE id = ANY (:sessions::bigint[])

-- name: readers
SELECT c.reader, (
    SELECT o.at FROM mainspring.outbox o WHERE (o.xid, o.id) > (c.xid, c.position) ORDER BY o.xid, o.id LIMIT 1
) AS oldest
FROM mainspring.outbox_cursor c ORDER BY 1

-- name: attach_reader
INSERT INTO mainspring.outbox_cursor (reader, xid, position, until)
SELECT :reader, coalesce(o.xid, '0'), coalesce(o.id, 0), mainspring.now_us() + :ttl::bigint
FROM (SELECT) AS one LEFT JOIN (SELECT xid, id FROM mainspring.outbox ORDER BY xid DESC, id DESC LIMIT 1) AS o ON true
ON CONFLICT DO NOTHING

-- name: keep_reader
-- Renews the time to live of a reader.
UPDATE mainspring.outbox_cursor SET until = mainspring.now_us() + :ttl::bigint WHERE reader = :reader

-- name: begin_outbox
-- The first reader attaches: earlier events were not written, and a reader with an older position must be notified of the gap.
INSERT INTO mainspring.outbox_horizon (xid, id) SELECT pg_current_xact_id(), 0 WHERE NOT EXISTS (SELECT FROM mainspring.outbox_cursor)
ON CONFLICT (only_row) DO UPDATE SET xid = excluded.xid, id = excluded.id

-- name: lock_readers
-- A transaction that changes a run reads this table and keeps its lock until it commits. With this lock, none is under way.
LOCK TABLE mainspring.outbox_cursor IN ACCESS EXCLUSIVE MODE

-- name: detach_reader
DELETE FROM mainspring.outbox_cursor WHERE reader = :reader

-- name: events
-- No event that a running transaction could still precede: its events get its xid or a later one.
WITH cursor AS MATERIALIZED (
    SELECT xid, position FROM mainspring.outbox_cursor WHERE reader = :reader
)
SELECT o.id, o.xid::text::bigint AS xid, o.at, o.kind, o.tenant, o.runs, o.tasks, o.queues FROM mainspring.outbox o
WHERE (o.xid, o.id) > ((SELECT xid FROM cursor), (SELECT position FROM cursor))
  AND o.xid < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY o.xid, o.id LIMIT :limit

-- name: events_after
SELECT o.id, o.xid::text::bigint AS xid, o.at, o.kind, o.tenant, o.runs, o.tasks, o.queues FROM mainspring.outbox o
WHERE (o.xid, o.id) > (:xid::bigint::text::xid8, :id::bigint) AND o.xid < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY o.xid, o.id LIMIT :limit

-- name: outbox_ends
-- Deleted events end at the horizon. Future events are not before xmin, and no event is at or after xmax.
SELECT coalesce((SELECT xid::text::bigint FROM mainspring.outbox_horizon), 0) AS horizon_xid,
       coalesce((SELECT id FROM mainspring.outbox_horizon), 0) AS horizon_id,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xmin,
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS xmax

-- name: acknowledge
UPDATE mainspring.outbox_cursor c SET xid = :xid::bigint::text::xid8, position = :id
WHERE c.reader = :reader AND (:xid::bigint::text::xid8, :id::bigint) > (c.xid, c.position)

-- name: job_named
SELECT j.id FROM mainspring.job j JOIN mainspring.name t ON t.id = j.tenant
WHERE t.kind = :kind AND t.name = :tenant AND j.name = :name

-- name: add_names
INSERT INTO mainspring.name (kind, name) SELECT :kind, name FROM unnest(:names::text[]) AS name ORDER BY name ON CONFLICT DO NOTHING

-- name: names
SELECT id, kind, name FROM mainspring.name
