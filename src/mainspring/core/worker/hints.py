"""Takes hints for one queue from a broker while the worker has room, and claims runs with them."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine

import msgspec

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.dispatch import HintDelivery
from mainspring.core.runtime.brokers import GuardedBroker
from mainspring.core.runtime.tasks import cancel_and_wait
from mainspring.core.store import Demand

#: How long an idle worker waits at the broker per call. A frozen broker is noticed a little later than that.
_WAIT: Micros = 2 * SECOND


class HintFeed:
    """Takes at most as many hints as runs can be started, one batch at a time, and notifies the claimer.

    The store is queried without hints once in a while, and always while the broker is
    unavailable.
    """

    def __init__(
        self,
        queue: str,
        broker: GuardedBroker,
        clock: Clock,
        look_every: Micros,
        notify: Callable[[], None],
        priority: int | None = None,
    ) -> None:
        """``priority``: the priority whose pool of slots is fed. None: there is one pool for all."""
        self._queue = queue
        self._priority = priority
        self._broker = broker
        self._clock = clock
        self._look_every = look_every
        self._notify = notify
        self._look_at: Micros = 0
        #: The current claim queries the store without hints.
        self._looking = False
        self._ready: deque[HintDelivery] = deque()
        #: The deliveries that the current claim was sent with.
        self._claiming: list[HintDelivery] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking = False

    @property
    def brings(self) -> bool:
        """The broker notifies about new work; otherwise the store is polled as if there were no broker."""
        return not self._broker.away

    def turn(self, demand: Demand) -> Demand | None:
        """Return the demand to send to the store instead of ``demand``. None: nothing until the next notification."""
        now = self._clock.monotonic()
        if now >= self._look_at or self._broker.away:
            self._look_at = now + self._look_every
            self._looking = True
            if self._broker.away and self._broker.may_ask:
                self._ask(1)
            return demand
        if not self._ready:
            self._ask(demand.limit)
            return None
        self._claiming = [self._ready.popleft() for _ in range(min(demand.limit, len(self._ready)))]
        runs = tuple(delivery.hint.run for delivery in self._claiming)
        return msgspec.structs.replace(demand, limit=len(runs), runs=runs)

    def answered(self, started: Collection[RunId]) -> None:
        """Acknowledge the hints of a committed claim. Hints of runs it did not start are stale, or come again."""
        self._looking = False
        if self._claiming:
            self._broker.claimed += sum(delivery.hint.run in started for delivery in self._claiming)
            self._start(self._broker.done(self._claiming))
            self._claiming = []

    def ended(self) -> None:
        """Handle the end of a claim, answered or not.

        Hints of an unanswered claim are not acknowledged, so they come again. Runs unknown to brokers have waited long
        enough, so the next claim queries the store again.
        """
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
            found = await self._broker.take(self._queue, limit, _WAIT, self._priority)
        finally:
            self._asking = False
        self._ready.extend(found or ())
        # Also without hints: there may be free slots by now, or the broker is unavailable.
        self._notify()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work, name=f"feed:{self._queue}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
