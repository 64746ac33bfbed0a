"""Where processes are, and who stands in for whom."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import Instant


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A data centre that a process named when it started, for as long as the store remembers that process: a day."""

    name: str
    #: Alive; those that were asked to leave are counted apart.
    workers: int = 0
    draining: int = 0
    schedulers: int = 0
    #: When it last had a live worker, now if it has one; none: never.
    seen_at: Instant | None = None


class PlaceLoad(msgspec.Struct, frozen=True, kw_only=True):
    """How much there is for a data centre: what only it may run, or what it serves now by an order of preference."""

    name: str
    queued: int = 0
    running: int = 0
    #: The due time of the oldest queued run.
    oldest_due: Instant | None = None


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """An order of preference that runs require, and who serves it."""

    #: As it stands among what a run requires.
    word: str
    serving: str
    #: Why it is not the first of them.
    why: str = ""
    #: When it was first asked for.
    since: Instant


class Places(Protocol):
    async def places(self) -> list[Place]:
        """By name. Whoever said nothing about where they are is nowhere."""
        ...


class Datacenters(Places, Protocol):
    async def say_where(self, session: SessionId, datacenter: str, version: str) -> None:
        """Of a process that did not say where it is, and of which version, when it introduced itself. Idempotent."""
        ...

    async def serve_orders(self) -> Sequence[Order]:
        """Give what requires an order of preference to the workers of the data centre that serves it now
        (``datacenters.serving``), and to no others; the orders there are.

        When another one comes to serve it, the ledger says so of every tick whose run has not started. Several may ask
        at once; asked again it changes nothing. A worker that has come since is given its share with the next call.
        """
        ...

    async def orders(self) -> list[Order]:
        """As ``serve_orders`` left them. One that it has not seen yet is missing."""
        ...

    async def place_loads(self) -> list[PlaceLoad]:
        """By name. What runs is counted where its worker is. Looks at all that is queued: not for a hot path."""
        ...
