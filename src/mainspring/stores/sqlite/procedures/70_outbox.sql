-- Who reads the stream of changes, and how far they have come. Batch: the reader's name.
--
-- The newest position is that of the newest batch, or the horizon if that is beyond: what is gone was before it.

-- Size: how long it may be silent; negative: for ever. The first one to come moves the horizon: whoever stands before it
-- may have missed something. (Writing and deleting a row makes sure that its position is never used.)
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

-- Size: how long events are kept.
CREATE TEMP TRIGGER detach_reader INSTEAD OF INSERT ON call WHEN NEW.procedure = 'detach_reader' BEGIN
    DELETE FROM outbox_cursor WHERE reader = NEW.batch;
    INSERT INTO forget_events (until) VALUES (NEW.now - NEW.argument);
    INSERT OR REPLACE INTO reply (number, body) VALUES (NEW.number, 'null');
END;

-- Size: the position.
CREATE TEMP TRIGGER acknowledge INSTEAD OF INSERT ON call WHEN NEW.procedure = 'acknowledge' BEGIN
    UPDATE outbox_cursor SET position = NEW.argument WHERE reader = NEW.batch AND position < NEW.argument;
    INSERT OR REPLACE INTO reply (number, body) VALUES (NEW.number, 'null');
END;

-- What every reader has seen and is older than anybody may resume at goes; without readers all of it.
CREATE TEMP TRIGGER forget_old_events INSTEAD OF INSERT ON forget_events BEGIN
    DELETE FROM picked;
    INSERT INTO picked (n)
    SELECT CASE WHEN EXISTS (SELECT 1 FROM outbox_cursor) THEN min(
        (SELECT min(outbox_cursor.position) FROM outbox_cursor),
        coalesce((SELECT o.position - 1 FROM outbox o
                  WHERE o.position > (SELECT outbox_horizon FROM meta) AND o.at >= NEW.until
                  ORDER BY o.position LIMIT 1), 9000000000000000000))
    ELSE 9000000000000000000 END;
    UPDATE meta SET outbox_horizon = (SELECT max(o.position) FROM outbox o WHERE o.position <= (SELECT n FROM picked))
    WHERE outbox_horizon < (SELECT max(o.position) FROM outbox o WHERE o.position <= (SELECT n FROM picked));
    DELETE FROM outbox WHERE position <= (SELECT n FROM picked);
END;
