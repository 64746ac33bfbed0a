"""An external coordinator in memory: for tests of what all of them have in common, without a server."""

from collections.abc import Callable, Mapping

from mainspring.core.model.base.errors import Fenced
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import Micros
from mainspring.core.ports.registry import View


class MemoryRegistry:
    def __init__(self) -> None:
        #: How long the lease of each member is; it ends only by `exit`.
        self._leases: dict[SessionId, Micros] = {}
        self._owners: dict[int, SessionId] = {}
        self._version = 0

    async def open(self, namespace: str) -> None: ...

    async def close(self) -> None: ...

    async def enter(self, member: SessionId, ttl: Micros) -> None:
        self._leases[member] = ttl

    async def look(self, member: SessionId) -> View:
        if member not in self._leases:
            raise Fenced("not a member")
        members = frozenset(self._leases)
        return View(members=members, owners=self._owners, version=self._version, lease=self._leases[member])

    async def write(self, member: SessionId, owners: Mapping[int, SessionId], version: int) -> bool:
        if version != self._version or member not in self._leases:
            return False
        self._owners, self._version = dict(owners), version + 1
        return True

    async def exit(self, member: SessionId) -> None:
        self._leases.pop(member, None)

    def on_change(self, listener: Callable[[], None]) -> None: ...
