"""The event loop of a worker's process, which handlers share with the worker."""

import asyncio

from mainspring.core.model.base.instant import HOUR
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.worker.own_loop import OwnLoop
from mainspring.core.worker.settings import WorkerSettings
from tests.support.builders import a_policy, a_run
from tests.support.builtin_worker import running
from tests.support.clock import SkippingClock
from tests.support.worker_kit import Bench, Tasks


async def stop(held: HeldRun) -> bytes | None:
    asyncio.get_running_loop().stop()
    return None


async def stop_in_a_task(held: HeldRun) -> bytes | None:
    await asyncio.create_task(stop(held))
    return None


async def greet(held: HeldRun) -> bytes | None:
    return None


def test_a_handler_that_stops_the_loop_fails_and_the_worker_continues() -> None:
    async def work() -> None:
        tasks = Tasks(stop=stop, stop_in_a_task=stop_in_a_task, greet=greet)
        async with running(Bench(SkippingClock(), tasks, WorkerSettings(lease=HOUR))) as bench:
            for task in ("stop", "stop_in_a_task"):
                (run,) = await bench.submit(a_run(task=task, policy=a_policy(retries=0)))
                view = await bench.until(run)
                assert view.state is RunState.FAILED
                assert view.error is not None
                assert "HandlerStopsLoop: the loop belongs to the worker" in view.error
                assert "asyncio.get_running_loop().stop()" in view.error, "the traceback shows the call"
            (run,) = await bench.submit(a_run(task="greet"))
            await bench.until(run, RunState.SUCCEEDED)

    with asyncio.Runner(loop_factory=OwnLoop) as runner:
        runner.run(work())
        loop = runner.get_loop()
        loop.call_soon(loop.stop)
        loop.run_forever()
