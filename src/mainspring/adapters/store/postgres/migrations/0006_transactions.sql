-- Submitting inside somebody else's transaction: functions, so that one statement of any driver, any language or a trigger
-- does what the store's own submit does. They run with the rights of their owner; who may call them is granted by hand.

-- now_us() is when a transaction began. In one that is not ours that may be long ago.
CREATE FUNCTION clock_us() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- A run on its way into the tables.
CREATE TYPE new_run AS (
    number      integer,
    id          uuid,
    bucket      integer,
    task        integer,
    tenant      integer,
    queue       integer,
    queue_name  text,
    shard       smallint,
    priority    integer,
    lane        integer,
    due         bigint,
    timeout     bigint,
    start_by    bigint,
    deadline    bigint,
    gate        bigint,
    policy      bytea,
    payload     bytea,
    about       bytea,
    tags        text[],
    key         bytea,
    fingerprint bytea
);

-- The request is JSON: {"store": …, "runs": [{"task": …, "payload": "…", …}]}, made by adapters/store/postgres/transactions.py.
-- The answer is too, an entry a run: [id, state, whether it is new, whether its key was used for something else].
-- Whoever has an ordering key is not let in here but when it comes due, by a scheduler: the key's row would be locked until
-- the caller commits, and workers that settle its runs would wait for that.
CREATE FUNCTION submit_runs(request text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $function$
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
            CASE WHEN i.day < moment / a_day + 7 AND to_regclass('body_d' || i.day) IS NOT NULL THEN i.day ELSE -1 END,
            (SELECT n.id FROM name n WHERE n.kind = 2 AND n.name = i.task),
            (SELECT n.id FROM name n WHERE n.kind = 1 AND n.name = i.tenant),
            (SELECT n.id FROM name n WHERE n.kind = 3 AND n.name = i.queue),
            i.queue, coalesce(i.shard, any_shard), i.priority, coalesce(i.lane, 0), i.due, i.timeout, i.due + i.start_within,
            i.due + i.deadline, i.gate, convert_to(i.policy, 'UTF8'), convert_to(i.payload, 'UTF8'),
            convert_to(i.about, 'UTF8'), coalesce(i.tags, '{}'), decode(i.key, 'hex'), decode(i.fingerprint, 'hex')
        )::new_run
        FROM (
            SELECT e.number::integer, r.*, coalesce(r.at, moment + coalesce(r.delay, 0)) AS due,
                   (greatest(moment, coalesce(r.at, moment + coalesce(r.delay, 0))) / a_day)::integer AS day
            FROM jsonb_array_elements(asked -> 'runs') WITH ORDINALITY AS e(run, number),
                 jsonb_to_record(e.run) AS r(id uuid, shard integer, task text, tenant text, queue text, payload text,
                     policy text, about text, tags text[], priority integer, lane integer, timeout bigint, at bigint,
                     delay bigint, start_within bigint, deadline bigint, gate bigint, key text, fingerprint text)
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
        FROM unnest(runs) AS r WHERE r.due <= moment AND r.gate IS NULL
    ), later AS (
        INSERT INTO waiting (id, shard, state, priority, attempt, lost, tenant, queue, lane, body_bucket, due, created_at,
                             timeout, start_by, deadline, gate)
        SELECT r.id, r.shard, 1, r.priority, 0, 0, r.tenant, r.queue, r.lane, r.bucket, r.due, moment, r.timeout, r.start_by,
               r.deadline, r.gate
        FROM unnest(runs) AS r WHERE r.due > moment OR r.gate IS NOT NULL
    ), labels AS (
        INSERT INTO label (bucket, id, tenant, label)
        SELECT r.bucket, r.id, r.tenant, t.tag FROM unnest(runs) AS r, unnest(r.tags) AS t(tag) ON CONFLICT DO NOTHING
    )
    INSERT INTO outbox (at, kind, tenant, runs)
    SELECT moment, 'run.submitted', r.tenant, array_agg(r.id) FROM unnest(runs) AS r
    WHERE EXISTS (SELECT FROM outbox_cursor) GROUP BY r.tenant;

    -- They are sent when the caller commits, and each only once.
    FOR topic IN
        SELECT DISTINCT CASE WHEN r.due <= moment AND r.gate IS NULL THEN 'queue:' || r.queue_name ELSE 'schedules' END
        FROM unnest(runs) AS r WHERE r.due <= moment + 5000000
    LOOP
        PERFORM pg_notify(current_schema() || '_wakeups', 'sql ' || topic);
    END LOOP;

    SELECT answers || coalesce(jsonb_agg(jsonb_build_array(r.number, replace(r.id::text, '-', ''),
               CASE WHEN r.due <= moment AND r.gate IS NULL THEN 3 ELSE 1 END, true, false)), '[]') INTO answers
    FROM unnest(runs) AS r;
    RETURN (SELECT coalesce(jsonb_agg(a.answer - 0 ORDER BY (a.answer ->> 0)::integer), '[]')
            FROM jsonb_array_elements(answers) AS a(answer));
END
$function$;

-- For people and triggers: one run, with what is usual where nothing is said. The answer is its id.
CREATE FUNCTION submit(
    task text, payload jsonb DEFAULT '{}', queue text DEFAULT 'default', tenant text DEFAULT 'default',
    priority integer DEFAULT 5, delay interval DEFAULT '0', at timestamptz DEFAULT NULL, unique_key text DEFAULT NULL,
    retries integer DEFAULT 3, timeout interval DEFAULT '1 hour'
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $function$
DECLARE
    asked  jsonb;
    answer jsonb;
BEGIN
    IF retries NOT BETWEEN 0 AND 1000 THEN
        RAISE EXCEPTION 'retries are 0 to 1000, not %', retries USING ERRCODE = 'invalid_parameter_value';
    ELSIF delay < '0' THEN
        RAISE EXCEPTION 'a delay is not less than 0' USING ERRCODE = 'invalid_parameter_value';
    ELSIF unique_key !~ '^[^[:cntrl:]]{1,200}$' THEN
        RAISE EXCEPTION 'a unique key has 1 to 200 printable characters' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    asked := jsonb_build_object(
        'task', task, 'payload', payload::text, 'queue', queue, 'tenant', tenant, 'priority', priority,
        'at', (extract(epoch FROM at) * 1000000)::bigint, 'delay', (extract(epoch FROM delay) * 1000000)::bigint,
        'timeout', (extract(epoch FROM timeout) * 1000000)::bigint,
        'policy', jsonb_build_object('retry', jsonb_build_object('max_retries', retries),
                                     'timeout', (extract(epoch FROM timeout) * 1000000)::bigint)::text);
    IF unique_key IS NOT NULL THEN
        asked := asked || jsonb_build_object(
            'key', encode(sha256(convert_to(unique_key, 'UTF8')), 'hex'),
            'fingerprint', left(encode(sha256(convert_to(asked::text, 'UTF8')), 'hex'), 32));
    END IF;
    answer := submit_runs(jsonb_build_object('runs', jsonb_build_array(asked))::text)::jsonb -> 0;
    IF (answer ->> 3)::boolean THEN
        RAISE EXCEPTION 'unique key % was used for something else, run %', quote_literal(unique_key), answer ->> 0
            USING ERRCODE = 'unique_violation';
    END IF;
    RETURN answer ->> 0;
END
$function$;

-- Whoever calls them may have a search path of their own, with tables of our names in it.
DO $$
DECLARE
    called text;
BEGIN
    FOREACH called IN ARRAY ARRAY[
        'submit_runs(text)',
        'submit(text, jsonb, text, text, integer, interval, timestamptz, text, integer, interval)'
    ] LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', called, current_schema());
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', called);
    END LOOP;
END
$$;
