"""An engine beside the store that brings workers hints of what waits. Losing all it holds costs lateness, never work.

What holds for every method of an engine
- ``EngineUnavailable`` means that it did not answer, or not in time. An adapter reconnects by itself: the next call
  may work. ``open`` needs no answer, so a process starts while its engine is away.
- A hint may be lost, come late, come twice, or come when its run has long ended. Nobody may rely on one.
- What is not one of ours (garbled, forged, of another store) is dropped and counted in ``refused``.
- Batches only. An empty batch does nothing.
"""

from collections.abc import Collection, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.model.cluster.hints import Hint
from mainspring.core.model.runs.dead_letters import DeadRun

#: How long a delivery that nobody says ``done`` to stays away from others.
LEASE: Micros = 30 * SECOND


class Delivery(msgspec.Struct, frozen=True):
    """A hint that was taken, and what the engine knows it by."""

    hint: Hint
    receipt: object


class Dispatch(Protocol):
    """One engine. Queues come into being by being used."""

    #: As in the settings: redis, …
    kind: str
    #: Messages that were dropped because they were not ours.
    refused: int

    async def open(self, namespace: str) -> None:
        """``namespace``: which store this is about. Several share an engine and never see each other's hints."""
        ...

    async def close(self) -> None:
        """What was taken and is not ``done`` comes to others when its lease is over, or sooner."""
        ...

    async def publish(self, hints: Sequence[Hint]) -> None:
        """When it returns the engine has all of them. Of any queues. The same hint again counts as one, or as two."""
        ...

    async def take(self, queue: str, limit: int, wait: Micros) -> list[Delivery]:
        """The best by rank, as far as the engine has an order, at most ``limit``, each to one taker at a time.

        If there is none it waits for the first for ``wait`` at most, woken by the engine. 0: it does not wait.
        """
        ...

    async def done(self, deliveries: Sequence[Delivery]) -> None:
        """The claim for these is committed, or they were found stale. Twice is fine, as is after the lease."""
        ...

    async def depth(self, queue: str) -> int:
        """About how many hints wait to be taken."""
        ...

    async def warnings(self) -> list[str]:
        """What is wrong with how the engine is set up, in words for people; needs an answer of the engine."""
        ...


@runtime_checkable
class Burying(Protocol):
    """An engine that has a place for dead letters of its own, where a team's tools look. Others have no such method."""

    async def bury(self, dead: Sequence[DeadRun]) -> None:
        """Tell of runs that failed for good: a copy, for whoever reads it there. Some may come twice."""
        ...


@runtime_checkable
class Placing(Protocol):
    """An engine that may keep the hints for each data centre apart. Where one does not, it is given none of these."""

    by_datacenter: bool


@runtime_checkable
class Pooling(Protocol):
    """A broker that may keep the hints of each priority apart, for workers with a pool of slots for each."""

    by_priority: bool

    async def take_of(self, queue: str, priority: int, limit: int, wait: Micros) -> list[Delivery]:
        """As ``take``, but only hints of this priority."""
        ...


class Hinting(Protocol):
    """The part of the store that says what to hint at: what is queued for any worker, or for any of a data centre,
    without other labels or a target."""

    async def hint_key(self) -> str:
        """A secret that the store has made once, to seal hints with. It is shown to nobody and stands in no name."""
        ...

    async def hints_of(self, runs: Sequence[RunId]) -> list[Hint]:
        """Of those that are queued, in no particular order."""
        ...

    async def hints_ready(self, queues: Collection[str] | None, limit: int) -> list[Hint]:
        """The best ``limit`` of each of these queues, or of every queue."""
        ...
