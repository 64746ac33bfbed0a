"""Wake-ups between the processes of a world: late, and often lost."""

import asyncio
from collections.abc import Collection
from contextvars import Context

from mainspring.core.model.base.instant import SECOND, Micros
from tests.support.simulation.faults import Faults
from tests.support.simulation.loop import Process


class Bell:
    """A minimal bell: a future and a timer."""

    def __init__(self, exchange: "Exchange", process: Process, topics: Collection[str]) -> None:
        self.process = process
        self.topics = tuple(sorted(topics))
        self._exchange = exchange
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self, timeout: Micros) -> bool:
        if not self._rung:
            loop = asyncio.get_running_loop()
            waiter = self._waiter = loop.create_future()
            timer = loop.call_later(timeout / SECOND, _set, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiter = None
        rang, self._rung = self._rung, False
        return rang

    def ring(self) -> None:
        self._rung = True
        if self._waiter is not None:
            _set(self._waiter)

    def close(self) -> None:
        self._exchange.forget(self)


class Exchange:
    """Delivers notifications between processes."""

    def __init__(self) -> None:
        self.bells: dict[str, dict[Bell, None]] = {}

    def remember(self, bell: Bell) -> None:
        for topic in bell.topics:
            self.bells.setdefault(topic, {})[bell] = None

    def forget(self, bell: Bell) -> None:
        for topic in bell.topics:
            self.bells.get(topic, {}).pop(bell, None)


class LossyWakeups:
    """The connection of one process to the exchange."""

    def __init__(self, exchange: Exchange, process: Process, faults: Faults) -> None:
        self._exchange = exchange
        self._process = process
        self._faults = faults
        self._bells: list[Bell] = []
        process.when_it_dies.append(self._hang_up)

    async def open(self) -> None: ...

    async def close(self) -> None:
        self._hang_up()

    def listen(self, topics: Collection[str]) -> Bell:
        bell = Bell(self._exchange, self._process, topics)
        self._exchange.remember(bell)
        self._bells.append(bell)
        return bell

    def ring(self, topics: Collection[str]) -> None:
        if self._process.dead:
            return
        heard: dict[Bell, None] = {}
        # The order of a set differs between processes, and random numbers are drawn in this loop.
        for topic in sorted(topics):
            for bell in self._exchange.bells.get(topic, ()):
                if not self._faults.loses_ring():
                    heard[bell] = None
        if heard:
            delay = self._faults.ring_takes()
            self._process.loop.call_later(delay / SECOND, _ring_all, heard, context=Context())

    def _hang_up(self) -> None:
        for bell in self._bells:
            bell.close()


def _ring_all(bells: dict[Bell, None]) -> None:
    for bell in bells:
        if bell.process.alive:
            bell.ring()


def _set(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
