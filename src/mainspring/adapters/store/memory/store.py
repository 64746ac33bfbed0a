"""The store in memory, put together."""

from mainspring.adapters.store.memory.access import MemoryAccess
from mainspring.adapters.store.memory.calendars import MemoryCalendars
from mainspring.adapters.store.memory.catalog import MemoryReports
from mainspring.adapters.store.memory.coordination import MemoryCoordination
from mainspring.adapters.store.memory.datacenters import MemoryDatacenters
from mainspring.adapters.store.memory.dead_letters import MemoryDeadLetters
from mainspring.adapters.store.memory.explaining import MemoryExplaining
from mainspring.adapters.store.memory.notifications import MemoryNotifications
from mainspring.adapters.store.memory.operations import MemoryOperations
from mainspring.adapters.store.memory.reading import MemoryOutbox, MemoryReading
from mainspring.adapters.store.memory.reaping import MemoryReaping
from mainspring.adapters.store.memory.slos import MemorySlos
from mainspring.adapters.store.memory.staging import MemoryStaging
from mainspring.adapters.store.memory.submissions import MemorySubmissions
from mainspring.adapters.store.memory.tables import Tables
from mainspring.adapters.store.memory.tasks import MemoryTasks
from mainspring.adapters.store.memory.usage import MemoryUsage
from mainspring.adapters.store.memory.workforce import MemoryWorkforce
from mainspring.adapters.store.seen import Seen
from mainspring.domain.instant import Instant
from mainspring.ports.catalog import Reads
from mainspring.ports.clock import Clock
from mainspring.ports.wakeups import Wakeups


class MemoryStore(
    MemorySubmissions,
    MemoryWorkforce,
    MemoryStaging,
    MemoryReaping,
    MemoryReading,
    MemoryOutbox,
    MemoryExplaining,
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
    """Store and coordinator of one process, by the given clock.

    No method waits for anything once it has begun, so each is a transaction by itself on the loop that calls it.
    """

    def __init__(self, clock: Clock, shards: int = 100, wakeups: Wakeups | None = None) -> None:
        super().__init__(Tables(clock, shards, wakeups))
        self.shards = shards

    async def open(self) -> None:
        """There is nothing to connect to."""

    async def close(self) -> None:
        """What it holds goes with the object."""

    def next_change(self) -> Instant | None:
        """When something here comes due by itself, or has and was not dealt with; None: never.

        A clock that jumps may jump there: up to then nobody who looks finds anything new.
        """
        return self._tables.next_change()

    def seen_by(self, tenant: str | None) -> Reads:
        return self if tenant is None else Seen(self, tenant)

    def listed_by(self, tenant: str | None) -> Reads:
        return self.seen_by(tenant)
