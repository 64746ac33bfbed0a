-- expand
-- Classes of retention. A run's class is in the number of the bucket of its body: n * 100000 beyond that of the standard,
-- n being 1 short, 2 long, 3 audit. What has ended of each lies in a history of its own (class n + 2), so that it is
-- dropped by partitions, too; the standard has its two as before. Programs of the version before write what they end to
-- those. Partitions of a class are made when the first run chooses it.
DO $$
DECLARE
    histories constant text[] := ARRAY['history_short', 'history_long', 'history_audit'];
    kept text;
BEGIN
    -- LIKE and ATTACH take a weaker lock than PARTITION OF: live work goes on.
    FOR n IN 1..3 LOOP
        EXECUTE format('CREATE TABLE %I (LIKE history INCLUDING DEFAULTS INCLUDING CONSTRAINTS) PARTITION BY RANGE (finished_at)',
                       histories[n]);
        EXECUTE format('ALTER TABLE history ATTACH PARTITION %I FOR VALUES IN (%s)', histories[n], n + 2);
    END LOOP;
    -- Days of these are dropped for all classes at once. What belongs to runs that are kept longer is moved here before,
    -- and deleted with them.
    FOREACH kept IN ARRAY ARRAY['attempt', 'ledger', 'log'] LOOP
        EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', kept || '_kept', kept);
        EXECUTE format('CREATE POLICY of_tenant ON %I FOR SELECT USING (tenant + 0 = %s)', kept || '_kept',
                       $text$(SELECT nullif(current_setting('mainspring.tenant', true), '')::integer)$text$);
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', kept || '_kept');
    END LOOP;
END
$$;
CREATE INDEX attempt_kept_run ON attempt_kept (run_id, fence);
CREATE INDEX ledger_kept_run ON ledger_kept (run_id);
CREATE UNIQUE INDEX ledger_kept_tick ON ledger_kept (job_id, scheduled_at, target);
CREATE INDEX log_kept_run ON log_kept (run_id, position);

-- As before, but for the class.
CREATE OR REPLACE FUNCTION submit_runs(request text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $function$
DECLARE
    asked     jsonb := request::jsonb;
    about_us  meta%ROWTYPE;
    moment    bigint := clock_us();
    a_day     constant bigint := 86400000000;
    any_shard integer;
    -- Where an id made here begins: milliseconds, and a sequence of 12 bits.
    place     bigint;
    kinds     integer[];
    words     text[];
    runs      new_run[];
    one       new_run;
    problem   text;
    before    record;
    counts    boolean;
    taken     uuid[] := '{}';
    used      integer[] := '{}';
    answers   jsonb := '[]';
    topic     text;
BEGIN
    SELECT * INTO STRICT about_us FROM meta;
    IF asked ->> 'store' IS NOT NULL AND (asked ->> 'store')::uuid <> about_us.store_id THEN
        RAISE EXCEPTION 'this connection is to another store' USING ERRCODE = 'MS001';
    END IF;
    place := moment * 4096 / 1000;
    any_shard := floor(random() * about_us.shards);

    SELECT array_agg(n.kind), array_agg(n.name) INTO kinds, words FROM (
        SELECT DISTINCT v.kind, coalesce(v.name, '') AS name
        FROM jsonb_array_elements(asked -> 'runs') AS r,
             LATERAL (VALUES (1, r ->> 'tenant'), (2, r ->> 'task'), (3, r ->> 'queue')) AS v(kind, name)
    ) AS n;
    SELECT n.name INTO problem FROM unnest(words) AS n(name)
    WHERE n.name !~ '^[^[:cntrl:]]{1,200}$' OR n.name ~ '^\s|\s$' LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '% is not a name: 1 to 200 printable characters', quote_literal(left(problem, 40))
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO name (kind, name)
    SELECT w.kind, w.name FROM unnest(kinds, words) AS w(kind, name)
    WHERE NOT EXISTS (SELECT FROM name n WHERE n.kind = w.kind AND n.name = w.name)
    ORDER BY w.kind, w.name ON CONFLICT DO NOTHING;

    runs := ARRAY(
        SELECT ROW(
            i.number,
            coalesce(i.id, (lpad(to_hex((place + i.number) >> 12), 12, '0') || '7'
                || lpad(to_hex((place + i.number) & 4095), 3, '0') || to_hex(32768 | any_shard)
                || right(gen_random_uuid()::text, 12))::uuid),
            -- The day whose partition holds the body, if there is such a partition; -1 holds what lies further away.
            CASE WHEN i.day < moment / a_day + 7 AND to_regclass('body_d' || i.bucket) IS NOT NULL THEN i.bucket
                 WHEN to_regclass('body_d' || (i.class * 100000 - 1)) IS NOT NULL THEN i.class * 100000 - 1 ELSE -1 END,
            (SELECT n.id FROM name n WHERE n.kind = 2 AND n.name = i.task),
            (SELECT n.id FROM name n WHERE n.kind = 1 AND n.name = i.tenant),
            (SELECT n.id FROM name n WHERE n.kind = 3 AND n.name = i.queue),
            i.queue, coalesce(i.shard, any_shard), i.priority, coalesce(i.lane, 0), i.due, i.timeout, i.due + i.start_within,
            i.due + i.deadline, i.gate, convert_to(i.policy, 'UTF8'), convert_to(i.payload, 'UTF8'),
            convert_to(i.about, 'UTF8'), coalesce(i.tags, '{}'), decode(i.key, 'hex'), decode(i.fingerprint, 'hex'),
            i.limits
        )::new_run
        FROM (
            SELECT e.number::integer, r.*, w.due, w.day, c.class,
                   CASE c.class WHEN 0 THEN w.day WHEN 1 THEN 100000 + w.day WHEN 2 THEN 200000 + w.day / 7
                                ELSE 300000 + w.day / 30 END AS bucket
            FROM jsonb_array_elements(asked -> 'runs') WITH ORDINALITY AS e(run, number),
                 jsonb_to_record(e.run) AS r(id uuid, shard integer, task text, tenant text, queue text, payload text,
                     policy text, about text, tags text[], priority integer, lane integer, timeout bigint, at bigint,
                     delay bigint, start_within bigint, deadline bigint, gate bigint, limits bigint[], key text,
                     fingerprint text, retention integer),
                 LATERAL (SELECT coalesce(r.at, moment + coalesce(r.delay, 0)) AS due,
                                 (greatest(moment, coalesce(r.at, moment + coalesce(r.delay, 0))) / a_day)::integer AS day) AS w,
                 -- Who says nothing has the class of the tenant.
                 LATERAL (SELECT coalesce(r.retention, (
                     SELECT array_position(ARRAY['short', 'long', 'audit'], convert_from(t.quotas, 'UTF8')::jsonb ->> 'retention')
                     FROM tenant t JOIN name n ON n.id = t.number WHERE n.kind = 1 AND n.name = r.tenant), 0) AS class) AS c
        ) AS i ORDER BY i.number
    );
    SELECT CASE
        WHEN r.payload IS NULL THEN 'a payload is missing'
        WHEN octet_length(r.payload) > 262144 THEN format('a payload is %s bytes; at most 262144', octet_length(r.payload))
        WHEN octet_length(r.policy) > 16384 OR octet_length(r.about) > 65536 OR cardinality(r.tags) > 20 THEN 'it says too much'
        WHEN r.priority NOT BETWEEN 1 AND 10 THEN format('priority %s is not 1 (urgent) to 10 (idle)', r.priority)
        WHEN r.timeout NOT BETWEEN 1 AND 30 * a_day THEN 'a timeout is more than 0 and at most 30 days'
        WHEN r.due NOT BETWEEN 0 AND moment + 36600 * a_day THEN 'it is due too late, or before 1970'
        WHEN r.shard NOT BETWEEN 0 AND about_us.shards - 1 THEN format('there is no shard %s', r.shard)
        WHEN r.start_by <= r.due OR r.deadline <= r.due THEN 'a limit is more than 0'
        ELSE 'the number of a name is missing' END INTO problem
    FROM unnest(runs) AS r
    WHERE (octet_length(r.payload) <= 262144 AND r.priority BETWEEN 1 AND 10 AND r.timeout BETWEEN 1 AND 30 * a_day
        AND r.due BETWEEN 0 AND moment + 36600 * a_day AND r.shard BETWEEN 0 AND about_us.shards - 1
        AND coalesce(r.start_by > r.due, true) AND coalesce(r.deadline > r.due, true)
        AND coalesce(octet_length(r.policy) <= 16384, true) AND coalesce(octet_length(r.about) <= 65536, true)
        AND cardinality(r.tags) <= 20 AND r.task + r.tenant + r.queue IS NOT NULL) IS NOT TRUE LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '%', problem USING ERRCODE = 'invalid_parameter_value';
    END IF;

    -- In the order of the keys: two transactions with the same ones do not lock each other out.
    FOR one IN SELECT * FROM unnest(runs) AS r WHERE r.key IS NOT NULL ORDER BY r.tenant, r.key, r.number LOOP
        LOOP
            INSERT INTO idempotency (tenant, key, kind, id, fingerprint, expires_at)
            VALUES (one.tenant, one.key, 1, one.id, one.fingerprint, moment + a_day) ON CONFLICT DO NOTHING;
            IF FOUND THEN
                taken := taken || one.id;
                EXIT;
            END IF;
            SELECT k.* INTO before FROM idempotency k WHERE k.tenant = one.tenant AND k.key = one.key FOR UPDATE;
            -- Just forgotten or freed: once more.
            CONTINUE WHEN NOT FOUND;
            counts := before.id = ANY (taken) OR before.expires_at > moment AND CASE before.kind
                WHEN 2 THEN EXISTS (SELECT FROM job j WHERE j.id = before.id)
                ELSE EXISTS (SELECT FROM run r WHERE r.id = before.id)
                  OR EXISTS (SELECT FROM waiting w WHERE w.id = before.id)
                  OR EXISTS (SELECT FROM history h WHERE h.id = before.id) END;
            IF counts THEN
                used := used || one.number;
                answers := answers || jsonb_build_array(jsonb_build_array(
                    one.number, replace(before.id::text, '-', ''), coalesce(
                        (SELECT r.state FROM run r WHERE r.id = before.id),
                        (SELECT w.state FROM waiting w WHERE w.id = before.id),
                        (SELECT h.state FROM history h WHERE h.id = before.id LIMIT 1),
                        CASE WHEN before.kind = 2 THEN 1 ELSE 3 END
                    ), false, before.kind = 2 OR before.fingerprint <> one.fingerprint));
            ELSE
                UPDATE idempotency k SET kind = 1, id = one.id, fingerprint = one.fingerprint, expires_at = moment + a_day
                WHERE k.tenant = one.tenant AND k.key = one.key;
                taken := taken || one.id;
            END IF;
            EXIT;
        END LOOP;
    END LOOP;
    IF cardinality(used) > 0 THEN
        runs := ARRAY(SELECT r FROM unnest(runs) AS r WHERE r.number <> ALL (used));
    END IF;

    WITH bodies AS (
        INSERT INTO body (bucket, id, task, policy, payload, tenant, about)
        SELECT r.bucket, r.id, r.task, r.policy, r.payload, r.tenant, r.about FROM unnest(runs) AS r
    ), queued AS (
        INSERT INTO run (id, shard, state, priority, attempt, lost, tenant, queue, lane, body_bucket, rank, due, created_at,
                         timeout, start_by, deadline)
        SELECT r.id, r.shard, 3, r.priority, 0, 0, r.tenant, r.queue, r.lane, r.bucket, moment + r.priority * 1000000000::bigint,
               r.due, moment, r.timeout, r.start_by, r.deadline
        FROM unnest(runs) AS r WHERE r.due <= moment AND r.gate IS NULL AND r.limits IS NULL
    ), later AS (
        INSERT INTO waiting (id, shard, state, priority, attempt, lost, tenant, queue, lane, body_bucket, due, created_at,
                             timeout, start_by, deadline, gate, limits)
        SELECT r.id, r.shard, 1, r.priority, 0, 0, r.tenant, r.queue, r.lane, r.bucket, r.due, moment, r.timeout, r.start_by,
               r.deadline, r.gate, r.limits
        FROM unnest(runs) AS r WHERE r.due > moment OR r.gate IS NOT NULL OR r.limits IS NOT NULL
    ), labels AS (
        INSERT INTO label (bucket, id, tenant, label)
        SELECT r.bucket, r.id, r.tenant, t.tag FROM unnest(runs) AS r, unnest(r.tags) AS t(tag) ON CONFLICT DO NOTHING
    )
    INSERT INTO outbox (at, kind, tenant, runs)
    SELECT moment, 'run.submitted', r.tenant, array_agg(r.id) FROM unnest(runs) AS r
    WHERE EXISTS (SELECT FROM outbox_cursor) GROUP BY r.tenant;

    -- They are sent when the caller commits, and each only once.
    FOR topic IN
        SELECT DISTINCT CASE WHEN r.due <= moment AND r.gate IS NULL AND r.limits IS NULL
                             THEN 'queue:' || r.queue_name ELSE 'schedules' END
        FROM unnest(runs) AS r WHERE r.due <= moment + 5000000
    LOOP
        PERFORM pg_notify(current_schema() || '_wakeups', 'sql ' || topic);
    END LOOP;

    SELECT answers || coalesce(jsonb_agg(jsonb_build_array(r.number, replace(r.id::text, '-', ''),
               CASE WHEN r.due <= moment AND r.gate IS NULL AND r.limits IS NULL THEN 3 ELSE 1 END, true, false)), '[]') INTO answers
    FROM unnest(runs) AS r;
    RETURN (SELECT coalesce(jsonb_agg(a.answer - 0 ORDER BY (a.answer ->> 0)::integer), '[]')
            FROM jsonb_array_elements(answers) AS a(answer));
END
$function$;
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION submit_runs(text) SET search_path = %I, pg_temp', current_schema());
END
$$;
