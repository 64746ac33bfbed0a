"""Publishes hints to brokers: for every change in the outbox, and again for runs that were not claimed."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from mainspring.core.dispatch.dead_hints import DeadHints, RunReading
from mainspring.core.dispatch.outbox import split_batches
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MILLISECOND, MINUTE, SECOND, Micros
from mainspring.core.model.cluster.hints import Hint
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.dispatch import HintSource
from mainspring.core.ports.storage.outbox import EventBatch, Outbox
from mainspring.core.ports.wakeups import EVERY_QUEUE, Wakeups
from mainspring.core.runtime.brokers import Brokers, GuardedBroker
from mainspring.core.runtime.service import TickingService

#: The name of the outbox reader, shared by all schedulers: a new owner of the shard continues at its offset.
READER = "dispatch"
#: The reader is removed after this time without a read, for example after a switch back to the store.
_READER_KEPT: Micros = MINUTE
_ATTACH_EVERY: Micros = 10 * SECOND
_SHARD = 0
#: The number of outbox rows read at once, and of hints published at once. A broker's client has room for this many, and
#: accepting them blocks this process.
_BATCHES = 500
_HINTS = 2_000
#: Events that make a run claimable, or may do so.
_CLAIMABLE = frozenset({"run.submitted", "run.queued", "run.retried", "run.released", "run.lost"})
_DEAD = "run.failed"
#: After a notification the change may not be visible yet, because an earlier transaction is still in progress.
_FIRST_LOOK_AGAIN: Micros = 5 * MILLISECOND
_LONGEST_PAUSE: Micros = SECOND // 2

#: The sweeper examines this many runs of a queue, this often, and publishes those that have waited this long.
_SWEPT = 1_000
_SWEEP_EVERY: Micros = SECOND
_OVERLOOKED: Micros = 5 * SECOND
#: A broker that has lost many hints is refilled at this interval.
_REFILL_EVERY: Micros = SECOND // 10


class DispatchStore(Outbox, HintSource, RunReading, Protocol):
    """The part of the store that the dispatcher uses."""


class Dispatcher(TickingService):
    """Publishes hints.

    Only the owner of the first shard does so; if two processes believe they own it, hints come twice.

    Hints that cannot be published are skipped: the sweeper finds their runs when the broker is back.
    """

    def __init__(
        self,
        store: DispatchStore,
        brokers: Brokers,
        wakeups: Wakeups,
        clock: Clock,
        owned: Callable[[], Mapping[int, int]],
    ) -> None:
        super().__init__("dispatcher", clock, wakeups.listen([EVERY_QUEUE]))
        #: Hints that were published because of a change, and because no worker had claimed their run.
        self.published = 0
        self.republished = 0
        self._store = store
        self._brokers = brokers
        self._dead_hints = DeadHints(store, brokers)
        self._owned = owned
        self._attached_at: Micros | None = None
        self._expected_at: Micros = 0
        self._pause: Micros = _LONGEST_PAUSE
        self._sweep_at: Micros = 0
        #: When each of the best runs was first seen, and when its hint was last published again.
        self._seen: dict[RunId, Micros] = {}
        self._repeated: dict[RunId, Micros] = {}
        #: Queues whose broker has lost more hints than one sweep covers.
        self._refilling: set[str] = set()

    async def tick(self) -> Micros:
        if _SHARD not in self._owned():
            self._attached_at = None
            self._seen.clear()
            return _LONGEST_PAUSE
        await self._attach()
        if self.clock.monotonic() >= self._sweep_at:
            await self._sweep()
        found = await self._follow()
        await self._dead_hints.publish_dead()
        now = self.clock.monotonic()
        if found:
            self._pause = _FIRST_LOOK_AGAIN
            wait = 0 if found == _BATCHES else _FIRST_LOOK_AGAIN
        else:
            # Notified early: something has happened that may become visible in a moment.
            self._pause = _FIRST_LOOK_AGAIN if now < self._expected_at else min(2 * self._pause, _LONGEST_PAUSE)
            wait = min(self._pause, max(self._sweep_at - now, 1))
        self._expected_at = now + wait
        return wait

    async def _attach(self) -> None:
        now = self.clock.monotonic()
        if self._attached_at is None or now - self._attached_at > _ATTACH_EVERY:
            await self._store.attach_reader(READER, _READER_KEPT)
            self._attached_at = now

    async def _follow(self) -> int:
        """Publish hints for the next changes; returns how many batches of changes there were."""
        batches = await self._store.events(READER, _BATCHES)
        if not batches:
            return 0
        for part in split_batches(batches, _HINTS):
            # Renew the reader: a backlog may take longer than a silent reader is kept.
            await self._attach()
            await self._send_hints(part)
            await self._store.acknowledge(READER, part[-1].position)
            if self.stopping or _SHARD not in self._owned():
                break
        return len(batches)

    async def _send_hints(self, batches: Sequence[EventBatch]) -> None:
        runs = list(dict.fromkeys(run for batch in batches if batch.kind in _CLAIMABLE for run in batch.runs))
        for start in range(0, len(runs), _HINTS):
            self.published += await self._publish(await self._store.find_hints(runs[start : start + _HINTS]))
        if dead := [run for batch in batches if batch.kind == _DEAD for run in batch.runs]:
            await self._dead_hints.note(dead)
            await self._dead_hints.publish_dead()

    async def _publish(self, hints: Sequence[Hint]) -> int:
        """Publish hints to their brokers; returns how many were accepted."""
        accepted = 0
        for guarded in self._brokers.all:
            mine = [hint for hint in hints if self._brokers.of(hint.queue) is guarded and _is_for(hint, guarded)]
            if mine and await guarded.publish(mine):
                accepted += len(mine)
        return accepted

    async def _sweep(self) -> None:
        best: defaultdict[str, list[Hint]] = defaultdict(list)
        for hint in await self._store.find_ready_hints(self._brokers.queues, _SWEPT):
            if (guarded := self._brokers.of(hint.queue)) is not None and _is_for(hint, guarded):
                best[hint.queue].append(hint)
        now = self.clock.monotonic()
        known = {hint.run for hints in best.values() for hint in hints}
        self._seen = {run: self._seen.get(run, now) for run in known}
        self._repeated = {run: at for run, at in self._repeated.items() if run in known}
        for queue, hints in best.items():
            await self._refill(queue, hints, now)
        self._refilling &= best.keys()
        self._sweep_at = self.clock.monotonic() + (_REFILL_EVERY if self._refilling else _SWEEP_EVERY)

    async def _refill(self, queue: str, hints: list[Hint], now: Micros) -> None:
        guarded = self._brokers.of(queue)
        if len(hints) < _SWEPT:
            self._refilling.discard(queue)
        since = now if queue in self._refilling else now - _OVERLOOKED
        repeated_before = now - _OVERLOOKED
        lost = [
            hint
            for hint in hints
            if self._seen[hint.run] <= since and self._repeated.get(hint.run, repeated_before) <= repeated_before
        ]
        if guarded is None or not lost:
            return
        depth = await guarded.depth(queue)
        if depth is None or depth >= len(hints):
            # The broker is away, or has enough hints to deliver first.
            return
        if await guarded.publish(lost, again=True):
            self.republished += len(lost)
            self.log.info("hints republished", queue=queue, runs=len(lost), broker=guarded.broker.kind)
            self._repeated |= dict.fromkeys((hint.run for hint in lost), now)
            if len(hints) >= _SWEPT:
                self._refilling.add(queue)


def _is_for(hint: Hint, guarded: GuardedBroker) -> bool:
    """Return False for a run bound to a data center if the broker cannot route by data center."""
    return not hint.datacenter or guarded.by_datacenter
