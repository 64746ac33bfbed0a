-- expand
-- How many runs began how late and took how long, by bucket, rolled up from history with the figures by the minute.
CREATE TABLE timing (
    at     bigint NOT NULL,
    tenant integer NOT NULL,
    queue  integer NOT NULL,
    bucket integer NOT NULL,
    late   bigint NOT NULL,
    took   bigint NOT NULL,
    PRIMARY KEY (at, tenant, queue, bucket)
) WITH (fillfactor = 70);
CREATE POLICY of_tenant ON timing FOR SELECT
    USING (tenant + 0 = (SELECT nullif(current_setting('mainspring.tenant', true), '')::integer));
ALTER TABLE timing ENABLE ROW LEVEL SECURITY;
