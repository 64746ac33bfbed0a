-- Backfilled runs by the tick that they make up for. Nothing else is in these.
CREATE INDEX run_backfilled ON run (job_id, scheduled_at) WHERE origin = 5;
CREATE INDEX waiting_backfilled ON waiting (job_id, scheduled_at) WHERE origin = 5;
CREATE INDEX history_backfilled ON history (job_id, scheduled_at) WHERE origin = 5;

-- What an attempt cost beyond its time: microseconds of CPU, and units of the application's own as JSON. Null: not known.
ALTER TABLE history ADD COLUMN cpu bigint, ADD COLUMN units text;
-- The body's task, of what goes the straight way from submit to success: the sums need not look at each body. Null: look there.
ALTER TABLE run ADD COLUMN of_task integer;
ALTER TABLE history ADD COLUMN of_task integer;
ALTER TABLE attempt ADD COLUMN cpu bigint, ADD COLUMN units text,
    -- Whose it was, for the sums.
    ADD COLUMN job_id uuid, ADD COLUMN body_bucket integer, ADD COLUMN body_id uuid;

-- Sums by the day, rolled up from history and attempts with the figures by the minute. job_id is all zeros for one-offs.
CREATE TABLE usage (
    tenant integer NOT NULL,
    day    bigint NOT NULL,
    task   integer NOT NULL,                  -- 0: not known
    job_id uuid NOT NULL,
    unit   text NOT NULL,
    amount double precision NOT NULL,
    PRIMARY KEY (tenant, day, task, job_id, unit)
) WITH (fillfactor = 70);
CREATE INDEX usage_day ON usage (day);

CREATE TABLE budget (
    id     uuid PRIMARY KEY,
    tenant integer NOT NULL,
    name   text NOT NULL,
    spec   bytea NOT NULL,                    -- JSON
    state  text NOT NULL DEFAULT 'ok',
    since  bigint NOT NULL DEFAULT 0,
    spent  double precision NOT NULL DEFAULT 0,
    held   boolean NOT NULL DEFAULT false,     -- something is paused because of it
    UNIQUE (tenant, name)
);

DO $$
DECLARE
    of_tenant text;
BEGIN
    FOREACH of_tenant IN ARRAY ARRAY['usage', 'budget'] LOOP
        EXECUTE format('CREATE POLICY of_tenant ON %I FOR SELECT USING (tenant + 0 = '
                       '(SELECT nullif(current_setting(''mainspring.tenant'', true), '''')::integer))', of_tenant);
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', of_tenant);
    END LOOP;
END
$$;

-- Lists of a job's runs go by id.
DROP INDEX run_job;
CREATE INDEX run_job ON run (job_id, id) WHERE job_id IS NOT NULL;
DROP INDEX waiting_job;
CREATE INDEX waiting_job ON waiting (job_id, id) WHERE job_id IS NOT NULL;
