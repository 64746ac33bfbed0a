"""Objects that belong to one event loop: opened on first use, closed when the loop ends."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class PerLoop(Generic[T]):
    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._things: dict[asyncio.AbstractEventLoop, T] = {}
        self._kept: dict[asyncio.AbstractEventLoop, AsyncGenerator[None, None]] = {}

    async def get(self) -> T:
        """Return the object of this loop, created on first use."""
        loop = asyncio.get_running_loop()
        thing = self._things.get(loop)
        if thing is None:
            thing = self._things[loop] = self._make()
            kept = self._kept[loop] = self._keep(loop, thing)
            await anext(kept)
        return thing

    def lend(self, thing: T) -> None:
        """Use an object on this loop that the caller will close."""
        self._things[asyncio.get_running_loop()] = thing

    async def close(self) -> None:
        """Close the object of this loop."""
        loop = asyncio.get_running_loop()
        self._things.pop(loop, None)
        kept = self._kept.pop(loop, None)
        if kept is not None:
            await kept.aclose()

    async def _keep(self, loop: asyncio.AbstractEventLoop, thing: T) -> AsyncGenerator[None, None]:
        """Close the object when the loop ends, because a loop closes its async generators first.

        So ``asyncio.run(task.submit())`` leaves nothing open.
        """
        close: Callable[[], Awaitable[None]] = thing.close
        try:
            yield
        finally:
            self._kept.pop(loop, None)
            if self._things.get(loop) is thing:
                del self._things[loop]
            await close()
