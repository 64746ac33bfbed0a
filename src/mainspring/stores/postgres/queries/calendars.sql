-- name: share_calendars
-- Keeps the calendars of the tenants unchanged until the end of the transaction.
SELECT pg_advisory_xact_lock_shared(hashtextextended('mainspring.calendars', t)) FROM unnest(:tenants::int[]) AS t

-- name: hold_calendars
SELECT pg_advisory_xact_lock(hashtextextended('mainspring.calendars', :tenant::int))

-- name: newest_calendars
-- The newest version of each calendar, also of deleted ones, of some tenants or of all.
SELECT DISTINCT ON (tenant, name) tenant, name, version, spec, deleted, made_by, why, made_at FROM mainspring.calendar
WHERE :tenants::int[] IS NULL OR tenant = ANY (:tenants::int[]) ORDER BY tenant, name, version DESC

-- name: calendar_versions
SELECT tenant, name, version, spec, deleted, made_by, why, made_at FROM mainspring.calendar
WHERE tenant = :tenant AND name = :name ORDER BY version DESC LIMIT :limit

-- name: add_calendar
INSERT INTO mainspring.calendar (tenant, name, version, spec, deleted, made_by, why, made_at)
VALUES (:tenant, :name, :version, :spec, :deleted, :made_by, :why, :made_at)

-- name: calendar_users
SELECT j.name, v.spec FROM mainspring.job j
JOIN mainspring.job_version v ON v.job_id = j.id AND v.version = j.version
WHERE j.tenant = :tenant AND j.state IN (:JOB_SCHEDULED, :JOB_PAUSED) AND position('"calendars"'::bytea IN v.spec) > 0 ORDER BY j.name

-- name: calendars_changed
-- Discards what was planned with the old calendars. A schedule that looks ahead is planned again now.
UPDATE mainspring.schedule
SET rev = rev + 1, calendar_rev = :rev, next_fire = CASE WHEN tick IS NULL THEN next_fire ELSE mainspring.now_us() END
WHERE tenant = :tenant AND active
