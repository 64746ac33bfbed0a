"""A worker with real processes and real time, whose limits end only what hangs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import patch

from mainspring.core.model.base.instant import HOUR, MINUTE, Micros
from mainspring.core.ports.egress import Egress
from mainspring.core.worker.builtin.tasks import BuiltinTasks
from mainspring.core.worker.settings import WorkerSettings
from tests.support.clock import SkippingClock
from tests.support.waiting import eventually
from tests.support.worker_kit import Bench, Tasks


@asynccontextmanager
async def running(bench: Bench, *, kill_grace: Micros | None = None) -> AsyncIterator[Bench]:
    """Start the worker; stop it at the end without a grace period.

    ``kill_grace``: longer than the settings allow, so that an attempt may take its time to stop.
    """
    if kill_grace is not None:
        bench.worker._cancellation._kill_grace = kill_grace
    # A worker that leaves waits this long for killed attempts to end. A busy machine may need longer than usual.
    with patch("mainspring.core.worker.worker._STOPPING", 2 * MINUTE):
        await bench.worker.start()
        try:
            yield bench
        finally:
            bench.worker.stop_now()
            await bench.worker.left()
            await eventually(lambda: not bench.worker.processes, lambda: bench.worker.processes)


@asynccontextmanager
async def working(tasks: BuiltinTasks) -> AsyncIterator[Bench]:
    """A worker of built-in tasks."""
    bench = Bench(SkippingClock(), Tasks(tasks.handlers(no_egress)), WorkerSettings(lease=HOUR))
    async with running(bench, kill_grace=10 * MINUTE):
        yield bench


def no_egress() -> Egress:
    raise AssertionError("nothing is called here")
