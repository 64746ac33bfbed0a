-- Row-level security: a second wall between tenants. It binds every role that does not own the tables; wall.py makes the one
-- that reads for people. Whose rows are seen is a setting of the connection: the number of a tenant, and its name for the
-- tables that know only that. Without it nothing is seen.

-- Whatever belongs to a tenant says so itself. 0: nobody's.
DO $$
DECLARE
    of_tenant text;
BEGIN
    FOREACH of_tenant IN ARRAY ARRAY['job_version', 'schedule', 'log', 'progress'] LOOP
        EXECUTE format('ALTER TABLE %I ADD COLUMN tenant integer NOT NULL DEFAULT 0', of_tenant);
        EXECUTE format('ALTER TABLE %I ALTER COLUMN tenant DROP DEFAULT', of_tenant);
    END LOOP;
END
$$;
UPDATE job_version v SET tenant = j.tenant FROM job j WHERE j.id = v.job_id;
UPDATE schedule s SET tenant = j.tenant FROM job j WHERE j.id = s.job_id;
WITH known AS MATERIALIZED (
    SELECT id, tenant FROM run UNION ALL SELECT id, tenant FROM waiting UNION ALL SELECT id, tenant FROM history
), lines AS (
    UPDATE log l SET tenant = k.tenant FROM known k WHERE k.id = l.run_id
)
UPDATE progress p SET tenant = k.tenant FROM known k WHERE k.id = p.run_id;

-- "+ 0": the policy only filters, and leaves the choice of an index to the query, which names the tenant itself. The
-- sub-select is computed once a query and not once a row. Nothing but reading is let through.
DO $$
DECLARE
    number constant text := $text$(SELECT nullif(current_setting('mainspring.tenant', true), '')::integer)$text$;
    name constant text := $text$(SELECT nullif(current_setting('mainspring.tenant_name', true), ''))$text$;
    of_tenant text;
BEGIN
    FOREACH of_tenant IN ARRAY ARRAY['run', 'waiting', 'history', 'body', 'attempt', 'ledger', 'outbox', 'label', 'idempotency',
                                     'dead_letter', 'minute', 'job', 'job_version', 'schedule', 'log', 'progress'] LOOP
        EXECUTE format('CREATE POLICY of_tenant ON %I FOR SELECT USING (tenant + 0 = %s)', of_tenant, number);
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', of_tenant);
    END LOOP;
    FOREACH of_tenant IN ARRAY ARRAY['audit', 'api_key'] LOOP
        EXECUTE format('CREATE POLICY of_tenant ON %I FOR SELECT USING (tenant = %s)', of_tenant, name);
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', of_tenant);
    END LOOP;
    EXECUTE format('CREATE POLICY of_tenant ON tenant FOR SELECT USING (number + 0 = %s)', number);
    ALTER TABLE tenant ENABLE ROW LEVEL SECURITY;
    -- A pause of every tenant is everybody's.
    EXECUTE format('CREATE POLICY of_tenant ON pause FOR SELECT USING (coalesce(nullif(tenant, 0), %s) = %s)', number, number);
    ALTER TABLE pause ENABLE ROW LEVEL SECURITY;
END
$$;
