-- Fixes what a sweep has found about limits and dependencies.

CREATE TEMP VIEW sweep_limits (numbers, now) AS SELECT NULL, NULL;
CREATE TEMP VIEW sweep_parents (ids, now) AS SELECT NULL, NULL;
CREATE TEMP TABLE occupant_count (number INTEGER PRIMARY KEY, kind INTEGER, per INTEGER, used INTEGER);

-- Recounts the runs that occupy the limiters, and checks the lines again.
CREATE TEMP TRIGGER sweep_some_limits INSTEAD OF INSERT ON sweep_limits WHEN NEW.numbers <> '[]' BEGIN
    DELETE FROM occupant_count;
    INSERT INTO occupant_count (number, kind, per, used)
    SELECT g.value ->> 1, max(g.value ->> 0), max(g.value ->> 3), sum(g.value ->> 0 <> :PER_PERIOD OR r.state = 'queued')
    FROM run r INDEXED BY run_limited CROSS JOIN json_each(r.limits) AS g
    WHERE r.limits IS NOT NULL AND g.value ->> 1 IN (SELECT k.value FROM json_each(NEW.numbers) AS k)
    GROUP BY 1;
    INSERT INTO limiter (number, kind, per) SELECT i.number, i.kind, i.per FROM occupant_count AS i WHERE i.kind <> :BREAKER
    ON CONFLICT DO NOTHING;
    UPDATE limiter SET used = coalesce((SELECT i.used FROM occupant_count AS i WHERE i.number = limiter.number), 0)
    WHERE number IN (SELECT k.value FROM json_each(NEW.numbers) AS k)
      AND (kind <> :BREAKER OR number NOT IN (SELECT i.number FROM occupant_count AS i));
    INSERT OR IGNORE INTO changed_limiter (number) SELECT k.value FROM json_each(NEW.numbers) AS k;
    UPDATE waiting SET waits = NULL WHERE id IN (
        SELECT w.id FROM json_each(NEW.numbers) AS k CROSS JOIN waiting w INDEXED BY waiting_limited
        ON w.waits = k.value AND w.state = 'limited' LIMIT 1000);
    INSERT INTO picked (id) SELECT k.value FROM json_each(NEW.numbers) AS k;
END;

CREATE TEMP TRIGGER sweep_some_parents INSTEAD OF INSERT ON sweep_parents WHEN NEW.ids <> '[]' BEGIN
    INSERT OR IGNORE INTO ended_parent (run_id, state, at)
    SELECT h.id, h.state, h.finished_at FROM json_each(NEW.ids) AS k CROSS JOIN history h ON h.id = k.value;
    INSERT INTO picked (id) SELECT k.value FROM json_each(NEW.ids) AS k;
END;
