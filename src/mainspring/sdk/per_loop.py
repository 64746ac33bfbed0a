"""Something that belongs to one event loop, opened when it is first needed and closed when the loop ends."""

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
        """This loop's own."""
        loop = asyncio.get_running_loop()
        thing = self._things.get(loop)
        if thing is None:
            thing = self._things[loop] = self._make()
            kept = self._kept[loop] = self._keep(loop, thing)
            await anext(kept)
        return thing

    def lend(self, thing: T) -> None:
        """This loop uses one that somebody else closes."""
        self._things[asyncio.get_running_loop()] = thing

    async def close(self) -> None:
        """Let go of this loop's own."""
        loop = asyncio.get_running_loop()
        self._things.pop(loop, None)
        kept = self._kept.pop(loop, None)
        if kept is not None:
            await kept.aclose()

    async def _keep(self, loop: asyncio.AbstractEventLoop, thing: T) -> AsyncGenerator[None, None]:
        """A loop that ends closes its async generators first: so ``asyncio.run(task.submit())`` leaves nothing open."""
        close: Callable[[], Awaitable[None]] = thing.close
        try:
            yield
        finally:
            self._kept.pop(loop, None)
            if self._things.get(loop) is thing:
                del self._things[loop]
            await close()
