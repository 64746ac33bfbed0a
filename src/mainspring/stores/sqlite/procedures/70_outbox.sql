-- Readers of the outbox and their cursors. Batch: the name of the reader.
--
-- The newest position is that of the newest batch, or the horizon if that is later.

-- Argument: after how long without a call the reader is removed; negative: never. The first reader moves the horizon,
-- because events before it were not written. (Inserting and deleting a row reserves the position.)
CREATE TEMP TRIGGER attach_reader INSTEAD OF INSERT ON call WHEN NEW.procedure = 'attach_reader' BEGIN
    INSERT INTO outbox (position, at, kind, runs)
    SELECT max(meta.outbox_horizon, coalesce((SELECT max(o.position) FROM outbox o), 0)) + 1, NEW.now, '', '[]'
    FROM meta WHERE NOT EXISTS (SELECT 1 FROM outbox_cursor);
    UPDATE meta SET outbox_horizon = (SELECT max(o.position) FROM outbox o)
    WHERE NOT EXISTS (SELECT 1 FROM outbox_cursor);
    DELETE FROM outbox WHERE position = (SELECT outbox_horizon FROM meta) AND kind = '';

    INSERT INTO outbox_cursor (reader, position, until)
    SELECT NEW.batch, max(meta.outbox_horizon, coalesce((SELECT max(o.position) FROM outbox o), 0)),
           iif(NEW.argument < 0, NULL, NEW.now + NEW.argument)
    FROM meta WHERE true
    ON CONFLICT DO UPDATE SET until = excluded.until;
    INSERT OR REPLACE INTO reply (number, body) VALUES (NEW.number, 'null');
END;

-- Argument: how long events are kept.
CREATE TEMP TRIGGER detach_reader INSTEAD OF INSERT ON call WHEN NEW.procedure = 'detach_reader' BEGIN
    DELETE FROM outbox_cursor WHERE reader = NEW.batch;
    INSERT INTO drop_old_events (until) VALUES (NEW.now - NEW.argument);
    INSERT OR REPLACE INTO reply (number, body) VALUES (NEW.number, 'null');
END;

-- Argument: the position.
CREATE TEMP TRIGGER acknowledge INSTEAD OF INSERT ON call WHEN NEW.procedure = 'acknowledge' BEGIN
    UPDATE outbox_cursor SET position = NEW.argument WHERE reader = NEW.batch AND position < NEW.argument;
    INSERT OR REPLACE INTO reply (number, body) VALUES (NEW.number, 'null');
END;

-- Deletes events that every reader has read and that are too old to resume at; without readers, all events.
CREATE TEMP TRIGGER drop_each_old_event INSTEAD OF INSERT ON drop_old_events BEGIN
    DELETE FROM picked;
    INSERT INTO picked (n)
    SELECT CASE WHEN EXISTS (SELECT 1 FROM outbox_cursor) THEN min(
        (SELECT min(outbox_cursor.position) FROM outbox_cursor),
        coalesce((SELECT o.position - 1 FROM outbox o
                  WHERE o.position > (SELECT outbox_horizon FROM meta) AND o.at >= NEW.until
                  ORDER BY o.position LIMIT 1), :FOREVER))
    ELSE :FOREVER END;
    UPDATE meta SET outbox_horizon = (SELECT max(o.position) FROM outbox o WHERE o.position <= (SELECT n FROM picked))
    WHERE outbox_horizon < (SELECT max(o.position) FROM outbox o WHERE o.position <= (SELECT n FROM picked));
    DELETE FROM outbox WHERE position <= (SELECT n FROM picked);
END;
