-- What work costs.

CREATE TEMP VIEW roll_up_usage (until) AS SELECT NULL;

-- What attempts cost beyond their time: called after settle, in the same statement, when one of them says so.
-- Item: as settle's, then CPU and units.
CREATE TEMP TRIGGER spend INSTEAD OF INSERT ON call WHEN NEW.procedure = 'spend' BEGIN
    DELETE FROM metered;
    INSERT INTO metered (n, cpu, units) SELECT i.key, i.value ->> 9, i.value ->> 10 FROM json_each(NEW.batch) AS i;
    UPDATE history SET (cpu, units) = (
        SELECT metered.cpu, metered.units FROM settling CROSS JOIN metered ON metered.n = settling.n
        WHERE settling.id = history.id)
    WHERE id IN (SELECT settling.id FROM settling WHERE settling.outcome = 'success');
    UPDATE attempt SET (cpu, units) = (
        SELECT metered.cpu, metered.units FROM settling CROSS JOIN metered ON metered.n = settling.n
        WHERE settling.id = attempt.run_id)
    WHERE (run_id, fence) IN (SELECT settling.id, settling.fence FROM settling WHERE settling.outcome <> 'success');
    INSERT OR REPLACE INTO reply (number, body) VALUES (NEW.number, 'null');
END;

-- The runs and attempts that are about to come into the figures by the minute come into the sums of their day. Each
-- attempt once: a success stands in history, every other one among the attempts. By their place there, whatever their
-- state: the index of all successes would be read from its beginning. One without a start was no attempt of ours.
CREATE TEMP TRIGGER roll_up_usage_by_day INSTEAD OF INSERT ON roll_up_usage BEGIN
    DELETE FROM spending;
    INSERT INTO spending (tenant, day, task, job_id, charged, wall, cpu)
    SELECT h.tenant, h.finished_at / 86400000000 * 86400000000, b.task, coalesce(h.job_id, ''), count(*),
           sum(h.finished_at - h.started_at), sum(h.cpu)
    FROM meta CROSS JOIN history h ON h.seq > meta.history_counted AND h.seq <= (SELECT n FROM picked)
    CROSS JOIN body b ON b.id = h.body
    WHERE +h.state = 'succeeded' AND h.started_at IS NOT NULL GROUP BY 1, 2, 3, 4;
    INSERT INTO spending (tenant, day, task, job_id, charged, wall, cpu)
    SELECT coalesce(r.tenant, w.tenant, h.tenant), e.ended_at / 86400000000 * 86400000000, b.task,
           coalesce(r.job_id, w.job_id, h.job_id, ''), sum(e.outcome <> 'released'), sum(e.ended_at - e.started_at),
           sum(e.cpu)
    FROM attempt e INDEXED BY attempt_uncounted LEFT JOIN run r ON r.id = e.run_id
    LEFT JOIN waiting w ON w.id = e.run_id LEFT JOIN history h ON h.id = e.run_id
    CROSS JOIN body b ON b.id = coalesce(r.body, w.body, h.body)
    WHERE e.counted = 0 AND e.ended_at < NEW.until GROUP BY 1, 2, 3, 4;
    INSERT INTO usage (tenant, day, task, job_id, unit, amount)
    SELECT p.tenant, p.day, p.task, p.job_id, p.unit, p.amount FROM (
        SELECT tenant, day, task, job_id, 'attempts' AS unit, charged AS amount FROM spending
        UNION ALL SELECT tenant, day, task, job_id, 'wall', wall FROM spending
        UNION ALL SELECT tenant, day, task, job_id, 'cpu', cpu FROM spending
    ) AS p WHERE p.amount > 0
    ON CONFLICT DO UPDATE SET amount = amount + excluded.amount;

    INSERT INTO usage (tenant, day, task, job_id, unit, amount)
    SELECT h.tenant, h.finished_at / 86400000000 * 86400000000, b.task, coalesce(h.job_id, ''), i.key, sum(i.value)
    FROM meta CROSS JOIN history h ON h.seq > meta.history_counted AND h.seq <= (SELECT n FROM picked)
    CROSS JOIN body b ON b.id = h.body CROSS JOIN json_each(h.units) AS i
    WHERE +h.state = 'succeeded' AND h.units IS NOT NULL GROUP BY 1, 2, 3, 4, 5
    ON CONFLICT DO UPDATE SET amount = amount + excluded.amount;
    INSERT INTO usage (tenant, day, task, job_id, unit, amount)
    SELECT coalesce(r.tenant, w.tenant, h.tenant), e.ended_at / 86400000000 * 86400000000, b.task,
           coalesce(r.job_id, w.job_id, h.job_id, ''), i.key, sum(i.value)
    FROM attempt e INDEXED BY attempt_uncounted LEFT JOIN run r ON r.id = e.run_id
    LEFT JOIN waiting w ON w.id = e.run_id LEFT JOIN history h ON h.id = e.run_id
    CROSS JOIN body b ON b.id = coalesce(r.body, w.body, h.body) CROSS JOIN json_each(e.units) AS i
    WHERE e.counted = 0 AND e.ended_at < NEW.until AND e.units IS NOT NULL GROUP BY 1, 2, 3, 4, 5
    ON CONFLICT DO UPDATE SET amount = amount + excluded.amount;
END;

-- Only while the above are at work.
CREATE TEMP TABLE metered (n INTEGER PRIMARY KEY, cpu INTEGER, units TEXT);
CREATE TEMP TABLE spending (
    tenant TEXT, day INTEGER, task TEXT, job_id TEXT, charged INTEGER, wall INTEGER, cpu INTEGER
);
