"""The port for data centers: which processes are where, and which data center substitutes for which."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import Instant


class DatacenterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A data center that a process named at its start. Known as long as the store remembers the process: a day."""

    name: str
    #: Live workers; draining ones are counted separately.
    workers: int = 0
    draining: int = 0
    schedulers: int = 0
    #: When it last had a live worker; now, if it has one. None: never.
    seen_at: Instant | None = None


class DatacenterLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The load of a data center: runs that only it may execute, or that it serves now because of a preference order."""

    name: str
    queued: int = 0
    running: int = 0
    #: The due time of the oldest queued run.
    oldest_due: Instant | None = None


class PreferenceOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A preference order that runs require, and the data center that serves it."""

    #: The order in the form in which runs require it.
    word: str
    serving: str
    #: Why the serving data center is not the first of the order.
    why: str = ""
    #: When it was first required.
    since: Instant


class DatacenterReads(Protocol):
    async def datacenters(self) -> list[DatacenterStatus]:
        """Return the data centers by name. Processes without a data center are not included."""
        ...


class Datacenters(DatacenterReads, Protocol):
    async def set_datacenter(self, session: SessionId, datacenter: str, version: str) -> None:
        """Record the data center and version of a process that did not give them at registration. Idempotent."""
        ...

    async def serve_orders(self) -> Sequence[PreferenceOrder]:
        """Assign runs with a preference order to workers of the data center that serves it (``datacenters.serving``).

        1. No other workers may take them. Returns the existing orders.
        2. When the serving data center changes, the ledger notes it for every tick whose run has not started.
        3. Several processes may call it at once; a repeated call changes nothing.
        4. A worker that has joined since gets its share with the next call.
        """
        ...

    async def orders(self) -> list[PreferenceOrder]:
        """Return the orders as ``serve_orders`` left them. Orders it has not processed yet are missing."""
        ...

    async def datacenter_loads(self) -> list[DatacenterLoad]:
        """Return the loads by name. Running runs count where their worker is.

        Scans all queued runs: not for a hot path.
        """
        ...
