-- Calendars, every version a row; the newest of a name counts. Whose schedules they touch is written into these at once.
CREATE TABLE calendar (
    tenant  TEXT NOT NULL,
    name    TEXT NOT NULL,
    version INTEGER NOT NULL,
    spec    TEXT NOT NULL,
    deleted INTEGER NOT NULL DEFAULT 0,
    made_by TEXT NOT NULL DEFAULT '',
    why     TEXT NOT NULL DEFAULT '',
    made_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, name, version)
) STRICT, WITHOUT ROWID;

-- tick: of a job that looks ahead, its next tick; next_fire then is when to look at it.
ALTER TABLE schedule ADD COLUMN tick INTEGER;
-- How many changes the tenant's calendars have seen; whoever plans must know as many.
ALTER TABLE schedule ADD COLUMN calendar_rev INTEGER NOT NULL DEFAULT 0;
