"""An event loop in virtual time: hours pass in milliseconds, and the same program runs in the same order every time.

    def test_it_takes_a_day() -> None:
        async def scenario() -> None:
            clock = VirtualClock()
            await clock.sleep(DAY)

        run_virtual(scenario())

Nothing waits: when nobody can go on, time jumps to the next timer. There are no threads and no files or sockets to wait
for, so a program with nothing left to wait for is stuck, and says so. Time stands still while code runs.
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

#: Where virtual time begins unless told otherwise.
START: Instant = parse_instant("2026-03-01T00:00:00Z")
#: So many turns of the loop without time moving on are a program that spins.
_SPINNING = 1_000_000
#: What a monotonic clock shows at the start says nothing about the wall clock.
_UPTIME: Micros = 1_000 * SECOND


class Stuck(RuntimeError):
    """Nobody can ever go on: everything waits and no timer is set, or it spins, or it takes too long."""


class _HasNumber(Protocol):
    def fileno(self) -> int: ...


class VirtualSelector(selectors.BaseSelector):
    """Instead of waiting it moves the time. Files can be registered, but nothing ever happens to them."""

    def __init__(self, start: Instant, longest: Micros) -> None:
        self.start = start
        self.elapsed: Micros = 0
        self._longest = longest
        self._turns = 0
        self._keys: dict[int | _HasNumber, selectors.SelectorKey] = {}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck(f"everything waits and no timer is set at {isoformat(self.start + self.elapsed)}")
        if timeout > 0:
            self.elapsed += whole_micros(timeout)
            self._turns = 0
            if self.elapsed > self._longest:
                raise Stuck(f"not done by {isoformat(self.start + self.elapsed)}")
        else:
            self._turns += 1
            if self._turns > _SPINNING:
                self._turns = 0
                raise Stuck(f"{_SPINNING} turns without time moving on at {isoformat(self.start + self.elapsed)}")
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


def whole_micros(timeout: float) -> Micros:
    """Timers are whole microseconds but for the rounding of floats; at least one, or time could stand still."""
    return max(1, ceil(timeout * SECOND - 0.01))


def _number(file: int | _HasNumber) -> int:
    return file if isinstance(file, int) else file.fileno()


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time moves only when nobody can go on."""

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
        #: The source of chance for whoever runs on this loop.
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
        """How much time has passed, exactly."""
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
        # Timers of one instant go off in the order they were set; a jitter shuffles them by the seed.
        if self._jitter:
            when += self.random.randrange(self._jitter) / SECOND
        return super().call_at(when, callback, *args, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Arguments], T], *args: *Arguments
    ) -> asyncio.Future[T]:
        raise NotImplementedError("there are no threads in virtual time")


class VirtualClock:
    """The clock of one node on a virtual loop. Its wall clock is off by ``skew``; the monotonic one cannot be."""

    def __init__(self, loop: VirtualLoop | None = None, skew: Micros = 0) -> None:
        self._loop = virtual_loop() if loop is None else loop
        self.skew = skew

    def now(self) -> Instant:
        return self._loop.start + self._loop.elapsed + self.skew

    def monotonic(self) -> Micros:
        return _UPTIME + self._loop.elapsed

    async def sleep(self, duration: Micros) -> None:
        await asyncio.sleep(duration / SECOND)


def virtual_loop() -> VirtualLoop:
    """The loop that this code runs on."""
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
    """Run to the end in virtual time. What still runs when ``main`` is done is cancelled.

    Raises ``Stuck`` when nobody can go on, or when it is not done after ``longest``.
    """
    with asyncio.Runner(
        loop_factory=lambda: VirtualLoop(start=start, seed=seed, jitter=jitter, longest=longest), debug=False
    ) as runner:
        return runner.run(main)
