"""The store in one SQLite file: for a laptop, a small service, or a few processes of one machine."""

from pathlib import Path

from mainspring.core.model.base.ids import MAX_SHARDS
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.catalog import Reads
from mainspring.stores.sqlite.file_guard import FileGuard
from mainspring.stores.sqlite.records.access import SqliteAccess
from mainspring.stores.sqlite.records.calendars import SqliteCalendars
from mainspring.stores.sqlite.records.catalog import SqliteCatalog
from mainspring.stores.sqlite.records.coordination import SqliteCoordination
from mainspring.stores.sqlite.records.datacenters import SqliteDatacenters
from mainspring.stores.sqlite.records.dead_letters import SqliteDeadLetters
from mainspring.stores.sqlite.records.details import SqliteDetails
from mainspring.stores.sqlite.records.explaining import SqliteExplanations
from mainspring.stores.sqlite.records.metrics import SqliteMetrics
from mainspring.stores.sqlite.records.notifications import SqliteNotifications
from mainspring.stores.sqlite.records.operations import SqliteOperations
from mainspring.stores.sqlite.records.reading import SqliteOutbox
from mainspring.stores.sqlite.records.reports import SqliteReports
from mainspring.stores.sqlite.records.slos import SqliteSlos
from mainspring.stores.sqlite.records.tasks import SqliteTasks
from mainspring.stores.sqlite.records.usage import SqliteUsage
from mainspring.stores.sqlite.steady_time import SteadyTime
from mainspring.stores.sqlite.threads import Reader, Writer
from mainspring.stores.sqlite.upkeep.archiving import SqliteArchives
from mainspring.stores.sqlite.work.jobs import SqliteJobs
from mainspring.stores.sqlite.work.reaping import SqliteMaintenance
from mainspring.stores.sqlite.work.staging import SqliteScheduling
from mainspring.stores.sqlite.work.submissions import SqliteSubmissions
from mainspring.stores.tenant_scope import TenantScope


class SqliteStore(
    SqliteSubmissions,
    SqliteJobs,
    SqliteScheduling,
    SqliteMaintenance,
    SqliteArchives,
    SqliteOutbox,
    SqliteCatalog,
    SqliteDetails,
    SqliteMetrics,
    SqliteExplanations,
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

    A handler must not open the file with the standard library's ``sqlite3``: two copies of SQLite in one process break
    each other's locks. A forked child must not use the store either.
    """

    def __init__(self, path: Path, clock: Clock, shards: int = 100) -> None:
        assert 0 < shards <= MAX_SHARDS
        # A task may change the working directory of the process.
        self.path = path = path.absolute()
        self.shards = shards
        self._time = SteadyTime(clock)
        self._guard = FileGuard(path)
        self._writer = Writer(path, self._guard, self._time, shards)
        self._reader = Reader(path, self._guard)
        self._display_reader = Reader(path, self._guard, "mainspring-sqlite-browser")

    async def open(self) -> None:
        self._guard.reset()
        await self._writer.start()
        try:
            await self._reader.start()
            await self._display_reader.start()
            # The number of shards was fixed when the file was created.
            self.shards = int(await self._reader.read("shards"))
            self._guard.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self._guard.stop()
        await self._display_reader.stop()
        await self._reader.stop()
        await self._writer.stop()
        self._guard.put_log_aside()

    def seen_by(self, tenant: str | None) -> Reads:
        return self if tenant is None else TenantScope(self, tenant)

    def listed_by(self, tenant: str | None) -> Reads:
        return self.seen_by(tenant)
