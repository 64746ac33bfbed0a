-- expand
-- How many runs a worker has room for at a time, over all its queues; nobody has said: null.
ALTER TABLE session ADD COLUMN slots integer;
