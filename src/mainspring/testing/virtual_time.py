"""An event loop in virtual time: hours pass in milliseconds, and a program runs in the same order every time.

    def test_it_takes_a_day() -> None:
        async def scenario() -> None:
            clock = VirtualClock()
            await clock.sleep(DAY)

        run_virtual(scenario())

Nothing waits in real time: when no task can proceed, time jumps to the next timer. There are no threads, files or
sockets to wait for, so a program that waits without a timer raises ``Stuck``. Time stands still while code runs.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from contextvars import Context
from math import ceil
from random import Random
from typing import Protocol, TypeVar, TypeVarTuple

from mainspring.core.model.base.instant import DAY, SECOND, Instant, Micros, isoformat, parse_instant

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

#: The default start of virtual time.
START: Instant = parse_instant("2026-03-01T00:00:00Z")
#: A program that takes this many turns of the loop without time passing is spinning.
_SPINNING = 1_000_000
#: Start of the monotonic clock. It is unrelated to the wall clock, as on a real machine.
_UPTIME: Micros = 1_000 * SECOND


class NoProgress(RuntimeError):
    """No task can ever proceed: all wait without a timer, the program spins, or it takes too long."""


class _HasNumber(Protocol):
    def fileno(self) -> int: ...


class VirtualSelector(selectors.BaseSelector):
    """Advances time instead of waiting. Files can be registered, but no event ever happens to them."""

    def __init__(self, start: Instant, longest: Micros) -> None:
        self.start = start
        self.elapsed: Micros = 0
        self._longest = longest
        self._turns = 0
        self._keys: dict[int | _HasNumber, selectors.SelectorKey] = {}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise NoProgress(f"everything waits and no timer is set at {isoformat(self.start + self.elapsed)}")
        if timeout > 0:
            self.elapsed += round_to_micros(timeout)
            self._turns = 0
            if self.elapsed > self._longest:
                raise NoProgress(f"not done by {isoformat(self.start + self.elapsed)}")
        else:
            self._turns += 1
            if self._turns > _SPINNING:
                self._turns = 0
                raise NoProgress(f"{_SPINNING} turns without time moving on at {isoformat(self.start + self.elapsed)}")
        return []

    def register(self, fileobj: int | _HasNumber, events: int, data: object = None) -> selectors.SelectorKey:
        number = _number(fileobj)
        key = selectors.SelectorKey(fileobj, number, events, data)
        self._keys[number] = key
        return key

    def unregister(self, fileobj: int | _HasNumber) -> selectors.SelectorKey:
        return self._keys.pop(_number(fileobj))

    def get_map(self) -> Mapping[int | _HasNumber, selectors.SelectorKey]:
        return self._keys


def round_to_micros(timeout: float) -> Micros:
    """Round a timeout to whole microseconds despite float errors; at least one, or time could stand still."""
    return max(1, ceil(timeout * SECOND - 0.01))


def _number(file: int | _HasNumber) -> int:
    return file if isinstance(file, int) else file.fileno()


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time advances only when no task can proceed."""

    def __init__(
        self,
        *,
        start: Instant = START,
        seed: int = 0,
        jitter: Micros = 0,
        longest: Micros = 366 * DAY,
        selector: VirtualSelector | None = None,
    ) -> None:
        self._virtual = VirtualSelector(start, longest) if selector is None else selector
        #: The source of randomness for code on this loop.
        self.random = Random(seed)
        self._jitter = jitter
        super().__init__(self._virtual)
        # Half a step of this clock: asyncio's nanosecond is lost in the rounding of floats after some weeks.
        self._clock_resolution = 0.5 / SECOND

    @property
    def start(self) -> Instant:
        return self._virtual.start

    @property
    def elapsed(self) -> Micros:
        """The time that has passed, exactly."""
        return self._virtual.elapsed

    def time(self) -> float:
        return self._virtual.elapsed / SECOND

    def call_at(
        self,
        when: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        # Timers of one instant fire in the order they were set; a jitter shuffles them by the seed.
        if self._jitter:
            when += self.random.randrange(self._jitter) / SECOND
        return super().call_at(when, callback, *args, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Arguments], T], *args: *Arguments
    ) -> asyncio.Future[T]:
        raise NotImplementedError("there are no threads in virtual time")


class VirtualClock:
    """The clock of one node on a virtual loop. ``skew`` offsets its wall clock, never its monotonic clock."""

    def __init__(self, loop: VirtualLoop | None = None, skew: Micros = 0) -> None:
        self._loop = get_virtual_loop() if loop is None else loop
        self.skew = skew

    def now(self) -> Instant:
        return self._loop.start + self._loop.elapsed + self.skew

    def monotonic(self) -> Micros:
        return _UPTIME + self._loop.elapsed

    async def sleep(self, duration: Micros) -> None:
        await asyncio.sleep(duration / SECOND)


def get_virtual_loop() -> VirtualLoop:
    """Return the virtual loop that the caller runs on."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop), "not in virtual time: start it by run_virtual"
    return loop


def run_virtual(
    main: Coroutine[None, None, T],
    seed: int = 0,
    *,
    start: Instant = START,
    jitter: Micros = 0,
    longest: Micros = 366 * DAY,
) -> T:
    """Run a coroutine to its end in virtual time. Tasks that still run when ``main`` is done are cancelled.

    Raises ``Stuck`` if no task can proceed, or if it is not done after ``longest``.
    """
    with asyncio.Runner(
        loop_factory=lambda: VirtualLoop(start=start, seed=seed, jitter=jitter, longest=longest), debug=False
    ) as runner:
        return runner.run(main)
