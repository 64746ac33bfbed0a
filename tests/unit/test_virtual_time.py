"""The loop that all simulated time stands on."""

import asyncio
import time

import pytest

from mainspring.domain.instant import DAY, HOUR, SECOND, Micros
from mainspring.testing.virtual_time import START, Stuck, VirtualClock, run_virtual


def test_a_year_passes_in_no_time_and_to_the_microsecond() -> None:
    async def scenario() -> None:
        clock = VirtualClock()
        began = clock.monotonic()
        for duration in (1, 333, SECOND // 3, HOUR, 300 * DAY, 1, 7):
            await clock.sleep(duration)
        assert clock.monotonic() - began == 1 + 333 + SECOND // 3 + HOUR + 300 * DAY + 1 + 7
        assert clock.now() - START == clock.monotonic() - began

    began = time.perf_counter()
    run_virtual(scenario())
    assert time.perf_counter() - began < 5


def test_timers_go_off_in_order_and_those_of_one_instant_as_they_were_set() -> None:
    async def scenario() -> list[int]:
        clock = VirtualClock()
        order: list[int] = []

        async def wake(number: int, after: Micros) -> None:
            await clock.sleep(after)
            order.append(number)

        await asyncio.gather(wake(1, 3 * SECOND), wake(2, SECOND), wake(3, SECOND), wake(4, 2 * SECOND))
        return order

    assert run_virtual(scenario()) == [2, 3, 4, 1]


def test_a_seed_gives_the_same_order_every_time_and_another_seed_another() -> None:
    async def scenario() -> list[int]:
        clock = VirtualClock()
        order: list[int] = []

        async def wake(number: int) -> None:
            await clock.sleep(SECOND)
            order.append(number)

        await asyncio.gather(*(wake(number) for number in range(50)))
        return order

    assert run_virtual(scenario(), 1, jitter=100) == run_virtual(scenario(), 1, jitter=100)
    assert run_virtual(scenario(), 1, jitter=100) != run_virtual(scenario(), 2, jitter=100)


def test_a_clock_can_be_wrong_about_the_date_but_not_about_how_long_something_takes() -> None:
    async def scenario() -> None:
        right, wrong = VirtualClock(), VirtualClock(skew=-HOUR)
        assert wrong.now() == right.now() - HOUR
        assert wrong.monotonic() == right.monotonic()

    run_virtual(scenario())


def test_everybody_waiting_for_somebody_else_is_an_error() -> None:
    async def scenario() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck, match="no timer is set at 2026-03-01"):
        run_virtual(scenario())


def test_a_program_that_takes_too_long_is_an_error() -> None:
    async def scenario() -> None:
        while True:
            await VirtualClock().sleep(SECOND)

    with pytest.raises(Stuck, match="not done by"):
        run_virtual(scenario(), longest=HOUR)


def test_what_still_runs_at_the_end_is_cancelled() -> None:
    ended = []

    async def for_ever() -> None:
        try:
            await VirtualClock().sleep(DAY)
        finally:
            ended.append("cancelled")

    async def scenario() -> None:
        task = asyncio.create_task(for_ever())
        await VirtualClock().sleep(SECOND)
        assert not task.done()

    run_virtual(scenario())
    assert ended == ["cancelled"]


def test_there_are_no_threads() -> None:
    async def scenario() -> None:
        with pytest.raises(NotImplementedError):
            await asyncio.to_thread(print)

    run_virtual(scenario())
