"""Wake-ups between the processes of a world: late, and often lost."""

import asyncio
from collections.abc import Collection
from contextvars import Context

from mainspring.core.model.base.instant import SECOND, Micros
from tests.support.simulation.faults import Faults
from tests.support.simulation.loop import Process


class Wakeup:
    """A minimal wakeup: a future and a timer."""

    def __init__(self, exchange: "Exchange", process: Process, topics: Collection[str]) -> None:
        self.process = process
        self.topics = tuple(sorted(topics))
        self._exchange = exchange
        self._notified = False
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self, timeout: Micros) -> bool:
        if not self._notified:
            loop = asyncio.get_running_loop()
            waiter = self._waiter = loop.create_future()
            timer = loop.call_later(timeout / SECOND, _set, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiter = None
        woken, self._notified = self._notified, False
        return woken

    def notify(self) -> None:
        self._notified = True
        if self._waiter is not None:
            _set(self._waiter)

    def close(self) -> None:
        self._exchange.forget(self)


class Exchange:
    """Delivers notifications between processes."""

    def __init__(self) -> None:
        self.listeners: dict[str, dict[Wakeup, None]] = {}

    def remember(self, wakeup: Wakeup) -> None:
        for topic in wakeup.topics:
            self.listeners.setdefault(topic, {})[wakeup] = None

    def forget(self, wakeup: Wakeup) -> None:
        for topic in wakeup.topics:
            self.listeners.get(topic, {}).pop(wakeup, None)


class LossyWakeups:
    """The connection of one process to the exchange."""

    def __init__(self, exchange: Exchange, process: Process, faults: Faults) -> None:
        self._exchange = exchange
        self._process = process
        self._faults = faults
        self._listeners: list[Wakeup] = []
        process.when_it_dies.append(self._hang_up)

    async def open(self) -> None: ...

    async def close(self) -> None:
        self._hang_up()

    def listen(self, topics: Collection[str]) -> Wakeup:
        wakeup = Wakeup(self._exchange, self._process, topics)
        self._exchange.remember(wakeup)
        self._listeners.append(wakeup)
        return wakeup

    def notify(self, topics: Collection[str]) -> None:
        if self._process.dead:
            return
        heard: dict[Wakeup, None] = {}
        # The order of a set differs between processes, and random numbers are drawn in this loop.
        for topic in sorted(topics):
            for wakeup in self._exchange.listeners.get(topic, ()):
                if not self._faults.loses_ring():
                    heard[wakeup] = None
        if heard:
            delay = self._faults.notify_takes()
            self._process.loop.call_later(delay / SECOND, _ring_all, heard, context=Context())

    def _hang_up(self) -> None:
        for wakeup in self._listeners:
            wakeup.close()


def _ring_all(listeners: dict[Wakeup, None]) -> None:
    for wakeup in listeners:
        if wakeup.process.alive:
            wakeup.notify()


def _set(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
