-- What is taken away from those who do not answer, and what is forgotten.

-- Sessions whose lease has run out are buried. Size: the limit. Answer: the running runs of the dead.
CREATE TEMP TRIGGER bury INSTEAD OF INSERT ON call WHEN NEW.kind = 'bury' BEGIN
    UPDATE session SET dead = 1 WHERE dead = 0 AND lease_until < NEW.now;

    DELETE FROM picked;
    INSERT INTO picked (id)
    SELECT r.id FROM session CROSS JOIN run r INDEXED BY run_held ON r.session = session.id AND r.state = 'running'
    WHERE session.dead = 1 LIMIT NEW.size;

    INSERT OR REPLACE INTO reply (number, body)
    SELECT NEW.number, json_group_array(json_array(
        r.id, r.fence, b.task, b.payload, b.policy, r.queue, r.tenant, r.priority, r.attempt, r.lost, r.due,
        r.started_at, r.attempt_until, r.deadline, r.job_id, r.scheduled_at,
        r.gate IS NOT NULL OR r.origin IS 'delay', r.cancel_at IS NOT NULL))
    FROM picked CROSS JOIN run r ON r.id = picked.id CROSS JOIN body b ON b.id = r.body;
END;

-- What missed its start (skipped) or its deadline (failed) ends. Size: the limit. Answer: how many.
CREATE TEMP TRIGGER expire INSTEAD OF INSERT ON call WHEN NEW.kind = 'expire' BEGIN
    DELETE FROM picked;
    INSERT INTO picked (id)
    SELECT id FROM (
        SELECT id FROM (SELECT r.id AS id FROM run r INDEXED BY run_start_by
                        WHERE r.start_by < NEW.now AND r.attempt = 0 AND r.state = 'queued' LIMIT NEW.size)
        UNION
        SELECT id FROM (SELECT r.id AS id FROM run r INDEXED BY run_deadline
                        WHERE r.deadline <= NEW.now AND r.state = 'queued' LIMIT NEW.size)
        UNION
        SELECT id FROM (SELECT w.id AS id FROM waiting w INDEXED BY waiting_start_by
                        WHERE w.start_by < NEW.now AND w.attempt = 0 LIMIT NEW.size)
        UNION
        SELECT id FROM (SELECT w.id AS id FROM waiting w INDEXED BY waiting_deadline
                        WHERE w.deadline <= NEW.now LIMIT NEW.size)
    ) LIMIT NEW.size;

    INSERT INTO end_run (id, state, reason, now)
    SELECT a.id, iif(a.start_missed, 'skipped', 'failed'), iif(a.start_missed, 'expired', 'deadline'), NEW.now
    FROM (
        SELECT picked.n AS n, r.id AS id, r.state AS state,
               coalesce(r.attempt = 0 AND r.start_by < NEW.now, 0) AS start_missed
        FROM picked CROSS JOIN run r ON r.id = picked.id
        UNION ALL
        SELECT picked.n, w.id, w.state, coalesce(w.attempt = 0 AND w.start_by < NEW.now, 0)
        FROM picked CROSS JOIN waiting w ON w.id = picked.id
    ) AS a ORDER BY a.state <> 'blocked', a.n;
    INSERT INTO tell (now) VALUES (NEW.now);

    INSERT OR REPLACE INTO reply (number, body) SELECT NEW.number, count(*) FROM picked;
END;

-- What is blocked by nothing is let go, and fixed delays whose run is gone tick again; looked at again in here.
-- Batch: keys of gates, ids of jobs, as the query of the same name found them. Answer: how many there were.
CREATE TEMP TRIGGER sweep INSTEAD OF INSERT ON call WHEN NEW.kind = 'sweep' BEGIN
    DELETE FROM picked;
    INSERT INTO picked (id)
    SELECT w.gate FROM json_each(NEW.batch, '$[0]') AS k CROSS JOIN waiting w INDEXED BY waiting_blocked
    ON w.gate = k.value AND w.state = 'blocked'
    WHERE NOT EXISTS (
        SELECT 1 FROM gate g WHERE g.key = k.value
          AND (EXISTS (SELECT 1 FROM run r WHERE r.id = g.holder)
               OR EXISTS (SELECT 1 FROM waiting h WHERE h.id = g.holder AND h.state = 'scheduled')))
    GROUP BY w.gate;
    INSERT INTO picked (id)
    SELECT s.job_id FROM json_each(NEW.batch, '$[1]') AS k CROSS JOIN schedule s ON s.job_id = k.value
    WHERE s.active = 1 AND s.delay IS NOT NULL AND s.next_fire IS NULL
      AND NOT EXISTS (SELECT 1 FROM run r WHERE r.id = s.awaits)
      AND NOT EXISTS (SELECT 1 FROM waiting w WHERE w.id = s.awaits);

    UPDATE schedule SET next_fire = NEW.now + delay, awaits = NULL, rev = rev + 1
    WHERE job_id IN (SELECT id FROM picked);
    -- Gates of holders that are gone are opened, whether somebody waits for them or not.
    INSERT INTO free_gate (key, holder, now)
    SELECT k.value, coalesce((SELECT g.holder FROM gate g WHERE g.key = k.value), ''), NEW.now
    FROM json_each(NEW.batch, '$[0]') AS k
    WHERE NOT EXISTS (
        SELECT 1 FROM gate g WHERE g.key = k.value
          AND (EXISTS (SELECT 1 FROM run r WHERE r.id = g.holder)
               OR EXISTS (SELECT 1 FROM waiting h WHERE h.id = g.holder AND h.state = 'scheduled')));
    INSERT INTO tell (now) VALUES (NEW.now);

    INSERT OR REPLACE INTO reply (number, body) SELECT NEW.number, count(*) FROM picked;
END;

-- What ended longer ago than it is kept goes, with its payload and its attempts.
-- Size: the limit. Batch: until when the succeeded, the unsuccessful and the ledger are forgotten. Answer: how many.
CREATE TEMP TRIGGER prune INSTEAD OF INSERT ON call WHEN NEW.kind = 'prune' BEGIN
    DELETE FROM picked;
    INSERT INTO picked (n, id)
    SELECT h.seq, h.id FROM history h INDEXED BY history_succeeded
    WHERE h.state = 'succeeded' AND h.finished_at < NEW.now - (NEW.batch ->> 0)
    ORDER BY h.finished_at LIMIT NEW.size;
    INSERT INTO picked (n, id)
    SELECT h.seq, h.id FROM history h INDEXED BY history_unsuccessful
    WHERE h.state <> 'succeeded' AND h.finished_at < NEW.now - (NEW.batch ->> 1)
    ORDER BY h.finished_at LIMIT max(0, NEW.size - (SELECT count(*) FROM picked));

    DELETE FROM body WHERE id IN (
        SELECT h.body FROM picked CROSS JOIN history h ON h.seq = picked.n WHERE h.job_id IS NULL);
    DELETE FROM attempt WHERE run_id IN (SELECT id FROM picked);
    DELETE FROM history WHERE seq IN (SELECT n FROM picked);

    INSERT OR REPLACE INTO reply (number, body) SELECT NEW.number, count(*) FROM picked;

    DELETE FROM ledger WHERE (job_id, scheduled_at) IN (
        SELECT l.job_id, l.scheduled_at FROM ledger l INDEXED BY ledger_age
        WHERE l.scheduled_at < NEW.now - (NEW.batch ->> 2)
        ORDER BY l.scheduled_at LIMIT max(0, NEW.size - (SELECT r.body + 0 FROM reply r WHERE r.number = NEW.number)));
    UPDATE reply SET body = body + changes() WHERE number = NEW.number;

    -- The dead are kept for a day, and as long as runs stand under their names.
    DELETE FROM session WHERE dead = 1 AND lease_until < NEW.now - 86400000000
      AND NOT EXISTS (SELECT 1 FROM run r INDEXED BY run_held WHERE r.session = session.id AND r.state = 'running');
END;
