-- Dead letters that are watched and replayed at a pace, and pauses that end by themselves.

-- resume_at: when a paused job goes on by itself. paused_until: ticks before it belong to a pause that is over.
ALTER TABLE schedule ADD COLUMN resume_at bigint, ADD COLUMN paused_until bigint, ADD COLUMN pause_why text NOT NULL DEFAULT '';
CREATE INDEX schedule_resumes ON schedule (resume_at) WHERE resume_at IS NOT NULL;
-- Null: until somebody says so.
ALTER TABLE pause ADD COLUMN until bigint;

-- Groups of dead letters that somebody was told of, and up to when they were looked at.
CREATE INDEX dead_letter_at ON dead_letter (at) WHERE state = 1;
CREATE TABLE dead_group (
    tenant      integer NOT NULL,
    task        integer NOT NULL,             -- 0: not known any more
    fingerprint text NOT NULL,
    since       bigint NOT NULL,              -- count is how many came since then
    count       bigint NOT NULL,
    seen_at     bigint NOT NULL,
    grew_at     bigint,
    PRIMARY KEY (tenant, task, fingerprint)
);
CREATE TABLE dead_watch (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    until    bigint NOT NULL
);
INSERT INTO dead_watch (until) VALUES (now_us());

-- Replays that are under way, or were: JSON. rev grows with every change.
CREATE TABLE replay (
    id       uuid PRIMARY KEY,
    tenant   text,                            -- null: of all
    open     boolean NOT NULL,
    rev      integer NOT NULL,
    ended_at bigint,
    record   bytea NOT NULL
);
CREATE INDEX replay_open ON replay (id) WHERE open;

CREATE POLICY of_tenant ON dead_group FOR SELECT
    USING (tenant + 0 = (SELECT nullif(current_setting('mainspring.tenant', true), '')::integer));
ALTER TABLE dead_group ENABLE ROW LEVEL SECURITY;
CREATE POLICY of_tenant ON replay FOR SELECT
    USING (tenant = (SELECT nullif(current_setting('mainspring.tenant_name', true), '')));
ALTER TABLE replay ENABLE ROW LEVEL SECURITY;
