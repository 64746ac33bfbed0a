-- Usage: the cost of attempts.

CREATE TEMP VIEW roll_up_usage (until) AS SELECT NULL;

-- Stores CPU time and units of completed attempts. It is called after complete, in the same statement, if an attempt
-- has any. Item: as for complete, then cpu, units.
CREATE TEMP TRIGGER record_cost INSTEAD OF INSERT ON call WHEN NEW.procedure = 'record_cost' BEGIN
    DELETE FROM attempt_cost;
    INSERT INTO attempt_cost (n, cpu, units) SELECT i.key, i.value ->> 9, i.value ->> 10 FROM json_each(NEW.batch) AS i;
    UPDATE history SET (cpu, units) = (
        SELECT attempt_cost.cpu, attempt_cost.units FROM completion CROSS JOIN attempt_cost ON attempt_cost.n = completion.n
        WHERE completion.id = history.id)
    WHERE id IN (SELECT completion.id FROM completion WHERE completion.outcome = 'success');
    UPDATE attempt SET (cpu, units) = (
        SELECT attempt_cost.cpu, attempt_cost.units FROM completion CROSS JOIN attempt_cost ON attempt_cost.n = completion.n
        WHERE completion.id = attempt.run_id)
    WHERE (run_id, fence) IN (SELECT completion.id, completion.fence FROM completion WHERE completion.outcome <> 'success');
    INSERT OR REPLACE INTO reply (number, body) VALUES (NEW.number, 'null');
END;

-- Adds the runs and attempts that are about to be rolled up to the sums of their day. Each attempt counts once: a
-- success is a row of history, all others are rows of attempt. It reads history by row number, because the index of
-- successes would be read from its beginning. Runs without a start had no attempt here.
CREATE TEMP TRIGGER roll_up_usage_by_day INSTEAD OF INSERT ON roll_up_usage BEGIN
    DELETE FROM usage_sum;
    INSERT INTO usage_sum (tenant, day, task, job_id, charged, wall, cpu)
    SELECT h.tenant, h.finished_at / :DAY * :DAY, b.task, coalesce(h.job_id, ''), count(*),
           sum(h.finished_at - h.started_at), sum(h.cpu)
    FROM meta CROSS JOIN history h ON h.seq > meta.history_counted AND h.seq <= (SELECT n FROM picked)
    CROSS JOIN body b ON b.id = h.body
    WHERE +h.state = 'succeeded' AND h.started_at IS NOT NULL GROUP BY 1, 2, 3, 4;
    INSERT INTO usage_sum (tenant, day, task, job_id, charged, wall, cpu)
    SELECT coalesce(r.tenant, w.tenant, h.tenant), e.ended_at / :DAY * :DAY, b.task,
           coalesce(r.job_id, w.job_id, h.job_id, ''), sum(e.outcome <> 'released'), sum(e.ended_at - e.started_at),
           sum(e.cpu)
    FROM attempt e INDEXED BY attempt_uncounted LEFT JOIN run r ON r.id = e.run_id
    LEFT JOIN waiting w ON w.id = e.run_id LEFT JOIN history h ON h.id = e.run_id
    CROSS JOIN body b ON b.id = coalesce(r.body, w.body, h.body)
    WHERE e.counted = 0 AND e.ended_at < NEW.until GROUP BY 1, 2, 3, 4;
    INSERT INTO usage (tenant, day, task, job_id, unit, amount)
    SELECT p.tenant, p.day, p.task, p.job_id, p.unit, p.amount FROM (
        SELECT tenant, day, task, job_id, 'attempts' AS unit, charged AS amount FROM usage_sum
        UNION ALL SELECT tenant, day, task, job_id, 'wall', wall FROM usage_sum
        UNION ALL SELECT tenant, day, task, job_id, 'cpu', cpu FROM usage_sum
    ) AS p WHERE p.amount > 0
    ON CONFLICT DO UPDATE SET amount = amount + excluded.amount;

    INSERT INTO usage (tenant, day, task, job_id, unit, amount)
    SELECT h.tenant, h.finished_at / :DAY * :DAY, b.task, coalesce(h.job_id, ''), i.key, sum(i.value)
    FROM meta CROSS JOIN history h ON h.seq > meta.history_counted AND h.seq <= (SELECT n FROM picked)
    CROSS JOIN body b ON b.id = h.body CROSS JOIN json_each(h.units) AS i
    WHERE +h.state = 'succeeded' AND h.units IS NOT NULL GROUP BY 1, 2, 3, 4, 5
    ON CONFLICT DO UPDATE SET amount = amount + excluded.amount;
    INSERT INTO usage (tenant, day, task, job_id, unit, amount)
    SELECT coalesce(r.tenant, w.tenant, h.tenant), e.ended_at / :DAY * :DAY, b.task,
           coalesce(r.job_id, w.job_id, h.job_id, ''), i.key, sum(i.value)
    FROM attempt e INDEXED BY attempt_uncounted LEFT JOIN run r ON r.id = e.run_id
    LEFT JOIN waiting w ON w.id = e.run_id LEFT JOIN history h ON h.id = e.run_id
    CROSS JOIN body b ON b.id = coalesce(r.body, w.body, h.body) CROSS JOIN json_each(e.units) AS i
    WHERE e.counted = 0 AND e.ended_at < NEW.until AND e.units IS NOT NULL GROUP BY 1, 2, 3, 4, 5
    ON CONFLICT DO UPDATE SET amount = amount + excluded.amount;
END;

-- Used by the two procedures above only.
CREATE TEMP TABLE attempt_cost (n INTEGER PRIMARY KEY, cpu INTEGER, units TEXT);
CREATE TEMP TABLE usage_sum (
    tenant TEXT, day INTEGER, task TEXT, job_id TEXT, charged INTEGER, wall INTEGER, cpu INTEGER
);
