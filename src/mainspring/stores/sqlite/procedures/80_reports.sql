-- Reports of running attempts. Only the current attempt of a run is accepted.
-- Item: run, fence, report; null is accepted and not stored. Answer: whether each item was accepted, in order.

CREATE TEMP TRIGGER report_progress INSTEAD OF INSERT ON call WHEN NEW.procedure = 'report_progress' BEGIN
    INSERT OR REPLACE INTO progress (run_id, report)
    SELECT r.id, json_set(i.value ->> 2, '$.at', NEW.now)
    FROM json_each(NEW.batch) AS i CROSS JOIN run r ON r.id = i.value ->> 0
    WHERE r.fence = i.value ->> 1 AND +r.state = 'running'
    ORDER BY i.key;

    INSERT OR REPLACE INTO reply (number, body)
    SELECT NEW.number, json_group_array(
        EXISTS (SELECT 1 FROM run r WHERE r.id = i.value ->> 0 AND r.fence = i.value ->> 1 AND +r.state = 'running')
        ORDER BY i.key)
    FROM json_each(NEW.batch) AS i;
END;

CREATE TEMP TRIGGER save_checkpoints INSTEAD OF INSERT ON call WHEN NEW.procedure = 'save_checkpoints' BEGIN
    INSERT OR REPLACE INTO checkpoint (run_id, state)
    SELECT r.id, i.value ->> 2
    FROM json_each(NEW.batch) AS i CROSS JOIN run r ON r.id = i.value ->> 0
    WHERE r.fence = i.value ->> 1 AND +r.state = 'running'
    ORDER BY i.key;

    INSERT OR REPLACE INTO reply (number, body)
    SELECT NEW.number, json_group_array(
        EXISTS (SELECT 1 FROM run r WHERE r.id = i.value ->> 0 AND r.fence = i.value ->> 1 AND +r.state = 'running')
        ORDER BY i.key)
    FROM json_each(NEW.batch) AS i;
END;

CREATE TEMP TRIGGER append_log INSTEAD OF INSERT ON call WHEN NEW.procedure = 'append_log' BEGIN
    INSERT INTO log (run_id, position, at, attempt, text)
    SELECT a.id, a.line + coalesce((SELECT max(l.position) FROM log l WHERE l.run_id = a.id), 0), NEW.now, a.attempt,
           a.text
    FROM (
        SELECT r.id AS id, r.attempt AS attempt, i.value ->> 2 AS text,
               row_number() OVER (PARTITION BY r.id ORDER BY i.key) AS line
        FROM json_each(NEW.batch) AS i CROSS JOIN run r ON r.id = i.value ->> 0
        WHERE r.fence = i.value ->> 1 AND +r.state = 'running' AND i.value ->> 2 IS NOT NULL
    ) AS a;

    -- For tenants with a daily quota.
    INSERT INTO log_day (tenant, day, bytes)
    SELECT r.tenant, NEW.now / :DAY, sum(octet_length(i.value ->> 2))
    FROM json_each(NEW.batch) AS i CROSS JOIN run r ON r.id = i.value ->> 0 CROSS JOIN tenant t ON t.name = r.tenant
    WHERE r.fence = i.value ->> 1 AND +r.state = 'running' AND i.value ->> 2 IS NOT NULL
      AND t.quotas ->> '$.log_bytes_per_day' IS NOT NULL
    GROUP BY r.tenant
    ON CONFLICT (day, tenant) DO UPDATE SET bytes = bytes + excluded.bytes;

    INSERT OR REPLACE INTO reply (number, body)
    SELECT NEW.number, json_group_array(
        EXISTS (SELECT 1 FROM run r WHERE r.id = i.value ->> 0 AND r.fence = i.value ->> 1 AND +r.state = 'running')
        ORDER BY i.key)
    FROM json_each(NEW.batch) AS i;
END;
