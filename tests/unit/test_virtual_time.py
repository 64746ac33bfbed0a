"""The event loop in virtual time, which all simulations run on."""

import asyncio

import pytest

from mainspring.core.model.base.instant import DAY, HOUR, SECOND, Micros
from mainspring.testing.virtual_time import START, NoProgress, VirtualClock, run_virtual
from tests.support.virtual import in_virtual_time


@in_virtual_time
async def test_ten_months_of_sleep_take_no_real_time_and_are_exact_to_the_microsecond() -> None:
    clock = VirtualClock()
    began = clock.monotonic()
    for duration in (1, 333, SECOND // 3, HOUR, 300 * DAY, 1, 7):
        await clock.sleep(duration)
    assert clock.monotonic() - began == 1 + 333 + SECOND // 3 + HOUR + 300 * DAY + 1 + 7
    assert clock.now() - START == clock.monotonic() - began


@in_virtual_time
async def test_timers_fire_in_order_of_time_and_timers_of_one_instant_as_they_were_set() -> None:
    clock = VirtualClock()
    order: list[int] = []

    async def wake(number: int, after: Micros) -> None:
        await clock.sleep(after)
        order.append(number)

    await asyncio.gather(wake(1, 3 * SECOND), wake(2, SECOND), wake(3, SECOND), wake(4, 2 * SECOND))
    assert order == [2, 3, 4, 1]


def test_a_seed_always_gives_the_same_order_and_another_seed_a_different_one() -> None:
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


@in_virtual_time
async def test_skew_changes_the_wall_clock_and_not_the_monotonic_clock() -> None:
    right, wrong = VirtualClock(), VirtualClock(skew=-HOUR)
    assert wrong.now() == right.now() - HOUR
    assert wrong.monotonic() == right.monotonic()


def test_a_program_that_waits_without_any_timer_is_stuck() -> None:
    async def scenario() -> None:
        await asyncio.Event().wait()

    with pytest.raises(NoProgress, match="no timer is set at 2026-03-01"):
        run_virtual(scenario())


def test_a_program_that_takes_longer_than_the_limit_is_stuck() -> None:
    async def scenario() -> None:
        while True:
            await VirtualClock().sleep(SECOND)

    with pytest.raises(NoProgress, match="not done by"):
        run_virtual(scenario(), longest=HOUR)


def test_tasks_that_are_still_running_at_the_end_are_cancelled() -> None:
    ended = []

    async def sleep_for_a_day() -> None:
        try:
            await VirtualClock().sleep(DAY)
        finally:
            ended.append("cancelled")

    async def scenario() -> None:
        task = asyncio.create_task(sleep_for_a_day())
        await VirtualClock().sleep(SECOND)
        assert not task.done()

    run_virtual(scenario())
    assert ended == ["cancelled"]


@in_virtual_time
async def test_threads_are_rejected() -> None:
    with pytest.raises(NotImplementedError):
        await asyncio.to_thread(print)
