"""Forwards calls from other threads and loops to the runtime's loop."""

import asyncio
import inspect
from typing import Any, cast

from mainspring.config.runtime import Runtime
from mainspring.testing.loop import RuntimeLoop


class _LoopProxy:
    """A part of the runtime. Its coroutines run on the runtime's loop, and virtual time passes as far as they need."""

    def __init__(self, part: object, loop: RuntimeLoop) -> None:
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
    def __init__(self, runtime: Runtime, loop: RuntimeLoop) -> None:
        self._runtime = runtime
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._runtime, name)
        return _LoopProxy(found, self._loop) if name in _PROXIED else found

    async def open(self) -> None:
        """Do nothing: the runtime is open as long as the test lasts."""


_PROXIED = ("clock", "jobs", "store", "wakeups")


def build_bridge(runtime: Runtime, loop: RuntimeLoop) -> Runtime:
    """Wrap the runtime for use on any other loop."""
    return cast(Runtime, _Bridge(runtime, loop))
