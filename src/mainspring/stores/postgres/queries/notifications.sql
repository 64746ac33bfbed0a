-- name: notification_rows
SELECT name, rev, body FROM mainspring.notification WHERE name >= ''

-- name: next_notification_rev
-- The first change creates the row. A concurrent change waits for it, and then finds another rev.
INSERT INTO mainspring.notification AS n (name, rev, body) VALUES ('', :rev::bigint + 1, '')
ON CONFLICT (name) DO UPDATE SET rev = n.rev + 1 WHERE n.rev = :rev RETURNING rev

-- name: keep_notifications
INSERT INTO mainspring.notification AS n (name, body)
SELECT g.name, g.body FROM unnest(:names::text[], :bodies::bytea[]) AS g(name, body) ORDER BY g.name
ON CONFLICT (name) DO UPDATE SET body = excluded.body

-- name: drop_notifications
DELETE FROM mainspring.notification WHERE name = ANY (:names::text[])
