"""What a worker says of itself every few seconds."""

from typing import cast

from structlog.testing import capture_logs

from mainspring.adapters.wakeups.local import LocalWakeups
from mainspring.domain.instant import SECOND
from mainspring.domain.run import Outcome
from mainspring.testing.virtual_time import VirtualClock, run_virtual
from mainspring.worker.pulse import Pulse
from mainspring.worker.worker import Worker


class Busy:
    running = 3

    def __init__(self) -> None:
        self.counts = {Outcome.SUCCESS: 0, Outcome.ERROR: 0, Outcome.TIMEOUT: 0}


def test_runs_that_failed_are_counted_and_are_no_error_of_the_log() -> None:
    async def scenario() -> None:
        clock, worker = VirtualClock(), Busy()
        with capture_logs() as said:
            async with Pulse(cast(Worker, worker), LocalWakeups(), clock):
                await clock.sleep(SECOND)
                worker.counts = {Outcome.SUCCESS: 32, Outcome.ERROR: 6, Outcome.TIMEOUT: 0}
                await clock.sleep(10 * SECOND)
        [line] = [line for line in said if "last 5 seconds" in line["event"]]
        assert {"success": 32, "failed": 6, "running": 3}.items() <= line.items()
        assert "error" not in line
        assert "timeout" not in line

    run_virtual(scenario())
