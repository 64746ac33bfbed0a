"""The simulation bites: take one of the engine's safeguards out, and seeds fail.

Nothing of this can be switched in the product: each safeguard is cut out of the store, or of the world, right here.
"""

from collections.abc import Callable

import msgspec
import pytest

from mainspring.adapters.store.memory.rows import JobRow, RunRow
from mainspring.domain.ids import SessionId
from mainspring.domain.instant import SECOND, Instant
from mainspring.domain.job import Fire, Tick
from mainspring.domain.run import HeldRun, RunState, Settlement, Verdict
from mainspring.ports.store import Fired
from tests.support.simulation.clock import StoreClock
from tests.support.simulation.history import History
from tests.support.simulation.invariants import violations
from tests.support.simulation.scenario import draw
from tests.support.simulation.store import RecordedStore, RecordingTables
from tests.support.simulation.world import simulate

pytestmark = pytest.mark.simulation

SEEDS = range(8)


class WithoutFences(RecordedStore):
    """Whoever settles a run that is running has his way."""

    def _settle(self, settlement: Settlement, now: Instant) -> Verdict:
        run = self.tables.runs.get(settlement.run)
        if run is not None and run.state is RunState.RUNNING:
            settlement = msgspec.structs.replace(settlement, fence=run.fence)
        return super()._settle(settlement, now)


class UncountedTables(RecordingTables):
    def start(self, run: RunRow, session: SessionId, claim: int, fence: int) -> None:
        run.attempt -= 1
        super().start(run, session, claim, fence)


class WithoutCounting(RecordedStore):
    """A claim does not count the attempt."""

    def __init__(self, clock: StoreClock, shards: int, history: History) -> None:
        super().__init__(clock, shards, history)
        self.tables = self._tables = UncountedTables(clock, shards)


class WithoutReaping(RecordedStore):
    """Nobody is ever found dead."""

    async def lost_runs(self, limit: int) -> list[HeldRun]:
        return []


class WithoutTickKey(RecordedStore):
    """Neither is a tick recorded once, nor does anybody look whether the job has changed since it was planned."""

    def _fire(self, owner: SessionId, fire: Fire) -> Fired:
        row = self.tables.jobs[fire.job.id]
        return super()._fire(owner, msgspec.structs.replace(fire, job=msgspec.structs.replace(fire.job, rev=row.rev)))

    def _record(self, job: JobRow, tick: Tick) -> RunRow | None:
        ledger = self.tables.ledgers[job.id]
        if ledger.entries.pop(tick.scheduled_at, None) is not None:
            ledger.times.remove(tick.scheduled_at)
        return super()._record(job, tick)


@pytest.mark.parametrize(
    ("store", "complaint"),
    [
        pytest.param(WithoutFences, "fences_hold", id="fencing"),
        pytest.param(WithoutCounting, "attempts_add_up", id="the attempt count at claim"),
        pytest.param(WithoutReaping, "nothing_is_lost", id="the reaper"),
        pytest.param(WithoutTickKey, "recorded twice", id="the unique tick key"),
    ],
)
def test_seeds_fail_without(store: Callable[[StoreClock, int, History], RecordedStore], complaint: str) -> None:
    def bites(seed: int) -> bool:
        # What never ends need not be watched for long.
        scenario = msgspec.structs.replace(draw(seed), ending=20 * SECOND)
        return any(complaint in sentence for sentence in violations(simulate(scenario, store)))

    assert any(bites(seed) for seed in SEEDS)
