"""A handler that completes its own run: the worker frees the slot and reports no outcome."""

from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.runs.completion import complete_success
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.run import HeldRun, Outcome, RunState
from mainspring.core.worker.handler import COMPLETED_BY_HANDLER
from mainspring.core.worker.settings import WorkerSettings
from tests.support.builders import a_run
from tests.support.virtual import in_virtual_time
from tests.support.worker_kit import Tasks, running_worker


@in_virtual_time
async def test_a_run_that_its_handler_completed_is_not_completed_again() -> None:
    calls = 0

    async def greet(held: HeldRun) -> bytes | None:
        nonlocal calls
        calls += 1
        await bench.memory.complete([complete_success(held, b"7")])
        return COMPLETED_BY_HANDLER

    async with running_worker(Tasks(greet=greet), WorkerSettings(queues={"default": 1})) as bench:
        began = bench.clock.monotonic()
        runs = await bench.submit(*(a_run(policy=RunPolicy(ordering_key="shelf")) for _ in range(5)))
        for run in runs:
            view = await bench.until(run)
            assert (view.state, view.result, view.attempt) == (RunState.SUCCEEDED, b"7", 1)
        # Each completion starts the next run of the key without a poll.
        assert bench.clock.monotonic() - began < SECOND // 2
        assert bench.worker.running == 0
        assert bench.worker.lease.holding is not None
        assert not bench.worker.lease.holding.held
        assert bench.worker.counts[Outcome.SUCCESS] == 5
        assert calls == 5
        assert bench.store.completed == []
