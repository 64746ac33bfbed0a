"""Maintains the data centers: records where this process is, and reassigns work of those without a live worker."""

from collections.abc import Callable

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.datacenters import Datacenters
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.service import TickingService

_EVERY: Micros = SECOND


class DatacenterKeeper(TickingService):
    """Needs no leader: the store changes nothing if all assignments are right."""

    def __init__(
        self,
        store: Datacenters,
        wakeups: Wakeups,
        clock: Clock,
        *,
        datacenter: str = "",
        version: str = "",
        member: Callable[[], SessionId | None] = lambda: None,
    ) -> None:
        """``member``: returns the current session id, which changes when the process joins again.

        Joining transmits only a name, so the data center and the version are recorded here.
        """
        super().__init__("data centers", clock, wakeups.listen([]))
        self._store = store
        self._datacenter = datacenter
        self._version = version
        self._member = member
        self._said: SessionId | None = None
        self._serving: dict[str, str] = {}

    async def tick(self) -> Micros:
        member = self._member()
        if (self._datacenter or self._version) and member is not None and member != self._said:
            await self._store.set_datacenter(member, self._datacenter, self._version)
            self._said = member
        for order in await self._store.serve_orders():
            if self._serving.get(order.word, order.serving) != order.serving:
                self.log.warning(
                    "another data center serves", order=order.word, datacenter=order.serving, why=order.why
                )
            self._serving[order.word] = order.serving
        return _EVERY
