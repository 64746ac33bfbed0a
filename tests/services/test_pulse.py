"""The line that a worker logs every few seconds."""

from typing import cast

from structlog.testing import capture_logs

from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.runs.run import Outcome
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.worker.reporting.attempt_log import AttemptLog
from mainspring.core.worker.reporting.pulse import Pulse
from mainspring.core.worker.worker import Worker
from mainspring.testing.virtual_time import VirtualClock
from tests.support.virtual import in_virtual_time


class FakeWorker:
    running = 3

    def __init__(self) -> None:
        self.counts = {Outcome.SUCCESS: 0, Outcome.ERROR: 0, Outcome.TIMEOUT: 0}


@in_virtual_time
async def test_the_pulse_logs_failed_runs_as_a_count_without_an_error_field() -> None:
    clock, worker = VirtualClock(), FakeWorker()
    with capture_logs() as logs:
        async with Pulse(cast(Worker, worker), AttemptLog(clock), LocalWakeups(), clock):
            await clock.sleep(SECOND)
            worker.counts = {Outcome.SUCCESS: 32, Outcome.ERROR: 6, Outcome.TIMEOUT: 0}
            await clock.sleep(10 * SECOND)
    [line] = [line for line in logs if "last 5 seconds" in line["event"]]
    assert {"success": 32, "failed": 6, "running": 3}.items() <= line.items()
    assert "error" not in line
    assert "timeout" not in line
