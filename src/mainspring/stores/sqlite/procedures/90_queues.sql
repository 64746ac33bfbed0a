-- Queues with a policy.

-- What the interpreter has chosen of a queue with a policy that a claim must look at.
CREATE TEMP TABLE chosen (n INTEGER PRIMARY KEY, queue TEXT, id TEXT);
CREATE TEMP TRIGGER pick_chosen INSTEAD OF INSERT ON want
WHEN EXISTS (SELECT 1 FROM queue_policy q WHERE q.queue = NEW.queue AND q.closely = 1) BEGIN
    INSERT INTO picked (id)
    SELECT c.id FROM chosen c WHERE c.queue = NEW.queue AND c.id NOT IN (SELECT picked.id FROM picked) ORDER BY c.n;
END;

-- A run goes to wait for its next attempt. With a budget its due time is moved to the first period with room.
CREATE TEMP TABLE paced (one INTEGER PRIMARY KEY, period INTEGER);
CREATE TEMP TRIGGER pace_retry AFTER INSERT ON main.waiting
WHEN NEW.state = 'scheduled' AND NEW.fence > 0 AND NEW.attempt > 0
 AND EXISTS (SELECT 1 FROM queue_policy q WHERE q.queue = NEW.queue AND q.retries IS NOT NULL) BEGIN
    DELETE FROM queue_retry
    WHERE queue = NEW.queue
      AND period < NEW.started_at / (SELECT q.per FROM queue_policy q WHERE q.queue = NEW.queue) - 1;

    INSERT OR REPLACE INTO paced (one, period)
    SELECT 1, max(walk.p) FROM (
        WITH RECURSIVE walk (p, most) AS (
            SELECT NEW.due / q.per, q.retries FROM queue_policy q WHERE q.queue = NEW.queue
            UNION ALL
            SELECT walk.p + 1, walk.most FROM walk
            WHERE (SELECT r.number FROM queue_retry r WHERE r.queue = NEW.queue AND r.period = walk.p) >= walk.most
        )
        SELECT walk.p AS p FROM walk
    ) AS walk;

    INSERT INTO queue_retry (queue, period, number) SELECT NEW.queue, paced.period, 1 FROM paced WHERE true
    ON CONFLICT DO UPDATE SET number = number + 1;

    UPDATE waiting SET due = (
        SELECT paced.period * q.per + (r.number - 1) * q.per / q.retries
        FROM paced CROSS JOIN queue_policy q ON q.queue = NEW.queue
        CROSS JOIN queue_retry r ON r.queue = NEW.queue AND r.period = paced.period)
    WHERE id = NEW.id
      AND (SELECT paced.period > NEW.due / q.per FROM paced CROSS JOIN queue_policy q ON q.queue = NEW.queue);
END;
