-- name: archived_runs
-- Columns of `runs` with payloads, from one partition: the caller replaces the name of the history table. Returns runs up to
-- `size` bytes; lengths are known without reading large values. Sub-selects, because a join would read the other table from
-- its beginning each time.
SELECT h.id, h.state, h.task, h.queue, h.tenant, h.priority, h.attempt, h.due, h.created_at, h.lost, h.fence, h.reason,
       h.job_id, h.job_version, h.scheduled_at, h.started_at, h.finished_at, NULL::bigint AS cancel_at, h.result, h.error,
       h.start_by, h.deadline, h.replay_of,
       CASE WHEN h.started_at IS NOT NULL THEN coalesce(h.queued_at, h.created_at) END AS queued_at, h.session,
       (SELECT s.name FROM mainspring.session s WHERE s.id = h.session) AS executor, h.policy, h.about, h.payload,
       (SELECT d.fingerprint FROM mainspring.dead_letter d WHERE d.run_id = h.id) AS fingerprint, NULL::float8 AS done, NULL::float8 AS total,
       NULL::text AS note, NULL::bigint AS progress_at, h.target, NULL::int AS parents, NULL::smallint AS rule,
       NULL::bigint AS waits, h.class
FROM (SELECT h.*, b.task, b.policy, b.about, b.payload,
             sum(coalesce(octet_length(h.result), 0) + coalesce(octet_length(b.payload), 0))
             OVER (ORDER BY h.id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
      FROM (SELECT * FROM mainspring.history h WHERE h.id > :after::uuid ORDER BY h.id LIMIT :limit) AS h
      LEFT JOIN LATERAL (SELECT b.task, b.policy, b.about, b.payload FROM mainspring.body b
                         WHERE b.bucket IN (h.body_bucket, :KEPT_BUCKET) AND b.id = coalesce(h.body_id, h.id) LIMIT 1) AS b ON true) AS h
WHERE coalesce(h.before, 0) < :size::bigint
ORDER BY h.id

-- name: archived_attempts
SELECT run_id, fence, number, outcome, reason, error, coalesce(started_at, ended_at) AS started_at, ended_at
FROM mainspring.attempt WHERE run_id = ANY (:runs::uuid[])
UNION ALL SELECT run_id, fence, number, outcome, reason, error, coalesce(started_at, ended_at), ended_at
FROM mainspring.attempt_kept WHERE run_id = ANY (:runs::uuid[]) ORDER BY run_id, fence
