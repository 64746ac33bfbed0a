-- Since when a queued run could have started, where that is later than its due time: a limit or a key has let it go, or it
-- came back from an attempt. Null: since it was due.
ALTER TABLE run ADD COLUMN ready_at INTEGER;
