"""Reads the store's events once for all event streams."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from mainspring.core.model.base.errors import NotFound, StoreUnavailable
from mainspring.core.model.base.event_offsets import further, is_reached
from mainspring.core.model.base.instant import MILLISECOND, MINUTE, SECOND, Micros, isoformat
from mainspring.core.model.events.events import worker_of_id
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.catalog import Catalog
from mainspring.core.ports.storage.outbox import EVENTS_KEPT, EventBatch, Outbox
from mainspring.core.runtime.log import get_logger
from mainspring.core.runtime.tasks import cancel_and_wait
from mainspring.http.streams.sse import format_event, keep_alive

_log = get_logger("mainspring.api.events")

#: How often the store is polled, and the extra time per follower. With 1,000 followers it is every two seconds.
_PAUSE: Micros = 100 * MILLISECOND
_PAUSE_PER_FOLLOWER: Micros = 2 * MILLISECOND
_BATCHES = 1_000
#: After the last follower has left, events are kept this long, so that a broken connection loses nothing.
LINGER: Micros = EVENTS_KEPT
_ATTACH_EVERY: Micros = 10 * SECOND
#: A follower with this many unsent messages is disconnected, and resumes with its ``Last-Event-ID``.
_MOST_WAITING = 256
_QUIET: Micros = 15 * SECOND
#: An idle follower receives the current position this often, because an old position cannot be resumed.
_POSITION_EVERY: Micros = 2 * MINUTE
#: Each event has a count of runs and the ids of the first ones. The number of ids shrinks with more followers:
#: otherwise 1,000 followers of a busy system would receive tens of megabytes of ids per second.
_NAMED = 1_000
_NAMED_TO_ALL = 50_000


class HubStore(Catalog, Outbox, Protocol):
    """The part of the store that the hub uses."""


class _Follower:
    __slots__ = ("gone", "placed_at", "tenant", "waiting", "wakeup")

    def __init__(self, tenant: str | None, now: Micros) -> None:
        self.tenant = tenant
        #: When it last received a position.
        self.placed_at = now
        self.waiting: deque[bytes] = deque()
        self.wakeup = asyncio.Event()
        self.gone = False

    def send(self, message: bytes) -> None:
        if len(self.waiting) >= _MOST_WAITING:
            self.gone = True
        else:
            self.waiting.append(message)
        self.wakeup.set()


class Hub:
    """A service that streams events. It does not query the store while there are no followers."""

    def __init__(self, store: HubStore, clock: Clock, name: str) -> None:
        self._store = store
        self._clock = clock
        self._reader = f"api:{name}"
        self._followers: dict[_Follower, None] = {}
        self._position: str | None = None
        self._attached_at: Micros | None = None
        self._left_at: Micros = 0
        self._told_at: Micros = 0
        self._wanted = asyncio.Event()
        self._leaving = False
        self._task: asyncio.Task[None] | None = None

    @property
    def followers(self) -> int:
        return len(self._followers)

    async def start(self) -> None:
        self._told_at = self._clock.monotonic()
        self._task = asyncio.create_task(self._run(), name="api.events")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            await cancel_and_wait(task)
        # The reader stays attached until it expires, so that followers can resume here or in another process.
        self.let_go()

    def let_go(self) -> None:
        """End all streams, including those that begin later."""
        self._leaving = True
        for follower in self._followers:
            follower.gone = True
            follower.wakeup.set()

    async def follow(self, tenant: str | None, last_seen: str | None) -> AsyncIterator[bytes]:
        """Yield the events of a tenant, or of all, from now on or after ``last_seen``."""
        follower = _Follower(tenant, self._clock.monotonic())
        try:
            if last_seen is not None:
                # Missed events come from the store, up to the position of the hub. Then the hub continues.
                async for message in self._missed(follower, last_seen):
                    yield message
            else:
                await self._join(follower)
                yield format_event("hello", b"{}", self._position or "")
            while not (follower.gone or self._leaving):
                follower.wakeup.clear()
                if follower.waiting:
                    messages = b"".join(follower.waiting)
                    follower.waiting.clear()
                    yield messages
                else:
                    await follower.wakeup.wait()
        finally:
            self._followers.pop(follower, None)
            self._left_at = self._clock.monotonic()

    async def _join(self, follower: _Follower) -> None:
        await self._begin()
        self._add(follower)

    async def _begin(self) -> None:
        """Begin at the newest position, unless there are followers already."""
        await self._attach()
        if self._position is None or not self._followers:
            _, newest = await self._store.events_after(None, 1)
            if self._position is None or not self._followers:
                self._position = newest

    def _add(self, follower: _Follower) -> None:
        self._followers[follower] = None
        self._wanted.set()

    async def _missed(self, follower: _Follower, last_seen: str) -> AsyncIterator[bytes]:
        """Yield the events after a position, up to the position at which the follower can join the hub."""
        await self._begin()
        position = last_seen
        while True:
            hub_at = self._position
            try:
                batches, _ = await self._store.events_after(position, _BATCHES)
            except NotFound:
                self._add(follower)
                yield format_event(
                    "gap", b'{"reason":"too long ago: events in between are gone"}', self._position or ""
                )
                return
            missed = [batch for batch in batches if hub_at is None or is_reached(batch.position, hub_at)]
            if missed:
                for batch in missed:
                    position = further(position, batch.position)
                for message in _messages(missed, follower.tenant, position, _NAMED):
                    yield message
            if hub_at == self._position and len(batches) < _BATCHES:
                # Nothing was awaited since the hub's position was read, so nothing is lost or sent twice.
                self._add(follower)
                return

    async def _attach(self) -> None:
        now = self._clock.monotonic()
        if self._attached_at is None or now - self._attached_at > _ATTACH_EVERY:
            await self._store.attach_reader(self._reader, LINGER + _ATTACH_EVERY)
            self._attached_at = now
            if self._position is not None:
                await self._store.acknowledge(self._reader, self._position)

    async def _run(self) -> None:
        while True:
            try:
                await self._turn()
            except StoreUnavailable as error:
                _log.warning("events unavailable", error=str(error))
                await self._clock.sleep(SECOND)
            if self._clock.monotonic() - self._told_at > _QUIET:
                self._told_at = self._clock.monotonic()
                self._keep_alive()

    async def _turn(self) -> None:
        if not self._followers:
            if self._attached_at is not None and self._clock.monotonic() - self._left_at > LINGER:
                await self._store.detach_reader(self._reader)
                self._attached_at = None
                self._position = None
            elif self._attached_at is not None:
                # There is no follower. Events for followers that return are kept by age, not by this acknowledgement.
                _, newest = await self._store.events_after(None, 1)
                await self._store.acknowledge(self._reader, newest)
            self._wanted.clear()
            try:
                async with asyncio.timeout(_ATTACH_EVERY / SECOND):
                    await self._wanted.wait()
            except TimeoutError:
                return
        await self._attach()
        began_at = self._position
        try:
            batches, position = await self._store.events_after(began_at, _BATCHES)
            if self._position != began_at:
                # The first follower joined meanwhile, and set another position.
                return
            self._position = position
        except NotFound:
            batches, self._position = await self._store.events_after(None, 1)
            self._tell_all(format_event("gap", b'{"reason":"the reader was away for too long"}', self._position))
        if batches:
            self._fan_out(batches, self._position)
        if len(batches) < _BATCHES:
            await self._clock.sleep(_PAUSE + _PAUSE_PER_FOLLOWER * len(self._followers))

    def _fan_out(self, batches: list[EventBatch], position: str) -> None:
        now = self._clock.monotonic()
        made: dict[str | None, list[bytes]] = {}
        named = min(_NAMED, _NAMED_TO_ALL // max(len(self._followers), 1))
        for follower in self._followers:
            if follower.tenant not in made:
                made[follower.tenant] = _messages(batches, follower.tenant, position, named)
            for message in made[follower.tenant]:
                follower.send(message)
            if made[follower.tenant]:
                follower.placed_at = now

    def _keep_alive(self) -> None:
        now = self._clock.monotonic()
        for follower in self._followers:
            if now - follower.placed_at >= _POSITION_EVERY and self._position is not None:
                follower.placed_at = now
                follower.send(format_event("position", b"{}", self._position))
            else:
                follower.send(keep_alive())

    def _tell_all(self, message: bytes) -> None:
        for follower in self._followers:
            follower.send(message)


def _messages(batches: list[EventBatch], tenant: str | None, position: str, named: int) -> list[bytes]:
    """Build the messages for one follower: one per kind and tenant, in order. The last one has the position."""
    grouped: dict[tuple[str, str], list[EventBatch]] = {}
    for batch in batches:
        if tenant in (None, batch.tenant):
            grouped.setdefault((batch.kind, batch.tenant), []).append(batch)
    messages = []
    for number, ((kind, owner), group) in enumerate(grouped.items(), 1):
        runs = [run for batch in group for run in batch.runs]
        ids, names = "runIds", list[str](runs[:named])
        if kind.startswith("job."):
            ids = "jobIds"
        elif kind.startswith("worker."):
            ids, names = "workerIds", [str(worker_of_id(each)) for each in names]
        data = msgspec.json.encode({"time": isoformat(group[-1].at), "tenant": owner, "count": len(runs), ids: names})
        # Only the last message advances the position, so an interrupted stream repeats events rather than losing them.
        messages.append(format_event(kind, data, position if number == len(grouped) else ""))
    return messages
