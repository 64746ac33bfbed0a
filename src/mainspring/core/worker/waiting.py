"""Waits for a condition of the worker."""

from collections.abc import Callable

from mainspring.core.model.base.instant import Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.wakeups import Wakeup


async def wait_until(done: Callable[[], bool], at_most: Micros, wakeup: Wakeup, clock: Clock) -> None:
    """Return when ``done`` is true, or after ``at_most``. The condition is checked after each notification."""
    until = clock.monotonic() + at_most
    while not done() and (left := until - clock.monotonic()) > 0:
        await wakeup.wait(left)
