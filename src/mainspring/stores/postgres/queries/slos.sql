-- name: slos_due
SELECT job_id, rev, state FROM mainspring.slo WHERE next_check <= mainspring.now_us() ORDER BY next_check LIMIT :limit

-- name: last_successes
-- Runs of the newest ticks and manual runs: enough to find the last success, however many there are.
SELECT i.job_id, (
    SELECT max(h.finished_at) FROM (
        SELECT n.finished_at FROM mainspring.history n WHERE n.class <> :UNSUCCESSFUL_CLASS AND n.state = :SUCCEEDED AND n.job_id = i.job_id
        ORDER BY n.scheduled_at DESC LIMIT 100
    ) AS h) AS finished_at
FROM unnest(:jobs::uuid[]) AS i(job_id)

-- name: save_slos
-- Saves each state under the rev that it was computed from; returns the saved ones.
WITH given AS (
    SELECT * FROM unnest(:jobs::uuid[], :revs::bigint[], :next_checks::bigint[], :states::bytea[]) AS g(job_id, rev, next_check, state)
), kept AS (
    UPDATE mainspring.slo s SET rev = s.rev + 1, next_check = g.next_check, state = g.state FROM given g
    WHERE s.job_id = g.job_id AND s.rev = g.rev AND g.next_check IS NOT NULL RETURNING s.job_id, s.tenant
), ended AS (
    DELETE FROM mainspring.slo s USING given g
    WHERE s.job_id = g.job_id AND s.rev = g.rev AND g.next_check IS NULL RETURNING s.job_id, s.tenant
)
SELECT job_id, tenant FROM kept UNION ALL SELECT job_id, tenant FROM ended

-- name: slo_states
SELECT job_id, state FROM mainspring.slo WHERE job_id = ANY (:jobs::uuid[])

-- name: slos_missed
-- An objective that is not missed is left out of the JSON.
SELECT job_id, state FROM mainspring.slo
WHERE (:tenant::int IS NULL OR tenant = :tenant::int)
  AND (position('"late_since"'::bytea IN state) > 0 OR position('"quiet_since"'::bytea IN state) > 0)
ORDER BY job_id LIMIT :limit

-- name: put_slos
INSERT INTO mainspring.slo AS s (job_id, tenant, next_check, state)
SELECT i.job_id, i.tenant, mainspring.now_us(), i.state FROM unnest(:jobs::uuid[], :tenants::int[], :states::bytea[]) AS i(job_id, tenant, state)
ORDER BY i.job_id
ON CONFLICT (job_id) DO UPDATE SET rev = s.rev + 1, next_check = excluded.next_check, state = excluded.state

-- name: reschedule_slos
-- The next check is now, and covers ticks of the new schedule only from its change on.
UPDATE mainspring.slo s SET rev = s.rev + 1, next_check = i.changed_at, state = convert_to(
    (convert_from(s.state, 'UTF8')::jsonb || jsonb_build_object('rescheduled_at', i.changed_at))::text, 'UTF8')
FROM unnest(:jobs::uuid[], :times::bigint[]) AS i(job_id, changed_at) WHERE s.job_id = i.job_id

-- name: delete_slos
DELETE FROM mainspring.slo WHERE job_id = ANY (:jobs::uuid[])
