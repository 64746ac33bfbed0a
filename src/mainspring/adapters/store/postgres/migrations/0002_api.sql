-- What the HTTP API asks of the store: tenants and their keys, names and tags of one-offs, idempotency, the audit, pauses,
-- dead letters, reports of attempts, and figures by the minute.

-- Whatever belongs to a tenant says so itself. What was there before tenants were kept is the default tenant's.
INSERT INTO name (kind, name) VALUES (1, 'default') ON CONFLICT DO NOTHING;
DO $$
DECLARE
    number integer := (SELECT id FROM name WHERE kind = 1 AND name = 'default');
    of_tenant text;
BEGIN
    FOREACH of_tenant IN ARRAY ARRAY['body', 'attempt', 'ledger', 'outbox'] LOOP
        EXECUTE format('ALTER TABLE %I ADD COLUMN tenant integer NOT NULL DEFAULT %s', of_tenant, number);
        EXECUTE format('ALTER TABLE %I ALTER COLUMN tenant DROP DEFAULT', of_tenant);
    END LOOP;
END
$$;

-- What people call a one-off, as JSON; null: nothing.
ALTER TABLE body ADD COLUMN about bytea;
-- Figures go by queue. 0: not known any more.
ALTER TABLE attempt ADD COLUMN queue integer NOT NULL DEFAULT 0;
-- When it last became eligible; null: when it was made.
ALTER TABLE run ADD COLUMN queued_at bigint;
ALTER TABLE history ADD COLUMN queued_at bigint, ADD COLUMN start_by bigint, ADD COLUMN deadline bigint;
ALTER TABLE session
    ADD COLUMN queues text[] NOT NULL DEFAULT '{}',
    ADD COLUMN tasks text[] NOT NULL DEFAULT '{}',
    ADD COLUMN owner text NOT NULL DEFAULT '',
    ADD COLUMN serves text NOT NULL DEFAULT '',
    ADD COLUMN lease bigint NOT NULL DEFAULT 0,
    ADD COLUMN draining boolean NOT NULL DEFAULT false;

-- Lists go by id. The runs of a job too: nobody looks them up by their tick.
CREATE INDEX waiting_tenant ON waiting (tenant, id);
CREATE INDEX history_tenant ON history (tenant, id);
DROP INDEX history_job;
CREATE INDEX history_job ON history (job_id, id) WHERE job_id IS NOT NULL;
CREATE INDEX job_tenant ON job (tenant, id);
-- For the figures: they cost next to nothing when a run ends, and rows lie in the order of their time.
CREATE INDEX history_finished ON history USING brin (finished_at) WITH (pages_per_range = 32, autosummarize = on);
CREATE INDEX attempt_ended ON attempt USING brin (ended_at) WITH (pages_per_range = 32, autosummarize = on);

-- Tags of one-offs. A label lies in the bucket of its body and goes with it.
CREATE TABLE label (
    bucket integer NOT NULL,
    id     uuid NOT NULL,
    tenant integer NOT NULL,
    label  text NOT NULL,
    PRIMARY KEY (bucket, id, label)
) PARTITION BY RANGE (bucket);
CREATE TABLE label_kept PARTITION OF label FOR VALUES FROM (-1) TO (0);
CREATE INDEX label_label ON label (tenant, label, id);

-- A reader with an end is forgotten when it has not shown itself until then.
ALTER TABLE outbox_cursor ADD COLUMN until bigint;
-- Whoever stands before this place may have missed something: it was forgotten, or nobody read for a while.
CREATE TABLE outbox_horizon (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    xid      xid8 NOT NULL,
    id       bigint NOT NULL
);

-- Keys of callers, as hashes, and what was made with them: 1 a run, 2 a job.
CREATE TABLE idempotency (
    tenant      integer NOT NULL,
    key         bytea NOT NULL,
    kind        smallint NOT NULL,
    id          uuid NOT NULL,
    fingerprint bytea NOT NULL,
    expires_at  bigint NOT NULL,
    PRIMARY KEY (tenant, key)
);
CREATE INDEX idempotency_expires ON idempotency (expires_at);

-- Changes by people. The tenant is a name here, since it may be one that has nothing else; empty: of none.
CREATE TABLE audit (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       bigint NOT NULL,
    count    integer NOT NULL,
    tenant   text NOT NULL,
    author   text NOT NULL,
    action   text NOT NULL,
    target   text NOT NULL,
    why      text NOT NULL,
    before   bytea,
    after    bytea
);
CREATE INDEX audit_tenant ON audit (tenant, position);
CREATE INDEX audit_target ON audit (target, position);

-- Tenants that somebody has made. running is the quota that a claim must keep.
CREATE TABLE tenant (
    number     integer PRIMARY KEY,
    created_at bigint NOT NULL,
    running    bigint,
    quotas     bytea NOT NULL
);
CREATE INDEX tenant_running ON tenant (number) WHERE running IS NOT NULL;

CREATE TABLE api_key (
    id           text PRIMARY KEY,
    tenant       text,                        -- null: bound to none
    name         text NOT NULL,
    role         text NOT NULL,
    secret_hash  bytea NOT NULL,
    queues       text[] NOT NULL,
    made_by      text NOT NULL,
    created_at   bigint NOT NULL,
    expires_at   bigint,
    revoked_at   bigint,
    last_used_at bigint
);

-- What is not claimed. 0: every tenant, every queue.
CREATE TABLE pause (
    tenant integer NOT NULL,
    queue  integer NOT NULL,
    since  bigint NOT NULL,
    author text NOT NULL,
    why    text NOT NULL,
    PRIMARY KEY (tenant, queue)
);

-- Runs that have failed: 1 open, 2 replayed, 3 discarded.
CREATE TABLE dead_letter (
    run_id      uuid PRIMARY KEY,
    state       smallint NOT NULL DEFAULT 1,
    tenant      integer NOT NULL,
    task        integer,
    queue       integer NOT NULL,
    at          bigint NOT NULL,
    fingerprint text NOT NULL
);
CREATE INDEX dead_letter_tenant ON dead_letter (tenant, run_id) WHERE state = 1;
CREATE INDEX dead_letter_kind ON dead_letter (fingerprint, run_id);

-- The newest report of a run.
CREATE TABLE progress (
    run_id uuid PRIMARY KEY,
    at     bigint NOT NULL,
    done   double precision NOT NULL,
    total  double precision,
    note   text NOT NULL
) WITH (fillfactor = 70);

-- What attempts printed, dropped by the day.
CREATE SEQUENCE log_position;
CREATE TABLE log (
    run_id   uuid NOT NULL,
    position bigint NOT NULL DEFAULT nextval('log_position'),
    at       bigint NOT NULL,
    attempt  smallint NOT NULL,
    text     text NOT NULL
) PARTITION BY RANGE (at);
CREATE INDEX log_run ON log (run_id, position);

-- Figures by the minute, rolled up from history, and up to when they are.
CREATE TABLE minute (
    at         bigint NOT NULL,
    tenant     integer NOT NULL,
    queue      integer NOT NULL,
    succeeded  bigint NOT NULL,
    failed     bigint NOT NULL,
    cancelled  bigint NOT NULL,
    skipped    bigint NOT NULL,
    retried    bigint NOT NULL,
    started    bigint NOT NULL,
    late_total bigint NOT NULL,
    late_most  bigint NOT NULL,
    took_total bigint NOT NULL,
    took_most  bigint NOT NULL,
    PRIMARY KEY (at, tenant, queue)
);
CREATE TABLE rolled_up (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    until    bigint NOT NULL
);
INSERT INTO rolled_up (until) SELECT coalesce(min(finished_at), now_us()) FROM history;
