"""What every measurement is given: where, how much, and whom to tell."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeAlias

import msgspec

from bench.figures import Figures
from bench.sites.site import SiteFactory
from bench.sites.system import System, system_on
from bench.sizes import Sizes


class Bench:
    """One store under measurement."""

    def __init__(self, place: SiteFactory, sizes: Sizes, tell: Callable[[str], None]) -> None:
        self.place = place
        self.sizes = sizes
        #: What every message begins with: how far the whole is.
        self.progress = ""
        self._tell = tell
        self._shared: System | None = None
        self._stack = AsyncExitStack()

    @property
    def embedded(self) -> bool:
        return self.place.kind == "sqlite"

    def say(self, words: str) -> None:
        """Tell what is going on."""
        self._tell(self.progress + words)

    @asynccontextmanager
    async def system(self, name: str, *, connected: bool = True) -> AsyncIterator[System]:
        """A fresh store with a submitting process and without workers."""
        await self.close()
        async with (
            self.place.site(name) as site,
            system_on(site, connected=connected, dispatch=self.sizes.dispatch) as system,
        ):
            yield system

    async def shared_system(self) -> System:
        """A running system that leaves nothing behind in its queues: measurements of lateness share it."""
        if self._shared is None:
            self.say("starting scheduler and worker")
            site = await self._stack.enter_async_context(self.place.site("shared"))
            system = await self._stack.enter_async_context(system_on(site, dispatch=self.sizes.dispatch))
            await system.start_services()
            self._shared = system
        self._shared.stamps.clear()
        return self._shared

    async def close(self) -> None:
        """End the shared system."""
        self._shared = None
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()


Measure: TypeAlias = Callable[[Bench], Awaitable[Figures]]


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """Something that can be measured by name."""

    name: str
    what: str
    measure: Measure
    #: About how many seconds one round takes.
    estimate: Callable[[Sizes], float]
    #: Whether the median of several rounds is taken.
    rounds: bool = True
    #: Whether it is part of a run that does not name what it wants.
    usual: bool = True
    #: Whether that holds for a quick run too.
    quick: bool = True
    embedded: bool = True
