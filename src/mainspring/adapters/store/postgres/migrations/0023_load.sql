-- expand
-- How much waits and runs, looked at once a minute; and when somebody looked, which is everybody's to know. Tenant -1: all together.
CREATE TABLE load (
    at      bigint NOT NULL,
    tenant  integer NOT NULL,
    queue   integer NOT NULL,
    queued  bigint NOT NULL,
    running bigint NOT NULL,
    lag     bigint NOT NULL,
    PRIMARY KEY (at, tenant, queue)
);
CREATE TABLE load_seen (at bigint PRIMARY KEY);
CREATE POLICY of_tenant ON load FOR SELECT
    USING (tenant + 0 = (SELECT nullif(current_setting('mainspring.tenant', true), '')::integer));
ALTER TABLE load ENABLE ROW LEVEL SECURITY;
