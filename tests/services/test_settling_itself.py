"""A handler that settles its own run: the worker lets go of it and tells the store nothing."""

from mainspring.domain.instant import SECOND
from mainspring.domain.run import HeldRun, Outcome, RunPolicy, RunState, Settlement, settle_success
from mainspring.testing.virtual_time import VirtualClock, run_virtual
from mainspring.worker.handler import SETTLED
from mainspring.worker.settings import WorkerSettings
from tests.support.builders import a_run
from tests.support.worker_kit import Bench, Tasks


def test_what_has_settled_itself_is_not_settled_again_and_wakes_whoever_waited() -> None:
    async def scenario() -> None:
        told: list[Settlement] = []

        async def greet(held: HeldRun) -> bytes | None:
            settlement = settle_success(held, b"7")
            await bench.memory.settle([settlement])
            told.append(settlement)
            return SETTLED

        bench = Bench(VirtualClock(), Tasks(greet=greet), WorkerSettings(queues={"default": 1}))
        await bench.worker.start()
        policy = RunPolicy(ordering_key="shelf")
        begun = bench.clock.monotonic()
        runs = await bench.submit(*(a_run(policy=policy) for _ in range(5)))
        for run in runs:
            view = await bench.until(run)
            assert (view.state, view.result, view.attempt) == (RunState.SUCCEEDED, b"7", 1)
        # Nobody had to poll for the next one of the key, and nothing is left in its hands.
        assert bench.clock.monotonic() - begun < SECOND // 2
        assert bench.worker.running == 0
        assert bench.worker.holding is not None
        assert not bench.worker.holding.held
        assert bench.worker.counts[Outcome.SUCCESS] == 5
        assert len(told) == 5
        assert bench.store.settled == []
        await bench.worker.stop()

    run_virtual(scenario())
