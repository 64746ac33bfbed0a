-- Dependencies: children of ended runs are released or skipped. The rules are in core/model/workflows.

CREATE TEMP VIEW process_ended_parents (most, now) AS SELECT NULL, NULL;
CREATE TEMP VIEW process_one_generation (most, now) AS SELECT NULL, NULL;
CREATE TEMP VIEW decide_children (now) AS SELECT NULL;

-- Edges whose parents have ended, and the decisions about the children.
CREATE TEMP TABLE ended_edge (child TEXT, parent TEXT, state TEXT, PRIMARY KEY (child, parent)) WITHOUT ROWID;
-- How many edges this request has processed.
CREATE TEMP TABLE decided_edges (n INTEGER);
INSERT INTO decided_edges (n) VALUES (0);
CREATE TEMP TABLE decision (child TEXT PRIMARY KEY, goes INTEGER, reason TEXT) WITHOUT ROWID;

-- Processes a limited number of edges of ended runs. A skipped child has ended, too, so a few generations are processed
-- at once and the rest by the next call.
CREATE TEMP TRIGGER process_some_parents INSTEAD OF INSERT ON process_ended_parents BEGIN
    UPDATE decided_edges SET n = 0;
    INSERT INTO process_one_generation (most, now)
    SELECT NEW.most, NEW.now FROM (
        WITH RECURSIVE generation (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM generation WHERE n < 20)
        SELECT n FROM generation);
END;

CREATE TEMP TRIGGER process_each_generation INSTEAD OF INSERT ON process_one_generation
WHEN EXISTS (SELECT 1 FROM ended_parent) AND (SELECT n FROM decided_edges) < NEW.most BEGIN
    DELETE FROM ended_edge;
    INSERT INTO ended_edge (child, parent, state)
    SELECT e.child, e.parent, p.state
    FROM ended_parent p CROSS JOIN edge e INDEXED BY edge_undecided ON e.parent = p.run_id
    WHERE e.state IS NULL LIMIT NEW.most - (SELECT n FROM decided_edges);
    UPDATE decided_edges SET n = n + (SELECT count(*) FROM ended_edge);
    INSERT INTO decide_children (now) VALUES (NEW.now);
    DELETE FROM ended_parent WHERE run_id IN (SELECT p.run_id FROM ended_parent p LIMIT NEW.most) AND NOT EXISTS (
        SELECT 1 FROM edge e INDEXED BY edge_undecided WHERE e.parent = ended_parent.run_id AND e.state IS NULL);
END;

CREATE TEMP TRIGGER decide_each_child INSTEAD OF INSERT ON decide_children BEGIN
    UPDATE edge SET state = (
        SELECT d.state FROM ended_edge AS d WHERE d.child = edge.child AND d.parent = edge.parent)
    WHERE (child, parent) IN (SELECT d.child, d.parent FROM ended_edge AS d);

    DELETE FROM decision;
    INSERT INTO decision (child, goes, reason)
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
            FROM (SELECT DISTINCT ended_edge.child AS child FROM ended_edge) AS d
            CROSS JOIN waiting w ON w.id = d.child AND w.state = 'after'
            CROSS JOIN dependent ON dependent.run_id = d.child CROSS JOIN edge e ON e.child = d.child
            GROUP BY d.child
        ) AS f
    ) AS c WHERE c.goes OR c.hopeless;

    -- A released child is due as if it were submitted now, or at its later due time.
    UPDATE waiting SET state = 'scheduled', due = max(waiting.due, NEW.now), rev = rev + 1,
                       start_by = max(waiting.due, NEW.now)
                           + (SELECT f.start_within FROM dependent f WHERE f.run_id = waiting.id),
                       deadline = max(waiting.due, NEW.now)
                           + (SELECT f.deadline FROM dependent f WHERE f.run_id = waiting.id)
    WHERE id IN (SELECT decision.child FROM decision WHERE decision.goes);
    INSERT INTO new_event (kind, tenant, run)
    SELECT 'dependency.resolved', w.tenant, w.id FROM decision CROSS JOIN waiting w ON w.id = decision.child
    WHERE decision.goes AND EXISTS (SELECT 1 FROM outbox_cursor) AND w.id NOT IN (SELECT kept_position.id FROM kept_position);
    DELETE FROM picked;
    INSERT INTO picked (id)
    SELECT w.id FROM decision CROSS JOIN waiting w ON w.id = decision.child
    WHERE decision.goes AND w.due <= NEW.now ORDER BY w.due, w.id;
    INSERT INTO admit_picked (now) VALUES (NEW.now);

    INSERT INTO end_run (id, state, reason, now)
    SELECT decision.child, 'skipped', decision.reason, NEW.now FROM decision WHERE NOT decision.goes;
END;

-- Argument: about how many edges. Answer: how many edges were processed and queued runs of an open breaker were
-- blocked.
CREATE TEMP TRIGGER resolve INSTEAD OF INSERT ON call WHEN NEW.procedure = 'resolve' BEGIN
    INSERT INTO process_ended_parents (most, now) VALUES (NEW.argument, NEW.now);
    INSERT OR REPLACE INTO reply (number, body) SELECT NEW.number, n FROM decided_edges;
    INSERT INTO admit_runs (now) VALUES (NEW.now);
    SELECT recall_queued(NEW.number, NEW.argument, NEW.now)
    WHERE EXISTS (SELECT 1 FROM limiter l INDEXED BY limiter_recalls WHERE l.recalls = 1);
    INSERT INTO write_events (now) VALUES (NEW.now);
END;
