"""The line that a worker logs every few seconds."""

from typing import cast

from structlog.testing import capture_logs

from mainspring.adapters.wakeups.local import LocalWakeups
from mainspring.domain.instant import SECOND
from mainspring.domain.run import Outcome
from mainspring.testing.virtual_time import VirtualClock
from mainspring.worker.attempt_log import AttemptLog
from mainspring.worker.pulse import Pulse
from mainspring.worker.worker import Worker
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
