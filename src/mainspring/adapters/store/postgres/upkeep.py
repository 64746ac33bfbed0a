"""Vacuum of the live tables, when it is due: autovacuum looks once a minute, and a queue cannot wait that long."""

import asyncpg

from mainspring.adapters.store.postgres.database import Connection
from mainspring.adapters.store.postgres.part import Part
from mainspring.runtime.log import get_logger

_log = get_logger("mainspring.upkeep")

#: Dead rows make claims slower from about here on; a vacuum then takes some tens of milliseconds.
_DEAD_ROWS = 50_000


class Upkeep(Part):
    async def tidy(self) -> None:
        await self._db.run(self._tidy)

    async def _tidy(self, connection: Connection) -> None:
        rows = await connection.fetch(self._db.sql["dead_rows"])
        due = [row["relname"] for row in rows if row["dead"] > _DEAD_ROWS]
        if not due:
            return
        try:
            for table in due:
                # What another process is just vacuuming is passed over. A lock of our own would outlive a caller that
                # is cancelled here: the connection goes back to the pool, and the lock with it.
                # Truncating would need a lock that stops everybody; the pages are wanted again at once anyway.
                await connection.execute(f"VACUUM (TRUNCATE off, SKIP_LOCKED on) {self._db.schema}.{table}")
        except asyncpg.QueryCanceledError:
            _log.warning("a vacuum took too long; autovacuum will do it", tables=due)
