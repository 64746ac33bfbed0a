"""Shard ownership granted by an external coordinator and confirmed by the store."""

from collections.abc import Callable, Collection
from contextlib import suppress

from mainspring.core.model.base.errors import Fenced, StoreUnavailable
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import Micros
from mainspring.core.model.cluster.shard import freed, taken
from mainspring.core.ports.registry import Registry
from mainspring.core.ports.storage.coordination import EpochCoordinator, Membership
from mainspring.core.runtime.log import get_logger

_log = get_logger("mainspring.shards")

#: After this many lost write conflicts a member tries again at its next renewal.
_TRIES = 20
#: How much longer the coordinator's lease is. The store's lease is the short one, which detects dead members. External
#: coordinators do not grant leases that short, or lose them in each of their elections.
LONGER = 2


class EpochCheckedCoordinator:
    """A coordinator that combines an external registry, which grants shards, and a store, which confirms them.

    1. A member is a session of the store that also has a lease in the registry. It is alive while both leases last.
    2. A renewal needs both, the store's last. A member cut off from either is soon expired in the store, for good;
       shards that the registry still holds for it count for nothing.
    3. A granted shard is sealed in the store before it counts: its epoch grows there, whichever coordinator granted it.
    """

    def __init__(self, store: EpochCoordinator, registry: Registry) -> None:
        self._store = store
        self._registry = registry
        #: Members that were in the registry at the last renewal but have expired in the store, for good.
        self._expired: frozenset[SessionId] = frozenset()

    async def start(self) -> None:
        await self._registry.open(await self._store.identity())

    async def stop(self) -> None:
        await self._registry.close()

    def on_change(self, listener: Callable[[], None]) -> None:
        self._registry.on_change(listener)

    async def join(self, name: str, ttl: Micros) -> SessionId:
        member = await self._store.join(name, ttl)
        try:
            await self._registry.enter(member, LONGER * ttl)
        except Exception:
            # Whether it was registered or not, this id is never used again.
            await self._store.leave(member)
            raise
        return member

    async def renew(self, member: SessionId, ttl: Micros) -> Membership:
        view = await self._registry.look(member)
        try:
            known = await self._store.renew(member, ttl)
        except Fenced:
            with suppress(StoreUnavailable):
                await self._registry.exit(member)
            raise
        # In this order: members of the registry have joined the store before, so a member missing there has expired.
        self._expired = view.members - set(known.members)
        held = {shard for shard, owner in view.owners.items() if owner == member}
        if strays := held - known.owned.keys():
            _log.warning("shards granted but epoch check failed, released", member=member, shards=len(strays))
            await self.give_up(member, strays)
        return Membership(
            now=known.now,
            members=tuple(sorted(view.members - self._expired)),
            owned={shard: epoch for shard, epoch in known.owned.items() if shard in held},
            first_end=known.first_end,
            lease=view.lease,
        )

    async def take(self, member: SessionId, shards: Collection[int]) -> dict[int, int]:
        if not shards:
            return {}
        # For the order see ``Sealing.seal``.
        epochs = await self._store.epochs(shards)
        try:
            granted = await self._grant(member, epochs)
        except Fenced:
            return {}
        return await self._store.seal(member, {shard: epochs[shard] for shard in granted})

    async def give_up(self, member: SessionId, shards: Collection[int]) -> None:
        for _ in range(_TRIES):
            view = await self._registry.look(member)
            owners = freed(view.owners, member, shards)
            if owners == view.owners or await self._registry.write(member, owners, view.version):
                await self._store.give_up(member, shards)
                return
        raise StoreUnavailable("others were always quicker to change who owns what")

    async def leave(self, member: SessionId) -> None:
        try:
            # First, because the other members wait for it.
            await self._registry.exit(member)
        finally:
            await self._store.leave(member)

    async def _grant(self, member: SessionId, shards: Collection[int]) -> list[int]:
        """Return those of ``shards`` that belong to the member now.

        A member that has expired in the store never acts again, however long the registry still holds its lease.
        """
        for _ in range(_TRIES):
            view = await self._registry.look(member)
            owners = taken(view.owners, view.members - self._expired, member, shards)
            if owners == view.owners or await self._registry.write(member, owners, view.version):
                return [shard for shard in shards if owners[shard] == member]
        return []
