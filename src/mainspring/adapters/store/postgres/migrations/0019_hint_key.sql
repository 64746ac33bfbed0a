-- expand
-- What hints are sealed with where the settings name no key. The store's own id would not do: it stands in the names of queues, groups
-- and keys of every engine.
ALTER TABLE meta ADD COLUMN hint_key uuid NOT NULL DEFAULT gen_random_uuid();
