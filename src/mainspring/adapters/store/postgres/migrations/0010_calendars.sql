-- Calendars, every version a row; the newest of a name counts. Whose schedules they touch is written into these at once.
CREATE TABLE calendar (
    tenant  integer NOT NULL,
    name    text NOT NULL,
    version integer NOT NULL,
    spec    bytea NOT NULL,
    deleted boolean NOT NULL DEFAULT false,
    made_by text NOT NULL DEFAULT '',
    why     text NOT NULL DEFAULT '',
    made_at bigint NOT NULL,
    PRIMARY KEY (tenant, name, version)
);
CREATE POLICY of_tenant ON calendar FOR SELECT
    USING (tenant + 0 = (SELECT nullif(current_setting('mainspring.tenant', true), '')::integer));
ALTER TABLE calendar ENABLE ROW LEVEL SECURITY;

-- tick: of a job that looks ahead, its next tick; next_fire then is when to look at it.
-- calendar_rev: how many changes the tenant's calendars have seen; whoever plans must know as many.
ALTER TABLE schedule ADD COLUMN tick bigint, ADD COLUMN calendar_rev bigint NOT NULL DEFAULT 0;
