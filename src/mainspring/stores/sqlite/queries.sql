-- Reads. Each returns one JSON text. They see the newest commit and block no writer.
--
-- Objects are decoded into structs by the names of their fields, arrays by the order of the struct's fields.

-- name: runs
SELECT json_group_array(json_array(
    v.id, v.state, b.task, v.queue, v.tenant, v.priority, v.attempt, v.due, v.created_at, v.lost, v.fence, v.reason,
    v.job_id, v.scheduled_at, v.started_at, v.finished_at, v.cancel_at IS NOT NULL, v.result, v.error, v.job_version,
    b.about, b.policy, v.queued_at, v.session,
    coalesce(v.executor, (SELECT session.name FROM session WHERE session.id = v.session), ''), v.start_by, v.deadline,
    v.replay_of, (SELECT progress.report FROM progress WHERE progress.run_id = v.id), coalesce(v.fingerprint, ''),
    v.target, coalesce(f.parents, 0), f.rule, v.waits, coalesce(v.retention, 'standard'), iif(:payloads, b.payload, NULL)))
FROM (
    SELECT r.id AS id, iif(r.state = 'running' AND r.cancel_at IS NOT NULL, 'cancelling', r.state) AS state,
           r.body AS body, r.queue AS queue, r.tenant AS tenant, r.priority AS priority, r.attempt AS attempt,
           r.due AS due, r.created_at AS created_at, r.lost AS lost, r.fence AS fence, '' AS reason, r.job_id AS job_id,
           r.scheduled_at AS scheduled_at, r.started_at AS started_at, NULL AS finished_at, r.cancel_at AS cancel_at,
           NULL AS result, NULL AS error, r.job_version AS job_version, r.queued_at AS queued_at, r.session AS session,
           NULL AS executor, r.start_by AS start_by, r.deadline AS deadline, r.replay_of AS replay_of,
           NULL AS fingerprint, CAST(r.target AS INTEGER) AS target, NULL AS waits, NULL AS retention
    FROM json_each(:ids) AS i CROSS JOIN run r ON r.id = i.value
    UNION ALL
    SELECT w.id, iif(w.state = 'scheduled', w.state, 'blocked'), w.body, w.queue, w.tenant, w.priority, w.attempt,
           w.due, w.created_at, w.lost, w.fence, '',
           w.job_id, w.scheduled_at, w.started_at, NULL, NULL, NULL, NULL, w.job_version, NULL, w.session, NULL,
           w.start_by, w.deadline, w.replay_of, NULL, CAST(w.target AS INTEGER), w.waits, NULL
    FROM json_each(:ids) AS i CROSS JOIN waiting w ON w.id = i.value
    UNION ALL
    SELECT h.id, h.state, h.body, h.queue, h.tenant, h.priority, h.attempt, h.due, h.created_at, h.lost, h.fence,
           h.reason, h.job_id, h.scheduled_at, h.started_at, h.finished_at, h.cancel_at, iif(:results, h.result, NULL),
           h.error, h.job_version, h.queued_at, h.session, h.executor, h.start_by, h.deadline, h.replay_of,
           h.fingerprint, CAST(h.target AS INTEGER), NULL, h.retention
    FROM json_each(:ids) AS i CROSS JOIN history h ON h.id = i.value
) AS v CROSS JOIN body b ON b.id = v.body LEFT JOIN dependent f ON f.run_id = v.id

-- name: attempts
SELECT json_group_array(json_object(
    'run_id', run_id, 'fence', fence, 'number', number, 'outcome', outcome, 'reason', reason, 'error', error,
    'started_at', started_at, 'ended_at', ended_at) ORDER BY fence)
FROM attempt WHERE run_id = :run

-- name: jobs
SELECT json_group_array(json_object(
    'id', j.id, 'tenant', j.tenant, 'spec', v.spec, 'version', j.version, 'state', j.state,
    'next_fire', s.next_fire, 'rev', s.rev, 'payload', iif(:payloads, b.payload, 'null'),
    'created_at', j.created_at, 'updated_at', j.updated_at, 'resume_at', s.resume_at,
    'paused_until', s.paused_until, 'pause_why', s.pause_why, 'next_tick', s.tick,
    'calendar_rev', s.calendar_rev))
FROM json_each(:ids) AS i CROSS JOIN job j ON j.id = i.value CROSS JOIN schedule s ON s.job_id = j.id
CROSS JOIN job_version v ON v.job_id = j.id AND v.version = j.version CROSS JOIN body b ON b.id = v.body

-- name: ledger
SELECT json_group_array(json_object(
    'job_id', job_id, 'scheduled_at', scheduled_at, 'decision', decision, 'reason', reason, 'run_id', run_id,
    'job_version', job_version, 'epoch', epoch, 'ticks', ticks, 'last_at', last_at, 'target', target)
    ORDER BY scheduled_at, target)
FROM (
    SELECT * FROM ledger WHERE job_id = :job AND scheduled_at >= :since AND scheduled_at < :until
    ORDER BY scheduled_at, target LIMIT :limit
)

-- name: last_ticks
SELECT json_group_array(json_object(
    'job_id', job_id, 'scheduled_at', scheduled_at, 'decision', decision, 'reason', reason, 'run_id', run_id,
    'job_version', job_version, 'epoch', epoch, 'ticks', ticks, 'last_at', last_at, 'target', target)
    ORDER BY scheduled_at, target)
FROM (
    SELECT l.* FROM json_each(:jobs) AS wanted CROSS JOIN ledger AS l
    WHERE l.job_id = wanted.value AND l.scheduled_at >= coalesce((
        SELECT n.scheduled_at FROM ledger AS n WHERE n.job_id = wanted.value
        ORDER BY n.scheduled_at DESC LIMIT 1 OFFSET :limit - 1), 0)
)

-- name: depths
-- Counts by queue and required data center, if any. oldest_ready: since when the run that has waited longest for a
-- worker could have started; paused runs do not count.
SELECT json_group_array(json_array(queue, datacenter, queued, running, oldest_due, oldest_ready) ORDER BY queue) FROM (
    SELECT queue, datacenter, sum(queued) AS queued, sum(running) AS running, min(oldest_due) AS oldest_due,
           min(iif(queued > 0 AND NOT paused, max(oldest_ready, over), NULL)) AS oldest_ready
    FROM (
        SELECT r.queue, r.tenant, d.datacenter, sum(r.state = 'queued') AS queued, sum(r.state = 'running') AS running,
               min(iif(r.state = 'queued', r.due, NULL)) AS oldest_due,
               min(iif(r.state = 'queued', max(r.due, coalesce(r.ready_at, 0)), NULL)) AS oldest_ready,
               (SELECT coalesce(max(p.until), 0) FROM pause p WHERE p.tenant IN ('', r.tenant)
                AND p.queue IN ('', r.queue) AND p.until <= :now) AS over,
               EXISTS (SELECT 1 FROM pause p WHERE p.tenant IN ('', r.tenant) AND p.queue IN ('', r.queue)
                       AND (p.until IS NULL OR p.until > :now)) AS paused
        FROM run r LEFT JOIN (
            SELECT l.id, iif(instr(q.value, '>'), o.serving, substr(q.value, 12)) AS datacenter
            FROM label_set l CROSS JOIN json_each(l.requires) AS q LEFT JOIN datacenter_order o ON o.claim_group = l.id
            WHERE q.value LIKE 'datacenter=%'
        ) AS d ON d.id = r.claim_group GROUP BY r.queue, r.tenant, d.datacenter
    ) GROUP BY queue, datacenter
)

-- name: tenant_depths
SELECT json_group_array(json_array(queue, datacenter, queued, running, oldest_due, oldest_ready) ORDER BY queue) FROM (
    SELECT queue, datacenter, sum(queued) AS queued, sum(running) AS running, min(oldest_due) AS oldest_due,
           min(iif(queued > 0 AND NOT paused, max(oldest_ready, over), NULL)) AS oldest_ready
    FROM (
        SELECT r.queue, r.tenant, d.datacenter, sum(r.state = 'queued') AS queued, sum(r.state = 'running') AS running,
               min(iif(r.state = 'queued', r.due, NULL)) AS oldest_due,
               min(iif(r.state = 'queued', max(r.due, coalesce(r.ready_at, 0)), NULL)) AS oldest_ready,
               (SELECT coalesce(max(p.until), 0) FROM pause p WHERE p.tenant IN ('', r.tenant)
                AND p.queue IN ('', r.queue) AND p.until <= :now) AS over,
               EXISTS (SELECT 1 FROM pause p WHERE p.tenant IN ('', r.tenant) AND p.queue IN ('', r.queue)
                       AND (p.until IS NULL OR p.until > :now)) AS paused
        FROM run r LEFT JOIN (
            SELECT l.id, iif(instr(q.value, '>'), o.serving, substr(q.value, 12)) AS datacenter
            FROM label_set l CROSS JOIN json_each(l.requires) AS q LEFT JOIN datacenter_order o ON o.claim_group = l.id
            WHERE q.value LIKE 'datacenter=%'
        ) AS d ON d.id = r.claim_group WHERE r.tenant = :tenant GROUP BY r.queue, r.tenant, d.datacenter
    ) GROUP BY queue, datacenter
)

-- name: events
SELECT json_group_array(json_object(
    'position', printf('%020d', position), 'at', at, 'kind', kind, 'runs', json(runs), 'tenant', tenant)
    ORDER BY position) FROM (
    SELECT o.* FROM outbox_cursor c CROSS JOIN outbox o ON o.position > c.position
    WHERE c.reader = :reader ORDER BY o.position LIMIT :limit
)

-- name: events_after
-- With the horizon and the newest position, so that the caller can reject positions outside of them.
SELECT json_object(
    'horizon', outbox_horizon,
    'newest', max(outbox_horizon, coalesce((SELECT max(o.position) FROM outbox o), 0)),
    'batches', json((SELECT json_group_array(json_object(
        'position', printf('%020d', position), 'at', at, 'kind', kind, 'runs', json(runs), 'tenant', tenant)
        ORDER BY position) FROM (
        SELECT o.* FROM outbox o WHERE o.position > :position ORDER BY o.position LIMIT :limit))))
FROM meta

-- name: upcoming
-- Merges the lines of the shards, in steps of a millisecond, so that runs that are due together cost one step.
WITH RECURSIVE line (shard, due) AS (
    SELECT h.value, (w.due + 999) / 1000 * 1000 FROM (SELECT DISTINCT value FROM json_each(:shards)) AS h
    CROSS JOIN waiting w ON w.id = (
        SELECT f.id FROM waiting f INDEXED BY waiting_due
        WHERE f.state = 'scheduled' AND f.shard = h.value AND f.due <= :until ORDER BY f.due, f.id LIMIT 1)
    UNION ALL
    SELECT l.shard, (w.due + 999) / 1000 * 1000 FROM line l CROSS JOIN waiting w ON w.id = (
        SELECT f.id FROM waiting f INDEXED BY waiting_due
        WHERE f.state = 'scheduled' AND f.shard = l.shard AND f.due > l.due AND f.due <= :until
        ORDER BY f.due, f.id LIMIT 1)
    ORDER BY 2, 1
    LIMIT :limit
)
SELECT json_group_array(json_array(shard, due)) FROM line

-- name: due_jobs
WITH RECURSIVE line (shard, due, job_id) AS (
    SELECT s.shard, s.next_fire, s.job_id FROM (SELECT DISTINCT value FROM json_each(:shards)) AS h
    CROSS JOIN schedule s ON s.job_id = (
        SELECT f.job_id FROM schedule f INDEXED BY schedule_due
        WHERE f.active = 1 AND f.shard = h.value AND f.next_fire <= :until ORDER BY f.next_fire, f.job_id LIMIT 1)
    UNION ALL
    SELECT s.shard, s.next_fire, s.job_id FROM line l CROSS JOIN schedule s ON s.job_id = (
        SELECT f.job_id FROM schedule f INDEXED BY schedule_due
        WHERE f.active = 1 AND f.shard = l.shard AND f.next_fire <= :until
          AND (f.next_fire, f.job_id) > (l.due, +l.job_id)
        ORDER BY f.next_fire, f.job_id LIMIT 1)
    ORDER BY 2, 3
    LIMIT :limit
)
SELECT json_group_array(json_object(
    'id', j.id, 'tenant', j.tenant, 'spec', v.spec, 'version', j.version, 'state', j.state, 'next_fire', l.due,
    'rev', s.rev, 'payload', 'null', 'created_at', j.created_at, 'updated_at', j.updated_at,
    'resume_at', s.resume_at, 'paused_until', s.paused_until, 'pause_why', s.pause_why, 'next_tick', s.tick,
    'calendar_rev', s.calendar_rev))
FROM line l CROSS JOIN job j ON j.id = l.job_id CROSS JOIN schedule s ON s.job_id = j.id
CROSS JOIN job_version v ON v.job_id = j.id AND v.version = j.version

-- name: overdue_runs
SELECT json_group_array(json_array(
    r.id, r.fence, b.task, b.payload, b.policy, r.queue, r.tenant, r.priority, r.attempt, r.lost, r.due,
    r.started_at, r.attempt_until, r.deadline, r.job_id, r.scheduled_at,
    r.key_lock IS NOT NULL OR r.limits IS NOT NULL OR r.origin IS 'delay', r.cancel_at IS NOT NULL))
FROM (
    SELECT r.* FROM session s CROSS JOIN run r INDEXED BY run_held ON r.session = s.id AND r.state = 'running'
    WHERE s.live = 1 AND r.attempt_until < :before LIMIT :limit
) AS r CROSS JOIN body b ON b.id = r.body

-- name: sweep
-- Key locks that are missing or whose holder has vanished, fixed delays without a run, limiters whose count is wrong or
-- whose first run in line fits although no check is scheduled, and ended parents without a note for their children.
SELECT json_array(
    json((SELECT json_group_array(key) FROM (
        SELECT g.key FROM key_lock g
        WHERE NOT EXISTS (SELECT 1 FROM run r WHERE r.id = g.holder)
          AND NOT EXISTS (SELECT 1 FROM waiting w WHERE w.id = g.holder AND w.state <> 'blocked')
        UNION
        SELECT w.key_lock FROM waiting w INDEXED BY waiting_blocked
        WHERE w.state = 'blocked' AND NOT EXISTS (SELECT 1 FROM key_lock g WHERE g.key = w.key_lock)
        LIMIT :limit))),
    json((SELECT json_group_array(job_id) FROM (
        SELECT s.job_id FROM schedule s INDEXED BY schedule_delayed
        WHERE s.active = 1 AND s.delay IS NOT NULL AND s.next_fire IS NULL
          AND NOT EXISTS (SELECT 1 FROM run r WHERE r.id = s.awaits)
          AND NOT EXISTS (SELECT 1 FROM waiting w WHERE w.id = s.awaits)
        LIMIT :limit))),
    json((
        WITH RECURSIVE occupant_count (number, used) AS MATERIALIZED (
            SELECT g.value ->> 1, sum(g.value ->> 0 <> :PER_PERIOD OR r.state = 'queued')
            FROM run r INDEXED BY run_limited CROSS JOIN json_each(r.limits) AS g
            WHERE r.limits IS NOT NULL AND g.value ->> 0 <> :BREAKER GROUP BY 1
        ), line (number) AS (
            SELECT min(w.waits) FROM waiting w INDEXED BY waiting_limited WHERE w.state = 'limited'
            UNION ALL
            SELECT (SELECT min(w.waits) FROM waiting w INDEXED BY waiting_limited
                    WHERE w.state = 'limited' AND w.waits > line.number)
            FROM line WHERE line.number IS NOT NULL
        )
        SELECT json_group_array(number) FROM (
            SELECT i.number AS number FROM occupant_count AS i LEFT JOIN limiter l ON l.number = i.number
            WHERE i.used <> coalesce(l.used, 0)
            UNION
            SELECT l.number FROM limiter l WHERE l.used > 0 AND l.number NOT IN (SELECT i.number FROM occupant_count AS i)
              AND (l.kind <> :BREAKER OR NOT EXISTS (
                  SELECT 1 FROM run r INDEXED BY run_limited
                  WHERE r.limits IS NOT NULL AND r.limits ->> '$[0][1]' = +l.number))
            UNION
            SELECT 0 WHERE EXISTS (
                SELECT 1 FROM waiting w INDEXED BY waiting_limited WHERE w.state = 'limited' AND w.waits IS NULL)
            UNION
            SELECT line.number FROM line LEFT JOIN limiter l ON l.number = line.number
            WHERE line.number IS NOT NULL AND (l.wake_at IS NULL OR l.wake_at > :now) AND NOT EXISTS (
                SELECT 1 FROM json_each((
                    SELECT w.limits FROM waiting w INDEXED BY waiting_limited
                    WHERE w.state = 'limited' AND w.waits = line.number ORDER BY w.due, w.id LIMIT 1
                )) AS g
                WHERE g.value ->> 1 = line.number AND CASE g.value ->> 0
                    WHEN :BREAKER THEN l.open_until IS NOT NULL AND (l.used > 0 OR l.recalls = 1 OR l.open_until > :now)
                    ELSE g.value ->> 2 <= coalesce(l.used, 0) + iif(g.value ->> 0 = :PER_PERIOD, (
                        SELECT count(*) FROM mark m WHERE m.number = line.number AND m.until > :now), 0) END)
            LIMIT :limit))),
    json((
        WITH RECURSIVE up (parent) AS (
            SELECT min(e.parent) FROM edge e INDEXED BY edge_undecided WHERE e.state IS NULL
            UNION ALL
            SELECT (SELECT min(e.parent) FROM edge e INDEXED BY edge_undecided
                    WHERE e.state IS NULL AND e.parent > up.parent)
            FROM up WHERE up.parent IS NOT NULL
        )
        SELECT json_group_array(parent) FROM (
            SELECT up.parent AS parent FROM up CROSS JOIN history h ON h.id = up.parent
            WHERE NOT EXISTS (SELECT 1 FROM ended_parent p WHERE p.run_id = up.parent) LIMIT :limit))))

-- name: parents
SELECT json_group_array(parent) FROM (SELECT parent FROM edge WHERE child = :run ORDER BY place)

-- name: children
SELECT json_group_array(child) FROM (
    SELECT child FROM edge INDEXED BY edge_parent WHERE parent = :run AND child > :after ORDER BY child LIMIT :limit
)

-- name: job_named
SELECT id, version, state FROM job WHERE tenant = :tenant AND name = :name

-- name: job_id
SELECT coalesce((SELECT id FROM job WHERE tenant = :tenant AND name = :name), '')

-- name: shards
SELECT json(shards) FROM meta

-- name: store_id
SELECT store_id FROM meta

-- name: epochs
SELECT json_group_array(json_array(shard.id, shard.epoch))
FROM json_each(:shards) AS wanted CROSS JOIN shard ON shard.id = wanted.value

-- name: held
SELECT json_group_array(json_array(
    r.id, r.fence, b.task, b.payload, b.policy, r.queue, r.tenant, r.priority, r.attempt, r.lost, r.due,
    r.started_at, r.attempt_until, r.deadline, r.job_id, r.scheduled_at,
    r.key_lock IS NOT NULL OR r.limits IS NOT NULL OR r.origin IS 'delay', r.cancel_at IS NOT NULL, NULL, r.session))
FROM json_each(:ids) AS i CROSS JOIN run r ON r.id = i.value AND r.state = 'running' CROSS JOIN body b ON b.id = r.body

-- name: count_ahead
SELECT coalesce(json((
    SELECT (SELECT count(*) FROM (
        SELECT 1 FROM run a INDEXED BY run_ready
        WHERE a.state = 'queued' AND a.queue = r.queue AND a.claim_group = r.claim_group AND (a.rank, a.id) < (r.rank, +r.id)
        LIMIT :limit))
    FROM run r WHERE r.id = :run AND r.state = 'queued')), 'null')

-- name: limiter
SELECT json_object(
    'state', json_object(
        'used', coalesce((SELECT used FROM limiter WHERE number = :number), 0),
        'times', json((SELECT json_group_array(m.until - l.per ORDER BY m.until)
                       FROM limiter l CROSS JOIN mark m ON m.number = l.number WHERE l.number = :number)),
        'open_until', (SELECT open_until FROM limiter WHERE number = :number)),
    'occupants', json((SELECT json_group_array(id) FROM (
        SELECT r.id FROM run r
        WHERE r.limits IS NOT NULL AND EXISTS (SELECT 1 FROM json_each(r.limits) AS g WHERE g.value ->> 1 = :number)
        ORDER BY r.id LIMIT :limit))))

-- name: versions
SELECT json_group_array(json_object(
    'version', v.version, 'spec', v.spec, 'payload', b.payload, 'made_by', v.made_by, 'why', v.why,
    'made_at', v.made_at) ORDER BY v.version DESC)
FROM (
    SELECT * FROM job_version WHERE job_id = :job AND version < :before ORDER BY version DESC LIMIT :limit
) AS v CROSS JOIN body b ON b.id = v.body

-- name: count_jobs
SELECT cast(count(*) AS TEXT) FROM (
    SELECT 1 FROM job INDEXED BY job_tenant WHERE tenant = :tenant AND state IN ('scheduled', 'paused') LIMIT :at_most
)

-- name: sessions
SELECT json_group_array(json_object(
    'id', s.id, 'kind', s.kind, 'name', s.name, 'version', s.version, 'datacenter', s.datacenter,
    'started_at', s.started_at, 'lease_until', s.lease_until, 'lease', s.lease, 'owner', s.owner,
    'serves', s.serves, 'queues', json(s.queues), 'tasks', json(s.tasks), 'labels', json(s.labels),
    'priorities', json(s.priorities), 'slots', s.slots,
    'running', (SELECT count(*) FROM run r INDEXED BY run_held WHERE r.session = s.id AND r.state = 'running'),
    'draining', json(iif(s.draining, 'true', 'false')), 'shards', (SELECT count(*) FROM shard WHERE shard.owner = s.id),
    'clock', iif(s.clock_offset IS NULL, NULL, json_object('offset', s.clock_offset, 'error', s.clock_error)),
    'tzdata', s.tzdata) ORDER BY s.id)
FROM session s WHERE s.kind = :kind AND s.live = 1 AND s.lease_until > :now

-- name: session
SELECT json_group_array(json_object(
    'id', s.id, 'kind', s.kind, 'name', s.name, 'version', s.version, 'datacenter', s.datacenter,
    'started_at', s.started_at, 'lease_until', s.lease_until, 'lease', s.lease, 'owner', s.owner,
    'serves', s.serves, 'queues', json(s.queues), 'tasks', json(s.tasks), 'labels', json(s.labels),
    'priorities', json(s.priorities), 'slots', s.slots,
    'running', (SELECT count(*) FROM run r INDEXED BY run_held WHERE r.session = s.id AND r.state = 'running'),
    'draining', json(iif(s.draining, 'true', 'false')), 'shards', (SELECT count(*) FROM shard WHERE shard.owner = s.id),
    'clock', iif(s.clock_offset IS NULL, NULL, json_object('offset', s.clock_offset, 'error', s.clock_error)),
    'tzdata', s.tzdata))
FROM session s WHERE s.id = :session

-- name: queue_policies
SELECT json_group_object(queue, policy) FROM queue_policy

-- name: queues_to_check
SELECT json_group_array(queue) FROM queue_policy WHERE closely = 1

-- name: pauses
SELECT json_group_array(json_object(
    'tenant', nullif(tenant, ''), 'queue', nullif(queue, ''), 'since', since, 'author', author, 'why', why,
    'until', until) ORDER BY tenant, queue) FROM pause
WHERE until IS NULL OR until > :now

-- name: minutes
SELECT json_group_array(json_object(
    'at', at, 'queue', queue, 'succeeded', succeeded, 'failed', failed, 'cancelled', cancelled,
    'skipped', skipped, 'retried', retried, 'late_total', late_total, 'late_most', late_most,
    'took_total', took_total, 'took_most', took_most, 'started', started)
    ORDER BY at, queue)
FROM (
    SELECT at / :step * :step AS at, queue, sum(succeeded) AS succeeded, sum(failed) AS failed, sum(cancelled) AS cancelled,
           sum(skipped) AS skipped, sum(retried) AS retried, sum(late_total) AS late_total,
           max(late_most) AS late_most, sum(took_total) AS took_total, max(took_most) AS took_most,
           sum(started) AS started
    FROM minute WHERE at >= :since AND at < :until AND tenant = coalesce(:tenant, tenant) GROUP BY 1, 2
)

-- name: load_now
-- Counts nothing if the minute has a sample. The row without a tenant is the total.
WITH found AS MATERIALIZED (
    SELECT tenant, queue, sum(state = 'queued') AS queued, sum(state = 'running') AS running,
           max(0, max(iif(state = 'queued', :now - due, 0))) AS lag
    FROM run WHERE NOT EXISTS (SELECT 1 FROM load WHERE load.at = :at) GROUP BY tenant, queue
)
SELECT json_group_array(json_array(tenant, queue, queued, running, lag)) FROM (
    SELECT '' AS tenant, '' AS queue, coalesce(sum(queued), 0) AS queued, coalesce(sum(running), 0) AS running,
           coalesce(max(lag), 0) AS lag
    FROM found
    UNION ALL SELECT * FROM (SELECT * FROM found ORDER BY queued + running DESC, tenant, queue LIMIT :most)
)

-- name: loads
-- One row for each sampled minute, also if none of the wanted runs was queued or running.
SELECT json_group_array(json_object('at', at, 'queued', queued, 'running', running, 'lag', lag) ORDER BY at) FROM (
    SELECT at, sum(iif(meant, queued, 0)) AS queued, sum(iif(meant, running, 0)) AS running, max(iif(meant, lag, 0)) AS lag
    FROM (
        SELECT *, iif(coalesce(:tenant, :queue) IS NULL, tenant = '',
                      tenant <> '' AND tenant = coalesce(:tenant, tenant) AND queue = coalesce(:queue, queue)) AS meant
        FROM load WHERE at >= :since AND at < :until
    ) GROUP BY at
)

-- name: timings
SELECT json_group_array(json_object('bucket', bucket, 'late', late, 'took', took)) FROM (
    SELECT bucket, sum(late) AS late, sum(took) AS took FROM timing
    WHERE at > :after AND at < :until AND tenant = coalesce(:tenant, tenant) AND queue = coalesce(:queue, queue)
    GROUP BY bucket
)

-- name: due_by_minute
SELECT json_group_array(json_object('minute', minute, 'runs', runs) ORDER BY minute) FROM (
    SELECT w.due / :MINUTE * :MINUTE AS minute, count(*) AS runs
    FROM json_each(:shards) AS h CROSS JOIN waiting w INDEXED BY waiting_due
        ON w.state = 'scheduled' AND w.shard = h.value AND w.due >= :since AND w.due < :until
    WHERE w.tenant = coalesce(:tenant, w.tenant) GROUP BY 1
)

-- name: log
SELECT json_group_array(json_object('position', position, 'at', at, 'attempt', attempt, 'text', text)
    ORDER BY position) FROM (
    SELECT * FROM log WHERE run_id = :run AND position > :after ORDER BY position LIMIT :limit
)

-- name: log_before
SELECT json_group_array(json_object('position', position, 'at', at, 'attempt', attempt, 'text', text)
    ORDER BY position) FROM (
    SELECT * FROM log WHERE run_id = :run AND position < :before ORDER BY position DESC LIMIT :limit
)

-- name: logs_after
-- The lines of each run after a position of its own.
SELECT json_group_array(json_object('run', run_id, 'lines', json(lines))) FROM (
    SELECT p.key AS run_id, (
        SELECT json_group_array(json_object('position', position, 'at', at, 'attempt', attempt, 'text', text)
            ORDER BY position) FROM (
            SELECT * FROM log WHERE run_id = p.key AND position > p.value ORDER BY position LIMIT :limit
        )
    ) AS lines FROM json_each(:cursors) AS p
) WHERE lines != '[]'

-- name: logged_runs
-- Steps from one run to the next, however many lines they have.
WITH RECURSIVE logged (id) AS (
    SELECT min(run_id) FROM log WHERE run_id > :after
    UNION ALL SELECT (SELECT min(run_id) FROM log WHERE run_id > logged.id) FROM logged WHERE logged.id IS NOT NULL
    LIMIT :limit
) SELECT json_group_array(id ORDER BY id) FROM logged WHERE id IS NOT NULL

-- name: log_sizes
-- One row for each run, also for a run without output.
SELECT json_group_array(json_object(
    'run', s.id, 'pieces', s.pieces, 'bytes', s.size, 'is_cut', json(iif(s.cut, 'true', 'false')),
    'tenant', coalesce(r.tenant, ''),
    'bytes_per_day', t.quotas ->> '$.log_bytes_per_day', 'bytes_today', coalesce(d.bytes, 0)))
FROM (
    SELECT i.value AS id, count(l.position) AS pieces, coalesce(sum(octet_length(l.text)), 0) AS size,
           coalesce(max(l.text IN (SELECT value FROM json_each(:cuts))), 0) AS cut
    FROM json_each(:ids) AS i LEFT JOIN log l ON l.run_id = i.value GROUP BY i.value
) AS s LEFT JOIN run r ON r.id = s.id LEFT JOIN tenant t ON t.name = r.tenant
LEFT JOIN log_day d ON d.tenant = r.tenant AND d.day = :day

-- name: tenants
-- Steps from one tenant to the next in the indexes that begin with the tenant.
WITH RECURSIVE
    live (name) AS (SELECT min(tenant) FROM run WHERE tenant <> 'default' UNION ALL
        SELECT (SELECT min(tenant) FROM run WHERE tenant <> 'default' AND tenant > live.name) FROM live WHERE live.name IS NOT NULL),
    later (name) AS (SELECT min(tenant) FROM waiting WHERE tenant <> 'default' UNION ALL
        SELECT (SELECT min(tenant) FROM waiting WHERE tenant <> 'default' AND tenant > later.name) FROM later WHERE later.name IS NOT NULL),
    ended (name) AS (SELECT min(tenant) FROM history WHERE tenant <> 'default' UNION ALL
        SELECT (SELECT min(tenant) FROM history WHERE tenant <> 'default' AND tenant > ended.name) FROM ended WHERE ended.name IS NOT NULL),
    declared (name) AS (SELECT min(tenant) FROM job UNION ALL
        SELECT (SELECT min(tenant) FROM job WHERE tenant > declared.name) FROM declared WHERE declared.name IS NOT NULL)
SELECT json_group_array(json_object(
    'name', n.name, 'quotas', coalesce(t.quotas, '{}'), 'created_at', coalesce(t.created_at, 0)) ORDER BY n.name)
FROM (
    SELECT name FROM tenant UNION SELECT name FROM live UNION SELECT name FROM later UNION SELECT name FROM ended
    UNION SELECT name FROM declared UNION SELECT 'default'
) AS n LEFT JOIN tenant t ON t.name = n.name
WHERE n.name IS NOT NULL

-- name: keys
SELECT json_group_array(json_object(
    'id', id, 'tenant', tenant, 'name', name, 'role', role, 'secret_hash', secret_hash, 'queues', json(queues),
    'made_by', made_by, 'created_at', created_at, 'expires_at', expires_at, 'revoked_at', revoked_at,
    'last_used_at', last_used_at)
    ORDER BY created_at DESC, id DESC)
FROM api_key WHERE (:tenant IS NULL OR tenant = :tenant) AND (:id IS NULL OR id = :id)

-- name: run_states
-- The states of runs for the audit, in the order of the ids.
SELECT json_group_array(json_object('id', id, 'tenant', tenant, 'state', state) ORDER BY n) FROM (
    SELECT i.key AS n, r.id AS id, r.tenant AS tenant,
           iif(r.state = 'running' AND r.cancel_at IS NOT NULL, 'cancelling', r.state) AS state
    FROM json_each(:ids) AS i CROSS JOIN run r ON r.id = i.value
    UNION ALL
    SELECT i.key, w.id, w.tenant, iif(w.state = 'scheduled', w.state, 'blocked')
    FROM json_each(:ids) AS i CROSS JOIN waiting w ON w.id = i.value
    UNION ALL
    SELECT i.key, h.id, h.tenant, h.state FROM json_each(:ids) AS i CROSS JOIN history h ON h.id = i.value
)

-- name: job_states
SELECT json_group_array(json_object(
    'id', j.id, 'tenant', j.tenant, 'state', j.state, 'resume_at', s.resume_at, 'rev', s.rev) ORDER BY i.key)
FROM json_each(:ids) AS i CROSS JOIN job j ON j.id = i.value CROSS JOIN schedule s ON s.job_id = j.id

-- name: key_lock_holder
SELECT coalesce((SELECT g.holder FROM waiting w CROSS JOIN key_lock g ON g.key = w.key_lock
                 WHERE w.id = :run AND w.state = 'blocked'), '')

-- name: shard_owner
SELECT json_group_array(json_object(
    'id', s.id, 'kind', s.kind, 'name', s.name, 'version', s.version, 'datacenter', s.datacenter,
    'started_at', s.started_at, 'lease_until', s.lease_until, 'lease', s.lease, 'owner', s.owner,
    'serves', s.serves, 'queues', json(s.queues), 'tasks', json(s.tasks), 'labels', json(s.labels),
    'priorities', json(s.priorities), 'slots', s.slots, 'running', 0, 'draining', json(iif(s.draining, 'true', 'false')),
    'shards', (SELECT count(*) FROM shard WHERE shard.owner = s.id)))
FROM shard o CROSS JOIN session s ON s.id = o.owner WHERE o.id = :shard AND s.live = 1 AND s.lease_until > :now

-- name: ledger_at
SELECT json_group_array(json_object(
    'job_id', job_id, 'scheduled_at', scheduled_at, 'decision', decision, 'reason', reason, 'run_id', run_id,
    'job_version', job_version, 'epoch', epoch, 'ticks', ticks, 'last_at', last_at, 'target', target))
FROM (SELECT * FROM ledger WHERE job_id = :job AND scheduled_at <= :at ORDER BY scheduled_at DESC, target DESC LIMIT 1)

-- name: backfilled
-- The run of a tick has an origin, a backfilled run has none.
SELECT json_group_array(json_object('scheduled_at', scheduled_at, 'run', id) ORDER BY scheduled_at, id) FROM (
    SELECT scheduled_at, id FROM run INDEXED BY run_backfilled
    WHERE job_id = :job AND scheduled_at >= :since AND scheduled_at < :until AND origin IS NULL
    UNION ALL
    SELECT scheduled_at, id FROM waiting INDEXED BY waiting_backfilled
    WHERE job_id = :job AND scheduled_at >= :since AND scheduled_at < :until AND origin IS NULL
    UNION ALL
    SELECT scheduled_at, id FROM history INDEXED BY history_backfilled
    WHERE job_id = :job AND scheduled_at >= :since AND scheduled_at < :until AND origin IS NULL
)

-- name: datacenters
SELECT json_group_array(json_object(
    'name', name, 'workers', workers, 'draining', draining, 'schedulers', schedulers, 'seen_at', seen_at)
    ORDER BY name) FROM (
    SELECT datacenter AS name,
           sum(kind = 'worker' AND live = 1 AND lease_until > :now AND draining = 0) AS workers,
           sum(kind = 'worker' AND live = 1 AND lease_until > :now AND draining <> 0) AS draining,
           sum(kind = 'scheduler' AND live = 1 AND lease_until > :now) AS schedulers,
           max(iif(kind = 'worker', min(lease_until, :now), NULL)) AS seen_at
    FROM session WHERE datacenter <> '' GROUP BY datacenter
)

-- name: orders
-- Only the word of a preference order contains a >.
SELECT json_group_array(json_object(
    'label_set', l.id, 'requires', l.requires, 'serving', o.serving, 'why', o.why, 'since', o.since))
FROM label_set l LEFT JOIN datacenter_order o ON o.claim_group = l.id WHERE instr(l.requires, '>') > 0

-- name: unshared_orders
-- How many workers have the label set of an order that another data center serves, or lack one that theirs serves.
SELECT CAST(count(*) AS TEXT) FROM json_each(:orders) AS o CROSS JOIN session s
WHERE s.live = 1 AND s.kind = 'worker' AND s.lease_until > :now
  AND (o.value ->> 0 IN (SELECT value FROM json_each(coalesce(s.claim_groups, '[0]')))) <> (
    s.datacenter = o.value ->> 1 AND NOT EXISTS (
        SELECT 1 FROM label_set l CROSS JOIN json_each(l.requires) AS q
        WHERE l.id = o.value ->> 0 AND q.value <> o.value ->> 2
          AND q.value NOT IN (SELECT value FROM json_each(s.labels))))

-- name: datacenter_loads
SELECT json_group_array(json_object(
    'name', name, 'queued', queued, 'running', running, 'oldest_due', oldest_due) ORDER BY name) FROM (
    SELECT name, sum(queued) AS queued, sum(running) AS running, min(oldest_due) AS oldest_due FROM (
        SELECT coalesce(o.serving, substr(q.value, 12)) AS name, count(*) AS queued, 0 AS running, min(r.due) AS oldest_due
        FROM run r CROSS JOIN label_set l ON l.id = r.claim_group CROSS JOIN json_each(l.requires) AS q
        LEFT JOIN datacenter_order o ON o.claim_group = l.id
        WHERE r.state = 'queued' AND q.value LIKE 'datacenter=%' GROUP BY 1
        UNION ALL
        SELECT s.datacenter, 0, count(*), NULL FROM run r CROSS JOIN session s ON s.id = r.session
        WHERE r.state = 'running' AND s.datacenter <> '' GROUP BY s.datacenter
    ) GROUP BY name
)

-- name: hint_key
SELECT hint_key FROM meta

-- name: hints
SELECT json_group_array(json_array(r.id, r.queue, r.rank, r.priority, coalesce(r.key_lock, '') || '', r.attempt + 1,
    coalesce(substr(l.requires ->> 0, 12), '')))
FROM json_each(:ids) AS i CROSS JOIN run r ON r.id = i.value LEFT JOIN label_set l ON l.id = r.claim_group
WHERE r.state = 'queued' AND (r.claim_group = 0 OR (json_array_length(l.requires) = 1 AND l.requires ->> 0 LIKE 'datacenter=%' AND instr(l.requires, '>') = 0))

-- name: queue_fronts
-- Steps from one queue and claim group to the next, however many runs each has. Two subqueries, because SQLite searches the index for
-- a pair of columns by the first one alone. A run with a target has a negative claim group.
WITH RECURSIVE front (id, queue, claim_group) AS (
    SELECT * FROM (SELECT id, queue, claim_group FROM run WHERE state = 'queued' ORDER BY queue, claim_group, rank, id LIMIT 1)
    UNION ALL
    SELECT r.id, r.queue, r.claim_group FROM front f CROSS JOIN run r ON r.id = coalesce(
        (SELECT n.id FROM run n WHERE n.state = 'queued' AND n.queue = f.queue AND n.claim_group > f.claim_group
         ORDER BY n.claim_group, n.rank, n.id LIMIT 1),
        (SELECT n.id FROM run n WHERE n.state = 'queued' AND n.queue > f.queue
         ORDER BY n.queue, n.claim_group, n.rank, n.id LIMIT 1))
)
SELECT json_group_array(id) FROM (SELECT id FROM front WHERE claim_group >= 0 LIMIT :limit)

-- name: ready_hints
-- SQLite has no lateral joins, so a subquery picks the best runs of each queue.
SELECT json_group_array(json_array(best.id, best.queue, best.rank, best.priority, coalesce(best.key_lock, '') || '', best.attempt + 1, p.datacenter))
FROM json_each(:queues) AS q CROSS JOIN (
    SELECT 0 AS id, '' AS datacenter
    UNION ALL SELECT l.id, substr(l.requires ->> 0, 12) FROM label_set l
    WHERE json_array_length(l.requires) = 1 AND l.requires ->> 0 LIKE 'datacenter=%' AND instr(l.requires, '>') = 0
) AS p CROSS JOIN run best ON best.id IN (
    SELECT r.id FROM run r WHERE r.queue = q.value AND r.claim_group = p.id AND r.state = 'queued' ORDER BY r.rank, r.id LIMIT :limit)

-- name: run_facts
SELECT json_group_array(json_object(
    'id', v.id, 'task', b.task, 'queue', v.queue, 'job_id', v.job_id, 'scheduled_at', v.scheduled_at,
    'ended', json(iif(v.ended, 'true', 'false')), 'attempt', v.attempt, 'reason', v.reason, 'error', v.error,
    'tags', json(coalesce(b.about -> '$.tags', '[]'))))
FROM (
    SELECT r.id AS id, r.body AS body, r.queue AS queue, r.job_id AS job_id, r.scheduled_at AS scheduled_at, 0 AS ended,
           0 AS attempt, '' AS reason, NULL AS error
    FROM json_each(:ids) AS i CROSS JOIN run r ON r.id = i.value
    UNION ALL
    SELECT w.id, w.body, w.queue, w.job_id, w.scheduled_at, 0, 0, '', NULL
    FROM json_each(:ids) AS i CROSS JOIN waiting w ON w.id = i.value
    UNION ALL
    SELECT h.id, h.body, h.queue, h.job_id, h.scheduled_at, 1, h.attempt, h.reason, substr(h.error, -:most)
    FROM json_each(:ids) AS i CROSS JOIN history h ON h.id = i.value
) AS v CROSS JOIN body b ON b.id = v.body

-- name: worker_facts
SELECT json_group_array(json_object(
    'id', s.id, 'name', s.name, 'version', s.version, 'datacenter', s.datacenter, 'queues', json(s.queues)))
FROM json_each(:ids) AS i CROSS JOIN session s ON s.id = i.value

-- name: readers
SELECT json_group_array(json_object(
    'name', c.reader,
    'oldest', (SELECT o.at FROM outbox o WHERE o.position > c.position ORDER BY o.position LIMIT 1)) ORDER BY c.reader)
FROM outbox_cursor c

-- name: past_days
-- The days of each retention class whose retention is over, oldest first.
SELECT json_group_array(json_object('kept_as', kept_as, 'day', day) ORDER BY day, kept_as) FROM (
    SELECT 'succeeded' AS kept_as, h.finished_at / :DAY AS day FROM history h INDEXED BY history_standard_succeeded
    WHERE h.state = 'succeeded' AND h.retention IS NULL AND h.finished_at < :succeeded GROUP BY 2
    UNION ALL
    SELECT 'unsuccessful', h.finished_at / :DAY FROM history h INDEXED BY history_standard_unsuccessful
    WHERE h.state <> 'succeeded' AND h.retention IS NULL AND h.finished_at < :unsuccessful GROUP BY 2
    UNION ALL
    SELECT c.column1, h.finished_at / :DAY FROM (VALUES ('short', :short), ('long', :long), ('audit', :audit)) AS c
    CROSS JOIN history h INDEXED BY history_class ON h.retention = c.column1 AND h.finished_at < c.column2 GROUP BY 1, 2
)

-- name: archived_succeeded
SELECT json_group_array(id) FROM (
    SELECT h.id FROM history h INDEXED BY history_standard_succeeded
    WHERE h.state = 'succeeded' AND h.retention IS NULL AND h.finished_at >= :at AND h.finished_at < :until
      AND (h.finished_at, h.id) > (:at, :after) ORDER BY h.finished_at, h.id LIMIT :limit
)

-- name: archived_unsuccessful
SELECT json_group_array(id) FROM (
    SELECT h.id FROM history h INDEXED BY history_standard_unsuccessful
    WHERE h.state <> 'succeeded' AND h.retention IS NULL AND h.finished_at >= :at AND h.finished_at < :until
      AND (h.finished_at, h.id) > (:at, :after) ORDER BY h.finished_at, h.id LIMIT :limit
)

-- name: archived_class
SELECT json_group_array(id) FROM (
    SELECT h.id FROM history h INDEXED BY history_class
    WHERE h.retention = :class AND h.finished_at >= :at AND h.finished_at < :until
      AND (h.finished_at, h.id) > (:at, :after) ORDER BY h.finished_at, h.id LIMIT :limit
)

-- name: run_attempts
SELECT json_group_array(json_object(
    'run_id', a.run_id, 'fence', a.fence, 'number', a.number, 'outcome', a.outcome, 'reason', a.reason,
    'error', a.error, 'started_at', a.started_at, 'ended_at', a.ended_at) ORDER BY a.run_id, a.fence)
FROM json_each(:runs) AS i CROSS JOIN attempt a ON a.run_id = i.value
