-- expand
-- Sessions of the dashboard that were ended by a sign-out, until they would have ended anyway.
CREATE TABLE signed_out (
    id      text PRIMARY KEY,
    ends_at bigint NOT NULL
);
