-- Fixes what a sweep has found about limits and dependencies.

CREATE TEMP VIEW sweep_limits (numbers, now) AS SELECT NULL, NULL;
CREATE TEMP VIEW sweep_parents (ids, now) AS SELECT NULL, NULL;

-- Recounts the runs that hold the limiters, and admits the runs that have room.
CREATE TEMP TRIGGER sweep_some_limits INSTEAD OF INSERT ON sweep_limits WHEN NEW.numbers <> '[]' BEGIN
    SELECT repair_limiters(NEW.numbers, NEW.now);
    INSERT INTO picked (id) SELECT k.value FROM json_each(NEW.numbers) AS k;
END;

CREATE TEMP TRIGGER sweep_some_parents INSTEAD OF INSERT ON sweep_parents WHEN NEW.ids <> '[]' BEGIN
    INSERT OR IGNORE INTO ended_parent (run_id, state, at)
    SELECT h.id, h.state, h.finished_at FROM json_each(NEW.ids) AS k CROSS JOIN history h ON h.id = k.value;
    INSERT INTO picked (id) SELECT k.value FROM json_each(NEW.ids) AS k;
END;
