"""Tests in virtual time: an hour passes in milliseconds, and no test depends on how fast the machine is."""

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, overload

from mainspring.core.model.base.instant import DAY, Micros
from mainspring.testing.virtual_time import run_virtual

P = ParamSpec("P")
AsyncTest = Callable[P, Coroutine[Any, Any, None]]


@overload
def in_virtual_time(test: AsyncTest[P], /) -> Callable[P, None]: ...


@overload
def in_virtual_time(
    *, seed: int = 0, jitter: Micros = 0, longest: Micros = 366 * DAY
) -> Callable[[AsyncTest[P]], Callable[P, None]]: ...


def in_virtual_time(test: Any = None, /, **options: Any) -> Any:
    """Run an async test on a loop whose clock jumps to the next timer as soon as nothing else can run.

    Use it as ``@in_virtual_time`` or ``@in_virtual_time(seed=3)``. Inside the test ``asyncio.sleep`` and
    ``asyncio.timeout`` cost no real time. Fixtures work as usual, except async ones: those run on a real loop.
    """
    if test is None:
        return functools.partial(_decorate, **options)
    return _decorate(test, **options)


def _decorate(test: AsyncTest[P], **options: Any) -> Callable[P, None]:
    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtual(test(*args, **kwargs), **options)

    return run
