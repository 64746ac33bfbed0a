-- expand
-- What tenants with a quota of log bytes have printed in a day. In several rows a tenant: those who report at the same
-- time should not wait for each other.
CREATE TABLE log_day (
    tenant integer NOT NULL,
    day    integer NOT NULL,
    slot   smallint NOT NULL,
    bytes  bigint NOT NULL,
    PRIMARY KEY (day, tenant, slot)
) WITH (fillfactor = 70);
CREATE POLICY of_tenant ON log_day FOR SELECT
    USING (tenant + 0 = (SELECT nullif(current_setting('mainspring.tenant', true), '')::integer));
ALTER TABLE log_day ENABLE ROW LEVEL SECURITY;
