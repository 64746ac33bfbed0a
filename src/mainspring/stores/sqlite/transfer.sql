-- All rows of a file, kind by kind, for a move to another store.

-- name: session
-- Of some deleted sessions only the name is left, in the history of their runs.
SELECT id, kind, live, name, datacenter, version, started_at, lease_until, queues, tasks, owner, lease, draining,
       labels, priorities, slots
FROM session
UNION ALL
SELECT h.session, 'worker', 0, max(h.executor), '', '', min(h.finished_at), max(h.finished_at), '[]', '[]', '', 0, 0,
       '[]', '[]', NULL
FROM history h WHERE h.executor IS NOT NULL AND h.session NOT IN (SELECT id FROM session) GROUP BY h.session

-- name: tenant
SELECT * FROM tenant

-- name: api_key
SELECT * FROM api_key

-- name: pause
SELECT * FROM pause

-- name: calendar
SELECT * FROM calendar

-- name: slo
SELECT job_id, tenant, rev, next_check, CAST(state AS BLOB) AS state FROM slo

-- name: queue_policy
SELECT queue, policy, closely, weighted, pooled, retries, per FROM queue_policy

-- name: job
SELECT j.*, s.shard, s.rev, s.active, s.next_fire, s.delay, s.tick_no,
       s.resume_at, s.paused_until, s.pause_why, s.tick, s.calendar_rev
FROM job j JOIN schedule s ON s.job_id = j.id

-- name: job_version
SELECT v.*, j.tenant, b.task, b.policy, b.payload FROM job_version v JOIN job j ON j.id = v.job_id JOIN body b ON b.id = v.body

-- name: run
SELECT r.*, b.task, b.policy, b.payload, b.about, v.job_id IS NOT NULL AS of_version, l.requires,
       EXISTS (SELECT 1 FROM edge e WHERE e.parent = r.id) AS has_children
FROM run r LEFT JOIN body b ON b.id = r.body LEFT JOIN label_set l ON l.id = r.claim_group
LEFT JOIN job_version v ON v.job_id = r.job_id AND v.version = r.job_version AND v.body = r.body

-- name: waiting
-- Other stores call runs that wait for a limit or for parents blocked, too.
SELECT r.*, iif(r.state = 'scheduled', r.state, 'blocked') AS state, r.state = 'after' AS waits_for_parents,
       b.task, b.policy, b.payload, b.about, v.job_id IS NOT NULL AS of_version,
       r.id IS (SELECT g.holder FROM key_lock g WHERE g.key = r.key_lock) AS holds, l.requires,
       EXISTS (SELECT 1 FROM edge e WHERE e.parent = r.id) AS has_children
FROM waiting r LEFT JOIN body b ON b.id = r.body LEFT JOIN label_set l ON l.id = r.claim_group
LEFT JOIN job_version v ON v.job_id = r.job_id AND v.version = r.job_version AND v.body = r.body

-- name: key_lock
SELECT * FROM key_lock

-- name: limiter
SELECT l.*, (SELECT json_group_array(m.until - l.per ORDER BY m.until) FROM mark m WHERE m.number = l.number) AS times
FROM limiter l

-- name: dependent
-- With the number of ended parents by their outcome.
SELECT d.*, coalesce(r.tenant, w.tenant, h.tenant, '') AS tenant,
       (SELECT count(*) FROM edge e WHERE e.child = d.run_id AND e.state = 'succeeded') AS succeeded,
       (SELECT count(*) FROM edge e WHERE e.child = d.run_id AND e.state <> 'succeeded') AS otherwise,
       (SELECT count(*) FROM edge e WHERE e.child = d.run_id AND e.state = 'failed') AS failed
FROM dependent d LEFT JOIN run r ON r.id = d.run_id LEFT JOIN waiting w ON w.id = d.run_id
LEFT JOIN history h ON h.id = d.run_id

-- name: edge
SELECT e.*, coalesce(r.tenant, w.tenant, h.tenant, '') AS tenant
FROM edge e LEFT JOIN run r ON r.id = e.child LEFT JOIN waiting w ON w.id = e.child
LEFT JOIN history h ON h.id = e.child

-- name: ended_parent
SELECT * FROM ended_parent

-- name: unique_run
SELECT * FROM unique_run

-- name: history
SELECT r.*, b.task, b.policy, b.payload, b.about, v.job_id IS NOT NULL AS of_version
FROM history r LEFT JOIN body b ON b.id = r.body
LEFT JOIN job_version v ON v.job_id = r.job_id AND v.version = r.job_version AND v.body = r.body

-- name: dead_letter
SELECT h.id, h.tenant, h.queue, h.finished_at AS at, coalesce(h.fingerprint, '') AS fingerprint, b.task,
       CASE WHEN h.dead = 1 THEN 'open' WHEN h.id IN (
           SELECT replay_of FROM run WHERE replay_of IS NOT NULL
           UNION ALL SELECT replay_of FROM waiting WHERE replay_of IS NOT NULL
           UNION ALL SELECT replay_of FROM history WHERE replay_of IS NOT NULL) THEN 'replayed'
       ELSE 'discarded' END AS state
FROM history h LEFT JOIN body b ON b.id = h.body WHERE h.state = 'failed'

-- name: replay
SELECT id, tenant, open, rev, ended_at, CAST(record AS BLOB) AS record FROM replay

-- name: attempt
SELECT a.*, coalesce(r.tenant, w.tenant, h.tenant, '') AS tenant, coalesce(r.queue, w.queue, h.queue, '') AS queue,
       coalesce(r.job_id, w.job_id, h.job_id) AS job_id
FROM attempt a LEFT JOIN run r ON r.id = a.run_id LEFT JOIN waiting w ON w.id = a.run_id
LEFT JOIN history h ON h.id = a.run_id

-- name: ledger
SELECT l.*, coalesce(j.tenant, '') AS tenant FROM ledger l LEFT JOIN job j ON j.id = l.job_id

-- name: label
SELECT * FROM label

-- name: idempotency
SELECT u.*, EXISTS (SELECT 1 FROM job j WHERE j.id = u.made) AS of_job FROM idempotency u

-- name: progress
SELECT p.run_id, p.report ->> 'done' AS done, p.report ->> 'total' AS total, p.report ->> 'note' AS note, p.report ->> 'at' AS at,
       coalesce(r.tenant, w.tenant, h.tenant, '') AS tenant
FROM progress p LEFT JOIN run r ON r.id = p.run_id LEFT JOIN waiting w ON w.id = p.run_id
LEFT JOIN history h ON h.id = p.run_id

-- name: checkpoint
SELECT c.*, coalesce(r.tenant, w.tenant, h.tenant, '') AS tenant
FROM checkpoint c LEFT JOIN run r ON r.id = c.run_id LEFT JOIN waiting w ON w.id = c.run_id
LEFT JOIN history h ON h.id = c.run_id

-- name: log
SELECT l.*, coalesce(r.tenant, w.tenant, h.tenant, '') AS tenant
FROM log l LEFT JOIN run r ON r.id = l.run_id LEFT JOIN waiting w ON w.id = l.run_id
LEFT JOIN history h ON h.id = l.run_id

-- name: audit
SELECT * FROM audit

-- name: minute
SELECT * FROM minute

-- name: usage
SELECT * FROM usage

-- name: budget
SELECT * FROM budget

-- name: facts
SELECT store_id, shards, store_epoch, fence_seq,
       (SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'session') AS last_session,
       coalesce((SELECT max(h.finished_at) + 1 FROM history h WHERE h.seq <= history_counted),
                (SELECT min(h.finished_at) FROM history h), 0) AS counted_until
FROM meta

-- name: epochs
SELECT id, epoch FROM shard

-- name: live
SELECT kind || ' ' || name, lease_until - :now FROM session WHERE live = 1 AND lease_until > :now ORDER BY id

-- name: names_tenant
SELECT tenant FROM job UNION SELECT tenant FROM calendar UNION SELECT tenant FROM run UNION SELECT tenant FROM waiting UNION SELECT tenant FROM history
UNION SELECT name FROM tenant UNION SELECT tenant FROM idempotency UNION SELECT tenant FROM pause WHERE tenant <> ''
UNION SELECT tenant FROM minute UNION SELECT tenant FROM label UNION SELECT tenant FROM unique_run
UNION SELECT tenant FROM usage UNION SELECT tenant FROM budget

-- name: names_queue
SELECT queue FROM run UNION SELECT queue FROM waiting UNION SELECT queue FROM history
UNION SELECT queue FROM pause WHERE queue <> '' UNION SELECT queue FROM minute UNION SELECT queue FROM queue_policy

-- name: names_task
SELECT task FROM body UNION SELECT task FROM usage

-- name: requirements
SELECT requires FROM label_set

-- name: days_history_succeeded
SELECT DISTINCT finished_at / 86400000000 FROM history WHERE state = 'succeeded' AND retention IS NULL

-- name: days_history_unsuccessful
SELECT DISTINCT finished_at / 86400000000 FROM history WHERE state <> 'succeeded' AND retention IS NULL

-- name: days_history_short
SELECT DISTINCT finished_at / 86400000000 FROM history WHERE retention = 'short'

-- name: days_history_long
SELECT DISTINCT finished_at / 604800000000 FROM history WHERE retention = 'long'

-- name: days_history_audit
SELECT DISTINCT finished_at / 2592000000000 FROM history WHERE retention = 'audit'

-- name: days_attempt
SELECT DISTINCT ended_at / 86400000000 FROM attempt

-- name: days_ledger
SELECT DISTINCT scheduled_at / 86400000000 FROM ledger

-- name: days_log
SELECT DISTINCT at / 86400000000 FROM log
