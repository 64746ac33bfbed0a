-- Dependencies: children of runs that have ended go, or are skipped. The rules are those of core/model.

CREATE TEMP VIEW tell_children (most, now) AS SELECT NULL, NULL;
CREATE TEMP VIEW tell_a_generation (most, now) AS SELECT NULL, NULL;
CREATE TEMP VIEW decide (now) AS SELECT NULL;

-- Edges whose parents have ended, and what becomes of the children.
CREATE TEMP TABLE deciding (child TEXT, parent TEXT, state TEXT, PRIMARY KEY (child, parent)) WITHOUT ROWID;
-- How many edges were decided in this request.
CREATE TEMP TABLE told (n INTEGER);
INSERT INTO told (n) VALUES (0);
CREATE TEMP TABLE decided (child TEXT PRIMARY KEY, goes INTEGER, reason TEXT) WITHOUT ROWID;

-- At most so many edges of runs that have ended. What is skipped here has ended, too, so a few generations are told;
-- the rest next time.
CREATE TEMP TRIGGER tell_some_children INSTEAD OF INSERT ON tell_children BEGIN
    UPDATE told SET n = 0;
    INSERT INTO tell_a_generation (most, now)
    SELECT NEW.most, NEW.now FROM (
        WITH RECURSIVE generation (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM generation WHERE n < 20)
        SELECT n FROM generation);
END;

CREATE TEMP TRIGGER tell_one_generation INSTEAD OF INSERT ON tell_a_generation
WHEN EXISTS (SELECT 1 FROM ended_parent) AND (SELECT n FROM told) < NEW.most BEGIN
    DELETE FROM deciding;
    INSERT INTO deciding (child, parent, state)
    SELECT e.child, e.parent, p.state
    FROM ended_parent p CROSS JOIN edge e INDEXED BY edge_undecided ON e.parent = p.run_id
    WHERE e.state IS NULL LIMIT NEW.most - (SELECT n FROM told);
    UPDATE told SET n = n + (SELECT count(*) FROM deciding);
    INSERT INTO decide (now) VALUES (NEW.now);
    DELETE FROM ended_parent WHERE run_id IN (SELECT p.run_id FROM ended_parent p LIMIT NEW.most) AND NOT EXISTS (
        SELECT 1 FROM edge e INDEXED BY edge_undecided WHERE e.parent = ended_parent.run_id AND e.state IS NULL);
END;

CREATE TEMP TRIGGER decide_children INSTEAD OF INSERT ON decide BEGIN
    UPDATE edge SET state = (
        SELECT d.state FROM deciding AS d WHERE d.child = edge.child AND d.parent = edge.parent)
    WHERE (child, parent) IN (SELECT d.child, d.parent FROM deciding AS d);

    DELETE FROM decided;
    INSERT INTO decided (child, goes, reason)
    SELECT c.child, c.goes, iif(c.rule = 'any-failed', 'nothing to clean up', (
        SELECT 'parent ' || e.parent || ' ' || e.state FROM edge e
        WHERE e.child = c.child AND e.state <> 'succeeded' ORDER BY e.place LIMIT 1))
    FROM (
        SELECT f.child AS child, f.rule AS rule,
               CASE f.rule WHEN 'all-succeeded' THEN f.succeeded = f.parents
                           WHEN 'all-done' THEN f.succeeded + f.otherwise = f.parents
                           WHEN 'any-succeeded' THEN f.succeeded > 0
                           ELSE f.failed > 0 END AS goes,
               CASE f.rule WHEN 'all-succeeded' THEN f.otherwise > 0
                           ELSE f.succeeded + f.otherwise = f.parents END AS hopeless
        FROM (
            SELECT d.child AS child, dependent.rule AS rule, count(*) AS parents,
                   sum(e.state IS 'succeeded') AS succeeded,
                   sum(e.state IS NOT NULL AND e.state <> 'succeeded') AS otherwise, sum(e.state IS 'failed') AS failed
            FROM (SELECT DISTINCT deciding.child AS child FROM deciding) AS d
            CROSS JOIN waiting w ON w.id = d.child AND w.state = 'after'
            CROSS JOIN dependent ON dependent.run_id = d.child CROSS JOIN edge e ON e.child = d.child
            GROUP BY d.child
        ) AS f
    ) AS c WHERE c.goes OR c.hopeless;

    -- It comes due as if it were submitted now, or later.
    UPDATE waiting SET state = 'scheduled', due = max(waiting.due, NEW.now), rev = rev + 1,
                       start_by = max(waiting.due, NEW.now)
                           + (SELECT f.start_within FROM dependent f WHERE f.run_id = waiting.id),
                       deadline = max(waiting.due, NEW.now)
                           + (SELECT f.deadline FROM dependent f WHERE f.run_id = waiting.id)
    WHERE id IN (SELECT decided.child FROM decided WHERE decided.goes);
    INSERT INTO happened (kind, tenant, run)
    SELECT 'dependency.resolved', w.tenant, w.id FROM decided CROSS JOIN waiting w ON w.id = decided.child
    WHERE decided.goes AND EXISTS (SELECT 1 FROM outbox_cursor) AND w.id NOT IN (SELECT quiet.id FROM quiet);
    DELETE FROM picked;
    INSERT INTO picked (id)
    SELECT w.id FROM decided CROSS JOIN waiting w ON w.id = decided.child
    WHERE decided.goes AND w.due <= NEW.now ORDER BY w.due, w.id;
    INSERT INTO come_due (now) VALUES (NEW.now);

    INSERT INTO end_run (id, state, reason, now)
    SELECT decided.child, 'skipped', decided.reason, NEW.now FROM decided WHERE NOT decided.goes;
END;

-- Size: about how many. Answer: how many children were told, and queued runs of a breaker blocked.
CREATE TEMP TRIGGER resolve INSTEAD OF INSERT ON call WHEN NEW.procedure = 'resolve' BEGIN
    INSERT INTO tell_children (most, now) VALUES (NEW.argument, NEW.now);
    INSERT OR REPLACE INTO reply (number, body) SELECT NEW.number, n FROM told;
    DELETE FROM candidate;
    INSERT INTO spill (number, most, now)
    SELECT l.number, NEW.argument, NEW.now FROM limiter l INDEXED BY limiter_spilling WHERE l.spilling = 1 LIMIT 1;
    UPDATE reply SET body = body + (SELECT count(*) FROM candidate) WHERE number = NEW.number;
    INSERT INTO admit (now) VALUES (NEW.now);
    INSERT INTO tell (now) VALUES (NEW.now);
END;
