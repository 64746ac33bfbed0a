-- Who reads the stream of changes, and how far they have come. Batch: the reader's name.

CREATE TEMP TRIGGER attach_reader INSTEAD OF INSERT ON call WHEN NEW.kind = 'attach_reader' BEGIN
    INSERT INTO outbox_cursor (reader, position)
    VALUES (NEW.batch, coalesce((SELECT q.seq FROM sqlite_sequence q WHERE q.name = 'outbox'), 0))
    ON CONFLICT DO NOTHING;
    INSERT OR REPLACE INTO reply (number, body) VALUES (NEW.number, 'null');
END;

CREATE TEMP TRIGGER detach_reader INSTEAD OF INSERT ON call WHEN NEW.kind = 'detach_reader' BEGIN
    DELETE FROM outbox_cursor WHERE reader = NEW.batch;
    DELETE FROM outbox WHERE position <= coalesce((SELECT min(outbox_cursor.position) FROM outbox_cursor), position);
    INSERT OR REPLACE INTO reply (number, body) VALUES (NEW.number, 'null');
END;

-- Size: the position. What everybody has seen goes.
CREATE TEMP TRIGGER acknowledge INSTEAD OF INSERT ON call WHEN NEW.kind = 'acknowledge' BEGIN
    UPDATE outbox_cursor SET position = max(position, NEW.size) WHERE reader = NEW.batch;
    DELETE FROM outbox WHERE position <= (SELECT min(outbox_cursor.position) FROM outbox_cursor);
    INSERT OR REPLACE INTO reply (number, body) VALUES (NEW.number, 'null');
END;
