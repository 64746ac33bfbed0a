-- expand
-- Whoever tells others what happened need not ask again what the runs of a plain submit are: their row in the outbox says so,
-- as numbers of names, in the order of the runs. Null: to be looked up.
ALTER TABLE outbox ADD COLUMN tasks integer[], ADD COLUMN queues integer[];
-- Ids are nearly random: to compress them costs more than it saves.
ALTER TABLE outbox ALTER COLUMN runs SET STORAGE EXTERNAL;
