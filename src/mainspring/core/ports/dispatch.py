"""The port of brokers, which carry hints about waiting runs to workers. Losing all hints costs latency, never work.

These rules hold for every method of a broker:

1. ``BrokerUnavailable`` means that it did not answer, or not in time. A broker reconnects by itself: the next call
   may work. ``open`` needs no answer, so a process starts while its broker is unavailable.
2. A hint may be lost, late, duplicated, or arrive when its run has long ended. No code may rely on one.
3. Messages that are not valid hints of this store (garbled, forged, of another store) are dropped and counted in
   ``refused``.
4. Every method takes a batch. An empty batch does nothing.
"""

from collections.abc import Collection, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.model.cluster.hints import Hint
from mainspring.core.model.runs.dead_letters import DeadRun

#: How long a delivery without ``done`` is withheld from other workers.
LEASE: Micros = 30 * SECOND


class HintDelivery(msgspec.Struct, frozen=True):
    """A hint that was taken, and the broker's receipt for it."""

    hint: Hint
    receipt: object


class Broker(Protocol):
    """One broker. Queues are created by using them."""

    #: The name used in the settings: redis, …
    kind: str
    #: The number of dropped messages that were not ours.
    refused: int

    async def open(self, namespace: str) -> None:
        """Connect. ``namespace``: the identity of the store.

        Several stores can share a broker without seeing each other's hints.
        """
        ...

    async def close(self) -> None:
        """Disconnect.

        Hints that were taken without ``done`` go to other workers when their lease expires, or sooner.
        """
        ...

    async def publish(self, hints: Sequence[Hint]) -> None:
        """Publish hints of any queues.

        When it returns, the broker has all of them. Duplicates count as one or as two.
        """
        ...

    async def take(self, queue: str, limit: int, wait: Micros) -> list[HintDelivery]:
        """Take at most ``limit`` hints, each for one taker at a time: the best by rank, if the broker has an order.

        If there is none, it waits at most ``wait`` for the first, woken by the broker. 0: it does not wait.
        """
        ...

    async def done(self, deliveries: Sequence[HintDelivery]) -> None:
        """Acknowledge hints whose claim is committed or that were stale. Harmless if repeated, or after the lease."""
        ...

    async def depth(self, queue: str) -> int:
        """Return the approximate number of hints that wait to be taken."""
        ...

    async def warnings(self) -> list[str]:
        """Return problems with the broker's configuration as text for people. Needs an answer of the broker."""
        ...


@runtime_checkable
class DeadLetterBroker(Protocol):
    """A broker with its own dead-letter destination, where a team's tools look. Other brokers lack this method."""

    async def publish_dead(self, dead: Sequence[DeadRun]) -> None:
        """Send copies of runs that failed for good. Some may be sent twice."""
        ...


@runtime_checkable
class DatacenterBroker(Protocol):
    """A broker that can keep the hints of each data center separate. Other brokers get no hints for data centers."""

    by_datacenter: bool


@runtime_checkable
class PriorityBroker(Protocol):
    """A broker that can keep the hints of each priority separate, for workers with a pool of slots for each."""

    by_priority: bool

    async def take_priority(self, queue: str, priority: int, limit: int, wait: Micros) -> list[HintDelivery]:
        """Like ``take``, but only hints of this priority."""
        ...


class HintSource(Protocol):
    """The part of the store that provides hints.

    Hints exist for queued runs that any worker, or any worker of a data center, may take: runs without other labels or
    a target.
    """

    async def hint_key(self) -> str:
        """Return the secret with which hints are signed.

        The store creates it once. It is never shown and is part of no name.
        """
        ...

    async def find_hints(self, runs: Sequence[RunId]) -> list[Hint]:
        """Return hints for those of the runs that are queued, in no particular order."""
        ...

    async def find_ready_hints(self, queues: Collection[str] | None, limit: int) -> list[Hint]:
        """Return hints for the best ``limit`` runs of each of these queues, or of every queue."""
        ...
