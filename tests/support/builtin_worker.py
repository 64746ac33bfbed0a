"""A worker of built-in tasks, with real processes and real time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mainspring.adapters.clock.system import SystemClock
from mainspring.domain.instant import SECOND
from mainspring.ports.egress import Egress
from mainspring.worker.builtin.tasks import BuiltinTasks
from mainspring.worker.settings import WorkerSettings
from tests.support.worker_kit import Bench, Tasks


@asynccontextmanager
async def working(tasks: BuiltinTasks) -> AsyncIterator[Bench]:
    bench = Bench(SystemClock(), Tasks(tasks.handlers(no_egress)), WorkerSettings(kill_grace=5 * SECOND))
    await bench.worker.start()
    try:
        yield bench
    finally:
        bench.worker.stop_now()
        await bench.worker.left()


def no_egress() -> Egress:
    raise AssertionError("nothing is called here")
