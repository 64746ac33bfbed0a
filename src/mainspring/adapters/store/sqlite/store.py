"""The store in one SQLite file: for a laptop, a small service, or a few processes of one machine."""

from pathlib import Path

from mainspring.adapters.store.seen import Seen
from mainspring.adapters.store.sqlite.access import SqliteAccess
from mainspring.adapters.store.sqlite.archiving import SqliteArchiving
from mainspring.adapters.store.sqlite.calendars import SqliteCalendars
from mainspring.adapters.store.sqlite.catalog import SqliteCatalog, SqliteReports
from mainspring.adapters.store.sqlite.connection import FileGuard
from mainspring.adapters.store.sqlite.coordination import SqliteCoordination
from mainspring.adapters.store.sqlite.datacenters import SqliteDatacenters
from mainspring.adapters.store.sqlite.dead_letters import SqliteDeadLetters
from mainspring.adapters.store.sqlite.explaining import SqliteExplaining
from mainspring.adapters.store.sqlite.jobs import SqliteJobs
from mainspring.adapters.store.sqlite.notifications import SqliteNotifications
from mainspring.adapters.store.sqlite.operations import SqliteOperations
from mainspring.adapters.store.sqlite.reading import SqliteOutbox
from mainspring.adapters.store.sqlite.reaping import SqliteReaping
from mainspring.adapters.store.sqlite.slos import SqliteSlos
from mainspring.adapters.store.sqlite.staging import SqliteStaging
from mainspring.adapters.store.sqlite.steady_time import SteadyTime
from mainspring.adapters.store.sqlite.submissions import SqliteSubmissions
from mainspring.adapters.store.sqlite.tasks import SqliteTasks
from mainspring.adapters.store.sqlite.threads import Reader, Writer
from mainspring.adapters.store.sqlite.usage import SqliteUsage
from mainspring.domain.ids import MAX_SHARDS
from mainspring.ports.catalog import Reads
from mainspring.ports.clock import Clock


class SqliteStore(
    SqliteSubmissions,
    SqliteJobs,
    SqliteStaging,
    SqliteReaping,
    SqliteArchiving,
    SqliteOutbox,
    SqliteCatalog,
    SqliteExplaining,
    SqliteUsage,
    SqliteReports,
    SqliteAccess,
    SqliteOperations,
    SqliteCoordination,
    SqliteDeadLetters,
    SqliteCalendars,
    SqliteSlos,
    SqliteDatacenters,
    SqliteNotifications,
    SqliteTasks,
):
    """Store and coordinator. Several processes may open the same file; several loops may use the same object.

    A handler must not open the file with the standard library's ``sqlite3``: two copies of SQLite in one process undo
    each other's locks. A forked child must not use it either.
    """

    def __init__(self, path: Path, clock: Clock, shards: int = 100) -> None:
        assert 0 < shards <= MAX_SHARDS
        self.path = path
        self.shards = shards
        self._time = SteadyTime(clock)
        self._guard = FileGuard(path)
        self._writer = Writer(path, self._time, shards)
        self._reader = Reader(path)
        self._browser = Reader(path, "mainspring-sqlite-browser")

    async def open(self) -> None:
        await self._writer.start()
        try:
            await self._reader.start()
            await self._browser.start()
            # The file knows better: it was fixed when the store was made.
            self.shards = int(await self._reader.read("shards"))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._browser.stop()
        await self._reader.stop()
        await self._writer.stop()

    def seen_by(self, tenant: str | None) -> Reads:
        return self if tenant is None else Seen(self, tenant)

    def listed_by(self, tenant: str | None) -> Reads:
        return self.seen_by(tenant)
