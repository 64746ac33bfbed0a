"""Background services: they start, run until they are stopped, and stop once."""

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Protocol, Self

from mainspring.core.model.base.errors import StoreDamaged, StoreUnavailable
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.wakeups import Wakeup
from mainspring.core.runtime.backoff import Backoff
from mainspring.core.runtime.log import get_logger

_FIRST_PAUSE: Micros = 50 * MILLISECOND
_LONGEST_PAUSE: Micros = 2 * SECOND


class Service(Protocol):
    """A service. ``start`` returns when it is ready, ``stop`` when it has ended; ``stop`` may be called twice."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class TickingService(ABC):
    """A service with a loop: ``tick`` does one step and returns how long to wait; a notification cuts the wait short.

    A step that fails is logged and tried again after a growing pause: a background service never dies of an error.
    """

    def __init__(self, name: str, clock: Clock, wakeup: Wakeup) -> None:
        self.name = name
        self.clock = clock
        self.wakeup = wakeup
        self.log = get_logger(f"mainspring.{name}")
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)

    @abstractmethod
    async def tick(self) -> Micros:
        """Do one step; returns how long to wait before the next one."""

    async def start(self) -> None:
        self._stopping = False
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def stop(self) -> None:
        self._stopping = True
        self.wakeup.notify()
        task, self._task = self._task, None
        if task is not None:
            await task

    @property
    def stopping(self) -> bool:
        return self._stopping

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _run(self) -> None:
        while not self._stopping:
            wait = await self.step()
            if self._stopping:
                return
            if wait <= 0:
                # A loop that always has more to do must still let other tasks run.
                await asyncio.sleep(0)  # noqa: TID251
            else:
                await self.wakeup.wait(wait)

    async def step(self) -> Micros:
        """Run one tick; an error becomes a pause."""
        try:
            wait = await self.tick()
        except StoreUnavailable as error:
            pause = self._backoff.next()
            event = "store damaged" if isinstance(error, StoreDamaged) else "store unavailable"
            self.log.warning(event, error=str(error), again_in_ms=pause // MILLISECOND)
            return pause
        except Exception:
            pause = self._backoff.next()
            self.log.exception("step failed", again_in_ms=pause // MILLISECOND)
            return pause
        self._backoff.reset()
        return wait
