-- What an attempt wants the next one to know, as JSON. The newest stands; it goes with its run.
CREATE TABLE checkpoint (
    run_id uuid PRIMARY KEY,
    tenant integer NOT NULL,
    state  bytea NOT NULL
) WITH (fillfactor = 70);
CREATE POLICY of_tenant ON checkpoint FOR SELECT
USING (tenant + 0 = (SELECT nullif(current_setting('mainspring.tenant', true), '')::integer));
ALTER TABLE checkpoint ENABLE ROW LEVEL SECURITY;
