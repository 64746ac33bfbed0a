-- expand
-- How far the clock of a session's node is ahead of the store's, and how wrong that may be; nobody has said: null.
ALTER TABLE session ADD COLUMN clock_offset INTEGER;
ALTER TABLE session ADD COLUMN clock_error INTEGER;
