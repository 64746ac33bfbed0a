-- What tenants with a quota of log bytes have printed in a day.
CREATE TABLE log_day (
    tenant TEXT NOT NULL,
    day    INTEGER NOT NULL,
    bytes  INTEGER NOT NULL,
    PRIMARY KEY (day, tenant)
) STRICT, WITHOUT ROWID;
