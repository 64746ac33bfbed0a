-- expand
-- The version of the time zone database that a session's process goes by, such as 2026f; empty: it has not reported one.
ALTER TABLE session ADD COLUMN tzdata text NOT NULL DEFAULT '';
