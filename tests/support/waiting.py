"""Wait for a condition in real time. The deadline is generous: only a test that fails ever waits that long."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

#: A busy machine can stand still for many seconds, so a deadline says "it hangs", never "it is slow".
DEADLINE_SECONDS = 120.0
_PAUSE_SECONDS = 0.02


@overload
async def eventually(
    condition: Callable[[], Awaitable[T]],
    describe: Callable[[], object] | str = "",
    *,
    deadline: float = DEADLINE_SECONDS,
) -> T: ...


@overload
async def eventually(
    condition: Callable[[], T], describe: Callable[[], object] | str = "", *, deadline: float = DEADLINE_SECONDS
) -> T: ...


async def eventually(
    condition: Callable[[], Any], describe: Callable[[], object] | str = "", *, deadline: float = DEADLINE_SECONDS
) -> Any:
    """Return the first truthy value of ``condition``, which may be async. Fail with ``describe`` at the deadline."""
    until = time.monotonic() + deadline
    while True:
        value = condition()
        found = await value if inspect.isawaitable(value) else value
        if found:
            return found
        _check(until, found, describe, deadline)
        await asyncio.sleep(_PAUSE_SECONDS)


def wait_until(
    condition: Callable[[], T], describe: Callable[[], object] | str = "", *, deadline: float = DEADLINE_SECONDS
) -> T:
    """Like ``eventually``, for code without an event loop."""
    until = time.monotonic() + deadline
    while True:
        found = condition()
        if found:
            return found
        _check(until, found, describe, deadline)
        time.sleep(_PAUSE_SECONDS)


def _check(until: float, last: object, describe: Callable[[], object] | str, deadline: float) -> None:
    if time.monotonic() > until:
        detail = describe() if callable(describe) else describe
        raise AssertionError(f"not true after {deadline:g} s; last value: {last!r}. {detail}")
