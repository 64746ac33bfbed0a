-- expand
-- How far the clock of a session's node is ahead of this one, and how wrong that may be; nobody has said: null.
ALTER TABLE session ADD COLUMN clock_offset bigint, ADD COLUMN clock_error bigint;
-- The schema version that its program knows: contracts wait for those that know less.
ALTER TABLE session ADD COLUMN knows integer;
