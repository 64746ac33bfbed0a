"""The memory store, assembled from its parts."""

from mainspring.core.model.base.instant import Instant
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.catalog import Reads
from mainspring.core.ports.wakeups import Wakeups
from mainspring.stores.memory.records.access import MemoryAccess
from mainspring.stores.memory.records.calendars import MemoryCalendars
from mainspring.stores.memory.records.catalog import MemoryCatalog
from mainspring.stores.memory.records.coordination import MemoryCoordination
from mainspring.stores.memory.records.datacenters import MemoryDatacenters
from mainspring.stores.memory.records.dead_letters import MemoryDeadLetters
from mainspring.stores.memory.records.explaining import MemoryExplanations
from mainspring.stores.memory.records.metrics import MemoryMetrics
from mainspring.stores.memory.records.notifications import MemoryNotifications
from mainspring.stores.memory.records.operations import MemoryOperations
from mainspring.stores.memory.records.reading import MemoryOutbox, MemoryReads
from mainspring.stores.memory.records.reports import MemoryReports
from mainspring.stores.memory.records.slos import MemorySlos
from mainspring.stores.memory.records.tasks import MemoryTasks
from mainspring.stores.memory.records.usage import MemoryUsage
from mainspring.stores.memory.tables import Tables
from mainspring.stores.memory.work.reaping import MemoryMaintenance
from mainspring.stores.memory.work.staging import MemoryScheduling
from mainspring.stores.memory.work.submissions import MemorySubmissions
from mainspring.stores.memory.work.workforce import MemoryWorkers
from mainspring.stores.tenant_scope import TenantScope


class MemoryStore(
    MemorySubmissions,
    MemoryWorkers,
    MemoryScheduling,
    MemoryMaintenance,
    MemoryReads,
    MemoryOutbox,
    MemoryCatalog,
    MemoryMetrics,
    MemoryExplanations,
    MemoryUsage,
    MemoryReports,
    MemoryAccess,
    MemoryOperations,
    MemoryCoordination,
    MemoryDeadLetters,
    MemoryCalendars,
    MemorySlos,
    MemoryDatacenters,
    MemoryNotifications,
    MemoryTasks,
):
    """Store and coordinator of one process, with the given clock.

    No method awaits once it has begun, so each is a transaction on the loop that calls it.
    """

    def __init__(self, clock: Clock, shards: int = 100, wakeups: Wakeups | None = None) -> None:
        super().__init__(Tables(clock, shards, wakeups))
        self.shards = shards

    async def open(self) -> None:
        """Do nothing: there is nothing to connect to."""

    async def close(self) -> None:
        """Do nothing: the rows live as long as the object."""

    def next_change(self) -> Instant | None:
        """Return when time alone next makes work due; a past time means unhandled work, None that there is none.

        A virtual clock may jump to this time: before it, polling finds nothing new.
        """
        return self._tables.next_change()

    def seen_by(self, tenant: str | None) -> Reads:
        return self if tenant is None else TenantScope(self, tenant)

    def listed_by(self, tenant: str | None) -> Reads:
        return self.seen_by(tenant)
