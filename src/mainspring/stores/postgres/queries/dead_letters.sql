-- name: new_dead_letters
-- Dead letters since the last watch, by group, with the stored state of each group.
WITH looked AS MATERIALIZED (
    SELECT coalesce((SELECT until FROM mainspring.dead_watch), 0) AS since, mainspring.now_us() - :behind::bigint AS until
), new AS (
    SELECT d.tenant, coalesce(d.task, 0) AS task, d.fingerprint, count(*) AS new,
           (array_agg(d.run_id ORDER BY d.at DESC, d.run_id DESC))[1] AS sample
    FROM mainspring.dead_letter d, looked WHERE d.state = :DEAD_LETTER_OPEN AND d.at >= looked.since AND d.at < looked.until
    GROUP BY 1, 2, 3
)
SELECT n.*, g.since, g.count, g.seen_at, g.grew_at, (SELECT until FROM looked) AS until
FROM new n LEFT JOIN mainspring.dead_group g USING (tenant, task, fingerprint)

-- name: put_dead_group
INSERT INTO mainspring.dead_group (tenant, task, fingerprint, since, count, seen_at, grew_at)
VALUES (:tenant, :task, :fingerprint, :since, :count, :seen_at, :grew_at)
ON CONFLICT (tenant, task, fingerprint) DO UPDATE
SET since = excluded.since, count = excluded.count, seen_at = excluded.seen_at, grew_at = excluded.grew_at

-- name: emit_dead_letter_event
INSERT INTO mainspring.outbox (at, kind, tenant, runs)
SELECT mainspring.now_us(), :kind, :tenant, ARRAY[:run::uuid] WHERE EXISTS (SELECT FROM mainspring.outbox_cursor)

-- name: advance_dead_letter_watch
INSERT INTO mainspring.dead_watch AS w (until) VALUES (mainspring.now_us() - :behind::bigint)
ON CONFLICT (only_row) DO UPDATE SET until = excluded.until WHERE w.until < excluded.until - :idle::bigint

-- name: prune_dead_groups
DELETE FROM mainspring.dead_group WHERE seen_at < mainspring.now_us() - :quiet::bigint

-- name: prune_replays
DELETE FROM mainspring.replay WHERE NOT open AND ended_at < mainspring.now_us() - :kept::bigint

-- name: put_replay
INSERT INTO mainspring.replay (id, tenant, open, rev, ended_at, record) VALUES (:replay, :tenant, :open, :rev, :ended_at, :record) ON CONFLICT DO NOTHING

-- name: move_replay
UPDATE mainspring.replay SET open = :open, rev = :rev + 1, ended_at = :ended_at, record = :record WHERE id = :replay AND rev = :rev RETURNING id

-- name: open_replays
SELECT rev, record FROM mainspring.replay WHERE open ORDER BY id LIMIT 100

-- name: replays
SELECT rev, record FROM mainspring.replay WHERE :tenant::text IS NULL OR tenant = :tenant ORDER BY id DESC LIMIT :limit

-- name: replay
SELECT rev, record FROM mainspring.replay WHERE id = :replay
