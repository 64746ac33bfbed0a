-- Runs are made. A known id is left alone.
-- Item: id, shard, tenant, queue, priority, task, policy, payload, at, delay, start_within, deadline, gate, replay_of,
-- timeout.
-- Answer: (place, state, whether new) of all that are not new and queued.
CREATE TEMP TRIGGER submit INSTEAD OF INSERT ON call WHEN NEW.kind = 'submit' BEGIN
    DELETE FROM fresh;

    INSERT INTO fresh (id, n, shard, tenant, queue, priority, task, policy, payload, body, timeout, due, start_within,
                       deadline, gate, replay_of)
    SELECT i.v ->> 0, i.n, i.v ->> 1, i.v ->> 2, i.v ->> 3, i.v ->> 4, i.v ->> 5, i.v ->> 6, i.v ->> 7,
           (SELECT coalesce(max(b.id), 0) FROM body b) + 1 + i.n, i.v ->> 14,
           coalesce(i.v ->> 8, NEW.now + (i.v ->> 9)), i.v ->> 10, i.v ->> 11, i.v ->> 12, i.v ->> 13
    FROM (WITH item AS MATERIALIZED (SELECT key AS n, value AS v FROM json_each(NEW.batch)) SELECT n, v FROM item) AS i
    WHERE NOT EXISTS (SELECT 1 FROM run r WHERE r.id = i.v ->> 0)
      AND NOT EXISTS (SELECT 1 FROM waiting w WHERE w.id = i.v ->> 0)
      AND NOT EXISTS (SELECT 1 FROM history h WHERE h.id = i.v ->> 0)
    ON CONFLICT DO NOTHING;

    INSERT INTO body (id, task, policy, payload) SELECT body, task, policy, payload FROM fresh;

    INSERT INTO enter_fresh (now) VALUES (NEW.now);
    INSERT INTO tell (now) VALUES (NEW.now);

    INSERT OR REPLACE INTO reply (number, body)
    SELECT NEW.number, json_group_array(json_array(n, state, new)) FROM (
        SELECT fresh.n AS n, w.state AS state, 1 AS new
        FROM fresh CROSS JOIN waiting w ON w.id = fresh.id
        WHERE fresh.due > NEW.now OR fresh.gate IS NOT NULL
        UNION ALL
        SELECT i.n, coalesce(
                   (SELECT iif(r.state = 'running' AND r.cancel_at IS NOT NULL, 'cancelling', r.state)
                    FROM run r WHERE r.id = i.id),
                   (SELECT w.state FROM waiting w WHERE w.id = i.id),
                   (SELECT h.state FROM history h WHERE h.id = i.id)), 0
        FROM (SELECT key AS n, value ->> 0 AS id FROM json_each(NEW.batch)) AS i
        WHERE (SELECT count(*) FROM fresh) < NEW.size
          AND i.n IS NOT (SELECT fresh.n FROM fresh WHERE fresh.id = i.id)
    );
END;

-- Runs are asked to stop. Batch: their ids. Answer: (id, state) of those there are.
CREATE TEMP TRIGGER cancel INSTEAD OF INSERT ON call WHEN NEW.kind = 'cancel' BEGIN
    -- The blocked first: otherwise the end of one would queue the next, only to cancel it.
    INSERT INTO stop_run (id, now)
    SELECT i.value, NEW.now FROM json_each(NEW.batch) AS i LEFT JOIN waiting w ON w.id = i.value
    ORDER BY w.state IS NOT 'blocked', i.key;
    INSERT INTO tell (now) VALUES (NEW.now);

    INSERT OR REPLACE INTO reply (number, body)
    SELECT NEW.number, json_group_array(json_array(id, state)) FROM (
        SELECT i.value AS id, coalesce(
                   (SELECT iif(r.cancel_at IS NOT NULL, 'cancelling', r.state) FROM run r WHERE r.id = i.value),
                   (SELECT h.state FROM history h WHERE h.id = i.value)) AS state
        FROM json_each(NEW.batch) AS i
    ) WHERE state IS NOT NULL;
END;
