-- What schedules owe: how each stands, as JSON, and when it is looked at again.
CREATE TABLE slo (
    job_id     uuid PRIMARY KEY,
    tenant     integer NOT NULL,
    rev        bigint NOT NULL DEFAULT 1,
    next_check bigint NOT NULL,
    state      bytea NOT NULL
);
CREATE INDEX slo_check ON slo (next_check);
CREATE POLICY of_tenant ON slo FOR SELECT
    USING (tenant + 0 = (SELECT nullif(current_setting('mainspring.tenant', true), '')::integer));
ALTER TABLE slo ENABLE ROW LEVEL SECURITY;
