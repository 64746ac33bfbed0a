"""The sharded store: data centers of processes.

A worker has the same session id on every server, a scheduler a different one on each.
"""

from collections.abc import Collection
from itertools import chain

import msgspec

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.cluster.clock_guard import ClockReading
from mainspring.core.ports.storage.datacenters import DatacenterLoad, DatacenterStatus, PreferenceOrder
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.sharded.merging import merge_by
from mainspring.stores.sharded.mixin import ShardedMixin


class ShardedDataCenterMixin(ShardedMixin):
    async def datacenters(self) -> list[DatacenterStatus]:
        found = await self._servers.those_there(PostgresStore.datacenters)
        return sorted(merge_by(chain(*found.values()), lambda place: place.name, _both), key=lambda place: place.name)

    async def set_datacenter(self, session: SessionId, datacenter: str, version: str) -> None:
        await self._servers.those_there(lambda store: store.set_datacenter(session, datacenter, version))

    async def record_clock(self, sessions: Collection[SessionId], reading: ClockReading, tzdata: str) -> None:
        await self._servers.those_there(lambda store: store.record_clock(sessions, reading, tzdata))

    async def serve_orders(self) -> list[PreferenceOrder]:
        return _by_word((await self._servers.those_there(PostgresStore.serve_orders)).values())

    async def orders(self) -> list[PreferenceOrder]:
        return _by_word((await self._servers.those_there(PostgresStore.orders)).values())

    async def datacenter_loads(self) -> list[DatacenterLoad]:
        found = await self._servers.everywhere(PostgresStore.datacenter_loads)
        return sorted(merge_by(chain(*found), lambda load: load.name, _sum), key=lambda load: load.name)


def _both(one: DatacenterStatus, other: DatacenterStatus) -> DatacenterStatus:
    return DatacenterStatus(
        name=one.name,
        workers=max(one.workers, other.workers),
        draining=max(one.draining, other.draining),
        schedulers=max(one.schedulers, other.schedulers),
        seen_at=max((at for at in (one.seen_at, other.seen_at) if at is not None), default=None),
    )


def _sum(one: DatacenterLoad, other: DatacenterLoad) -> DatacenterLoad:
    return DatacenterLoad(
        name=one.name,
        queued=one.queued + other.queued,
        running=one.running + other.running,
        oldest_due=min((due for due in (one.oldest_due, other.oldest_due) if due is not None), default=None),
    )


def _by_word(orders: Collection[list[PreferenceOrder]]) -> list[PreferenceOrder]:
    """Merge the orders by word. Every server serves them by itself, by the same rule."""
    return merge_by(
        chain(*orders),
        lambda order: order.word,
        lambda one, other: msgspec.structs.replace(one, since=min(one.since, other.since)),
    )
