-- Queues with a policy.

-- The runs that Python has chosen of a queue whose policy a claim must apply.
CREATE TEMP TABLE chosen (n INTEGER PRIMARY KEY, queue TEXT, id TEXT);
CREATE TEMP TRIGGER pick_chosen INSTEAD OF INSERT ON demand
WHEN EXISTS (SELECT 1 FROM queue_policy q WHERE q.queue = NEW.queue AND q.closely = 1) BEGIN
    INSERT INTO picked (id)
    SELECT c.id FROM chosen c WHERE c.queue = NEW.queue AND c.id NOT IN (SELECT picked.id FROM picked) ORDER BY c.n;
END;

-- A run waits for its next attempt. With a retry budget, its due time moves to the first period with room.
CREATE TEMP TABLE retry_slot (one INTEGER PRIMARY KEY, period INTEGER);
CREATE TEMP TRIGGER pace_retry AFTER INSERT ON main.waiting
WHEN NEW.state = 'scheduled' AND NEW.fence > 0 AND NEW.attempt > 0
 AND EXISTS (SELECT 1 FROM queue_policy q WHERE q.queue = NEW.queue AND q.retries IS NOT NULL) BEGIN
    DELETE FROM queue_retry
    WHERE queue = NEW.queue
      AND period < NEW.started_at / (SELECT q.per FROM queue_policy q WHERE q.queue = NEW.queue) - 1;

    INSERT OR REPLACE INTO retry_slot (one, period)
    SELECT 1, max(walk.p) FROM (
        WITH RECURSIVE walk (p, most) AS (
            SELECT NEW.due / q.per, q.retries FROM queue_policy q WHERE q.queue = NEW.queue
            UNION ALL
            SELECT walk.p + 1, walk.most FROM walk
            WHERE (SELECT r.number FROM queue_retry r WHERE r.queue = NEW.queue AND r.period = walk.p) >= walk.most
        )
        SELECT walk.p AS p FROM walk
    ) AS walk;

    INSERT INTO queue_retry (queue, period, number) SELECT NEW.queue, retry_slot.period, 1 FROM retry_slot WHERE true
    ON CONFLICT DO UPDATE SET number = number + 1;

    UPDATE waiting SET due = (
        SELECT retry_slot.period * q.per + (r.number - 1) * q.per / q.retries
        FROM retry_slot CROSS JOIN queue_policy q ON q.queue = NEW.queue
        CROSS JOIN queue_retry r ON r.queue = NEW.queue AND r.period = retry_slot.period)
    WHERE id = NEW.id
      AND (SELECT retry_slot.period > NEW.due / q.per FROM retry_slot CROSS JOIN queue_policy q ON q.queue = NEW.queue);
END;
