"""Hints for one queue of a worker: taken while there is room, and claimed with."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine

import msgspec

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.dispatch import Delivery
from mainspring.core.runtime.engines import GuardedEngine
from mainspring.core.runtime.tasks import cancel_and_wait
from mainspring.core.store import Want

#: How long an idle worker waits at the engine at a time. One that freezes is noticed a little later than that.
_WAIT: Micros = 2 * SECOND


class Feed:
    """Takes at most what can be started, one batch at a time, and rings when there is something to claim with.

    The store is asked without hints once in a while, whatever the engine says, and always while the engine is away.
    """

    def __init__(
        self,
        queue: str,
        engine: GuardedEngine,
        clock: Clock,
        look_every: Micros,
        ring: Callable[[], None],
        priority: int | None = None,
    ) -> None:
        """``priority``: the one whose pool of slots is fed; None: there is one pool for all."""
        self._queue = queue
        self._priority = priority
        self._engine = engine
        self._clock = clock
        self._look_every = look_every
        self._ring = ring
        self._look_at: Micros = 0
        #: The claim under way is a look at the store.
        self._looking = False
        self._ready: deque[Delivery] = deque()
        #: What the claim under way was sent with.
        self._claiming: list[Delivery] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking = False

    @property
    def brings(self) -> bool:
        """It says when there is something; otherwise the store is asked as if there were no engine."""
        return not self._engine.away

    def turn(self, want: Want) -> Want | None:
        """What to ask the store for in place of a want; None: nothing until it rings."""
        now = self._clock.monotonic()
        if now >= self._look_at or self._engine.away:
            self._look_at = now + self._look_every
            self._looking = True
            if self._engine.away and self._engine.may_ask:
                self._ask(1)
            return want
        if not self._ready:
            self._ask(want.limit)
            return None
        self._claiming = [self._ready.popleft() for _ in range(min(want.limit, len(self._ready)))]
        runs = tuple(delivery.hint.run for delivery in self._claiming)
        return msgspec.structs.replace(want, limit=len(runs), runs=runs)

    def answered(self, started: Collection[RunId]) -> None:
        """The claim is committed. What it did not start is stale, or comes again."""
        self._looking = False
        if self._claiming:
            self._engine.claimed += sum(delivery.hint.run in started for delivery in self._claiming)
            self._start(self._engine.done(self._claiming))
            self._claiming = []

    def ended(self) -> None:
        """A claim is over, answered or not. If it was not, nobody says that the hints are done, so they come again; and
        what engines do not know of has waited long enough, so the next one looks again."""
        self._claiming = []
        if self._looking:
            self._looking = False
            self._look_at = 0

    async def close(self) -> None:
        await cancel_and_wait(*self._tasks)

    def _ask(self, limit: int) -> None:
        if not self._asking:
            self._asking = True
            self._start(self._take(limit))

    async def _take(self, limit: int) -> None:
        try:
            found = await self._engine.take(self._queue, limit, _WAIT, self._priority)
        finally:
            self._asking = False
        self._ready.extend(found or ())
        # Also for nothing: there may be slots to take for by now, or it is away.
        self._ring()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work, name=f"feed:{self._queue}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
