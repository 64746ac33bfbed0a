-- name: list_tasks
SELECT rev, version, body, registered_by, registered_at FROM mainspring.task WHERE rev > :after ORDER BY rev

-- name: differing_tasks
-- The given entries that differ from the stored ones.
SELECT g.position FROM unnest(:names::text[], :bodies::bytea[]) WITH ORDINALITY AS g(name, body, position)
LEFT JOIN mainspring.task t ON t.name = g.name AND t.body = g.body WHERE t.name IS NULL ORDER BY g.position

-- name: lock_tasks
-- Until the transaction ends: a later rev must not be visible before an earlier one.
LOCK TABLE mainspring.task IN SHARE ROW EXCLUSIVE MODE

-- name: put_tasks
INSERT INTO mainspring.task AS t (name, rev, version, body, registered_by, registered_at)
SELECT g.name, g.position + (SELECT coalesce(max(k.rev), 0) FROM mainspring.task k), 1, g.body, :worker::text, mainspring.now_us()
FROM unnest(:names::text[], :bodies::bytea[]) WITH ORDINALITY AS g(name, body, position)
ON CONFLICT (name) DO UPDATE SET rev = excluded.rev, version = t.version + 1, body = excluded.body,
    registered_by = excluded.registered_by, registered_at = excluded.registered_at
