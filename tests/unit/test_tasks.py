"""Background tasks are cancelled until they have ended."""

import asyncio

from mainspring.core.model.base.instant import MINUTE
from mainspring.core.runtime.tasks import cancel_and_wait
from mainspring.testing.virtual_time import VirtualClock
from tests.support.virtual import in_virtual_time


async def sleep_on() -> None:
    await asyncio.sleep(3_600)


async def ignore_first_cancellation() -> None:
    """As ``asyncio.wait_for`` of Python 3.11 does when its result arrives at the same moment."""
    try:
        await asyncio.sleep(3_600)
    except asyncio.CancelledError:
        await asyncio.sleep(3_600)


async def fail_when_cancelled() -> None:
    try:
        await asyncio.sleep(3_600)
    except asyncio.CancelledError:
        raise ValueError("it cannot clean up") from None


@in_virtual_time
async def test_tasks_have_ended_when_the_call_returns() -> None:
    tasks = [asyncio.create_task(work()) for work in (sleep_on, ignore_first_cancellation, fail_when_cancelled)]
    await asyncio.sleep(0)
    clock = VirtualClock()
    began = clock.monotonic()
    await cancel_and_wait(*tasks)
    assert all(task.done() for task in tasks)
    # A minute is far from the hour that the tasks would have slept.
    assert clock.monotonic() - began < MINUTE


@in_virtual_time
async def test_tasks_that_have_ended_are_left_alone() -> None:
    await cancel_and_wait()
    ended = asyncio.create_task(asyncio.sleep(0, "result"))
    await ended
    await cancel_and_wait(ended)
    assert ended.result() == "result"
