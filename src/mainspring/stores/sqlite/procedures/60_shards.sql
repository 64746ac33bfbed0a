-- Ownership of shards. A member is the session of a scheduler.

-- Argument: ttl. Answer: now, members, owned shards with their epochs, and in how long the first lease of another
-- member ends; null if the session has expired.
CREATE TEMP TRIGGER renew INSTEAD OF INSERT ON call WHEN NEW.procedure = 'renew' BEGIN
    UPDATE session SET lease_until = NEW.now + NEW.argument WHERE id = NEW.session AND live = 1 AND kind = 'scheduler';
    UPDATE session SET live = 0 WHERE live = 1 AND kind = 'scheduler' AND lease_until <= NEW.now;
    INSERT OR REPLACE INTO reply (number, body)
    SELECT NEW.number, CASE WHEN EXISTS (
        SELECT 1 FROM session WHERE id = NEW.session AND live = 1 AND kind = 'scheduler'
    ) THEN json_object(
        'now', NEW.now,
        'members', json((SELECT json_group_array(id ORDER BY id) FROM session WHERE live = 1 AND kind = 'scheduler')),
        'owned', json((SELECT json_group_array(json_array(id, epoch)) FROM shard WHERE owner = NEW.session)),
        'first_end', (
            SELECT min(lease_until) - NEW.now FROM session WHERE live = 1 AND kind = 'scheduler' AND id <> NEW.session)
    ) ELSE 'null' END;
END;

-- Batch: shards. Answer: (shard, epoch) of the shards that were taken.
CREATE TEMP TRIGGER take INSTEAD OF INSERT ON call WHEN NEW.procedure = 'take' BEGIN
    DELETE FROM picked;
    INSERT INTO picked (n)
    SELECT shard.id FROM shard
    WHERE shard.id IN (SELECT value FROM json_each(NEW.batch))
      AND EXISTS (SELECT 1 FROM session WHERE id = NEW.session AND live = 1 AND lease_until > NEW.now)
      AND NOT EXISTS (SELECT 1 FROM session WHERE id = shard.owner AND live = 1 AND lease_until > NEW.now);
    UPDATE shard SET owner = NEW.session, epoch = epoch + 1 WHERE id IN (SELECT n FROM picked);
    INSERT OR REPLACE INTO reply (number, body)
    SELECT NEW.number, json_group_array(json_array(shard.id, shard.epoch))
    FROM picked CROSS JOIN shard ON shard.id = picked.n;
END;

-- Takes shards whose epoch has not changed, also from a live owner, for stores with another coordinator.
-- Batch: (shard, epoch). Answer: (shard, new epoch) of the shards that were taken.
CREATE TEMP TRIGGER take_at_epochs INSTEAD OF INSERT ON call WHEN NEW.procedure = 'take_at_epochs' BEGIN
    DELETE FROM picked;
    INSERT INTO picked (n)
    SELECT shard.id FROM json_each(NEW.batch) AS given CROSS JOIN shard ON shard.id = given.value ->> 0
    WHERE shard.epoch = given.value ->> 1 AND shard.owner IS NOT NEW.session
      AND EXISTS (SELECT 1 FROM session WHERE id = NEW.session AND live = 1 AND lease_until > NEW.now);
    UPDATE shard SET owner = NEW.session, epoch = epoch + 1 WHERE id IN (SELECT n FROM picked);
    INSERT OR REPLACE INTO reply (number, body)
    SELECT NEW.number, json_group_array(json_array(shard.id, shard.epoch))
    FROM picked CROSS JOIN shard ON shard.id = picked.n;
END;

CREATE TEMP TRIGGER release_shards INSTEAD OF INSERT ON call WHEN NEW.procedure = 'release_shards' BEGIN
    UPDATE shard SET owner = NULL WHERE id IN (SELECT value FROM json_each(NEW.batch)) AND owner = NEW.session;
    INSERT OR REPLACE INTO reply (number, body) VALUES (NEW.number, 'null');
END;

CREATE TEMP TRIGGER leave INSTEAD OF INSERT ON call WHEN NEW.procedure = 'leave' BEGIN
    UPDATE shard SET owner = NULL WHERE owner = NEW.session;
    UPDATE session SET live = 0 WHERE id = NEW.session AND live = 1;
    INSERT OR REPLACE INTO reply (number, body) VALUES (NEW.number, 'null');
END;
