-- expand
-- Data centres.
--
-- A tick of a job that goes to several data centres has a row in the ledger for each of them; target: its name. Of all other
-- ticks it is empty.
ALTER TABLE ledger ADD COLUMN target text NOT NULL DEFAULT '';
ALTER TABLE ledger DROP CONSTRAINT ledger_pkey;
ALTER TABLE ledger ADD PRIMARY KEY (job_id, scheduled_at, target);

-- Orders of preference that runs require, by lane, and the data centre whose workers have that lane. Lanes are names of
-- kind 4; the order is the word among them with a > in it.
CREATE TABLE datacenter_order (
    lane    integer PRIMARY KEY,
    serving text NOT NULL,
    why     text NOT NULL DEFAULT '',
    since   bigint NOT NULL
);
