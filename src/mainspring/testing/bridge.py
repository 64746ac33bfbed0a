"""Forwards calls from other threads and loops to the runtime's loop."""

import asyncio
import inspect
from typing import Any, cast

from mainspring.config.engine import Engine
from mainspring.testing.loop import EngineLoop


class _Part:
    """A part of the runtime. Its coroutines run on the runtime's loop, and virtual time passes as far as they need."""

    def __init__(self, part: object, loop: EngineLoop) -> None:
        self._part = part
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def over_there(*args: object, **named: object) -> object:
            return await asyncio.wrap_future(self._loop.command(found(*args, **named)))

        return over_there


class _Bridge:
    def __init__(self, engine: Engine, loop: EngineLoop) -> None:
        self._engine = engine
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        return _Part(found, self._loop) if name in _PARTS else found

    async def open(self) -> None:
        """Do nothing: the runtime is open as long as the test lasts."""


_PARTS = ("clock", "jobs", "store", "wakeups")


def bridge_to(engine: Engine, loop: EngineLoop) -> Engine:
    """Wrap the runtime for use on any other loop."""
    return cast(Engine, _Bridge(engine, loop))
