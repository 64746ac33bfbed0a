"""Logs queued runs that no live worker can start, such as those in a queue that no worker serves."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MINUTE, SECOND, Micros
from mainspring.core.model.runs.obstacles import Obstacles
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.catalog import Pause, SessionView
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.service import TickingService

_SHARD = 0
#: A run is logged if two successive checks find it: workers that restart are soon back.
_EVERY: Micros = 5 * SECOND
_LOGGED_EVERY: Micros = 10 * MINUTE
_MOST_FRONTS = 100
_MOST_REMEMBERED = 1_000

#: Tenant, queue and task.
_Kind: TypeAlias = tuple[str, str, str]


class UnservedStore(Protocol):
    """The part of the store that the service uses."""

    async def queue_fronts(self, limit: int) -> list[RunId]: ...

    async def runs(self, ids: Sequence[RunId]) -> list[RunView | None]: ...

    async def sessions(self, kind: Literal["worker", "scheduler"]) -> list[SessionView]: ...

    async def pauses(self) -> list[Pause]: ...


class UnservedRuns(TickingService):
    """Checks if this process owns the first shard. Looks at the first run of each queue only, which is cheap.

    It finds what no request can warn about: runs that were submitted to the store directly, ticks of schedules, and
    runs whose last worker has stopped.
    """

    def __init__(
        self, store: UnservedStore, wakeups: Wakeups, clock: Clock, owned: Callable[[], Mapping[int, int]]
    ) -> None:
        super().__init__("unserved", clock, wakeups.listen(()))
        self._store = store
        self._owned = owned
        #: What the last check found.
        self._found: set[_Kind] = set()
        #: When each kind was last logged.
        self._logged: dict[_Kind, Micros] = {}

    async def tick(self) -> Micros:
        found = await self._find() if _SHARD in self._owned() else {}
        for kind, (run, obstacles) in found.items():
            if kind in self._found and self._may_log(kind):
                self.log.warning(
                    "queued run cannot start",
                    task=run.task,
                    queue=run.queue,
                    run=run.id,
                    tenant=run.tenant,
                    reason="; ".join(obstacles),
                )
        self._found = set(found)
        return _EVERY

    async def _find(self) -> dict[_Kind, tuple[RunView, tuple[str, ...]]]:
        fronts = await self._store.queue_fronts(_MOST_FRONTS)
        if not fronts:
            return {}
        runs = [run for run in await self._store.runs(fronts) if run is not None]
        obstacles = Obstacles(await self._store.sessions("worker"))
        found = {
            (run.tenant, run.queue, run.task): (run, reasons)
            for run in runs
            if (reasons := obstacles.find(run.tenant, run.queue, run.task, run.policy.requires, (), run.priority))
        }
        if not found:
            return {}
        pauses = await self._store.pauses()
        return {kind: item for kind, item in found.items() if not any(_covers(pause, item[0]) for pause in pauses)}

    def _may_log(self, kind: _Kind) -> bool:
        now = self.clock.monotonic()
        if now - self._logged.get(kind, -_LOGGED_EVERY) < _LOGGED_EVERY:
            return False
        if len(self._logged) >= _MOST_REMEMBERED:
            self._logged.clear()
        self._logged[kind] = now
        return True


def _covers(pause: Pause, run: RunView) -> bool:
    return pause.tenant in (None, run.tenant) and pause.queue in (None, run.queue)
