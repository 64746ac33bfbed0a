-- expand
-- What one person or key did: without it a page of the audit reads all of it for somebody who did little.
CREATE INDEX audit_author ON audit (author, position);
