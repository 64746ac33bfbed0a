"""Seeds fail when one of the store's or the worker's safeguards is removed.

The product has no switches for this: each test removes its safeguard from the store or from the simulated world.
"""

from collections.abc import Collection

import msgspec
import pytest

from mainspring.core.model.base.ids import RunId, SessionId
from mainspring.core.model.base.instant import SECOND, Instant, Micros
from mainspring.core.model.limits.limits import Ending, LimiterState
from mainspring.core.model.runs.completion import Completion, CompletionAnswer
from mainspring.core.model.runs.run import HeldRun, Outcome, RunState
from mainspring.core.model.schedules.job import Fire, Tick
from mainspring.core.ports.storage.answers import HeartbeatAnswer
from mainspring.core.rules.limit_decisions import LimiterRow
from mainspring.core.worker.lease import Lease
from mainspring.stores.key_locks import compute_tick_key_lock
from mainspring.stores.memory.rows import JobRow, RunRow
from mainspring.stores.memory.work.dependencies import DependencyGraph
from mainspring.stores.memory.work.limiters import Limiters
from tests.support.simulation.biting import SEEDS, MakeStore, bites, complains
from tests.support.simulation.clock import StoreClock
from tests.support.simulation.history import History
from tests.support.simulation.scenario import Chaos, draw
from tests.support.simulation.store import RecordedStore, RecordingTables

pytestmark = [pytest.mark.simulation, pytest.mark.slow, pytest.mark.timeout(400)]


class WithoutFences(RecordedStore):
    """A completion of a running run is accepted under any fence."""

    def _complete(self, completion: Completion, now: Instant) -> CompletionAnswer:
        run = self.tables.runs.get(completion.run)
        if run is not None and run.state is RunState.RUNNING:
            completion = msgspec.structs.replace(completion, fence=run.fence)
        return super()._complete(completion, now)


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
    """The reaper finds no lost runs."""

    async def lost_runs(self, limit: int) -> list[HeldRun]:
        return []


class WithoutTickKey(RecordedStore):
    """A tick can be recorded twice, and a fire may come from an outdated version of its job."""

    def _fire(self, owner: SessionId, fire: Fire) -> list[RunRow] | None:
        row = self.tables.jobs[fire.job.id]
        return super()._fire(owner, msgspec.structs.replace(fire, job=msgspec.structs.replace(fire.job, rev=row.rev)))

    def _create_run(self, job: JobRow, tick: Tick) -> RunRow | None:
        ledger = self.tables.ledgers[job.id]
        if ledger.entries.pop((tick.scheduled_at, tick.target), None) is not None:
            ledger.times.remove((tick.scheduled_at, tick.target))
        return super()._create_run(job, tick)


class WithoutReturningUnknownRuns(RecordedStore):
    """A heartbeat does not return runs that the worker does not know."""

    async def heartbeat(
        self, session: SessionId, ttl: Micros, held: Collection[RunId], pending: Collection[int], last_claim: int
    ) -> HeartbeatAnswer:
        return await super().heartbeat(session, ttl, list(self.tables.running_by_session[session]), pending, last_claim)


class WithoutCheckingCancels(RecordedStore):
    """A run gets its next attempt although it was cancelled."""

    def _continue(self, run: RunRow, state: RunState, position: int, outcome: Outcome) -> None:
        run.cancel_at = None
        super()._continue(run, state, position, outcome)


class ForgetfulTables(RecordingTables):
    def promote(self, key: int) -> bool:
        swept = self.step is not None and self.step.operation == "sweep"
        return super().promote(key) if swept else False


class WithoutPromotion(RecordedStore):
    """Completing a run does not promote the next one of its key. The sweeper has to find it."""

    def __init__(self, clock: StoreClock, shards: int, history: History) -> None:
        super().__init__(clock, shards, history)
        self.tables = self._tables = ForgetfulTables(clock, shards)


class CarelessTables(RecordingTables):
    def drop_ticks(self, job: JobRow, reason: str) -> None: ...


class WithoutDroppedTicks(RecordedStore):
    """Ending a schedule does not record the ticks that were due."""

    def __init__(self, clock: StoreClock, shards: int, history: History) -> None:
        super().__init__(clock, shards, history)
        self.tables = self._tables = CarelessTables(clock, shards)


class WithoutCheckingOlderVersions(RecordedStore):
    """A tick ignores runs of an older job version with another overlap rule or ordering key."""

    def _admits_overlap(self, job: JobRow, target: str) -> bool:
        active = self.tables.active_by_job[job.id]
        key_lock = compute_tick_key_lock(job.id, job.tenant, job.spec)
        elsewhere = [run for run in active if self.tables.runs[run].key_lock != key_lock]
        for run in elsewhere:
            del active[run]
        room = super()._admits_overlap(job, target)
        active.update(dict.fromkeys(elsewhere))
        return room


class WithoutTheStoresClock(RecordedStore):
    """The store does not check that the ticks of a fire are due."""

    def _fire(self, owner: SessionId, fire: Fire) -> list[RunRow] | None:
        now, latest = self.tables.now, max((tick.scheduled_at for tick in fire.ticks), default=0)
        self.tables.now = max(now, latest)
        fired = super()._fire(owner, fire)
        self.tables.now = now
        return fired


class WideLimiters(Limiters):
    def read(self, number: int) -> LimiterRow:
        super().read(number)
        return LimiterRow(number, LimiterState())


class WithoutRoom(RecordedStore):
    """No limiter blocks a run."""

    def __init__(self, clock: StoreClock, shards: int, history: History) -> None:
        super().__init__(clock, shards, history)
        self.tables.limiters = WideLimiters(self.tables.runs)


class KeepingTables(RecordingTables):
    def _release_limiters(self, run: RunRow, ending: Ending) -> None:
        if run.state is not RunState.QUEUED:
            super()._release_limiters(run, ending)


class WithoutFreeingLimiters(RecordedStore):
    """A run that ends while it is queued keeps its limiters. The sweeper has to free them."""

    def __init__(self, clock: StoreClock, shards: int, history: History) -> None:
        super().__init__(clock, shards, history)
        self.tables = self._tables = KeepingTables(clock, shards)


class UnchangedChildren(DependencyGraph):
    def enqueue_children(self, run: RunRow) -> None: ...


class WithoutUpdatingChildren(RecordedStore):
    """Completing a run does not update its children. The sweeper has to find them."""

    def __init__(self, clock: StoreClock, shards: int, history: History) -> None:
        super().__init__(clock, shards, history)
        self.tables.dependencies = UnchangedChildren()


@pytest.mark.parametrize(
    ("store", "complaint"),
    [
        pytest.param(WithoutFences, "fences_hold", id="fencing"),
        pytest.param(WithoutCounting, "attempts_add_up", id="the attempt count at claim"),
        pytest.param(WithoutReaping, "nothing_is_lost", id="the reaper"),
        pytest.param(WithoutTickKey, "recorded twice", id="the unique tick key"),
        pytest.param(WithoutReturningUnknownRuns, "nothing_is_lost", id="heartbeats that return unknown runs"),
        pytest.param(WithoutCheckingCancels, "cancels_hold", id="the check for a cancel on every move"),
        pytest.param(WithoutPromotion, "the_sweeper_finds_nothing", id="promoting the next run of a key"),
        pytest.param(WithoutDroppedTicks, "ticks are missing", id="the record of ticks that were due"),
        pytest.param(WithoutRoom, "concurrency_limits_hold", id="limits at a time"),
        pytest.param(WithoutRoom, "rate_limits_hold", id="limits per period"),
        pytest.param(WithoutRoom, "only_one_goes_ahead", id="breakers"),
        pytest.param(
            WithoutFreeingLimiters, "the_sweeper_finds_nothing", id="freeing the limiters of runs that end while queued"
        ),
        pytest.param(WithoutUpdatingChildren, "the_sweeper_finds_nothing", id="updating children"),
    ],
)
def test_a_seed_fails_without_the_safeguard(store: MakeStore, complaint: str) -> None:
    assert any(bites(seed, store, complaint) for seed in SEEDS)


def test_a_seed_fails_if_overlap_ignores_runs_of_older_job_versions() -> None:
    assert any(bites(seed, WithoutCheckingOlderVersions, "does not wait for", meddling=6.0) for seed in SEEDS)


def test_a_seed_fails_if_fires_are_not_checked_against_the_store_clock() -> None:
    unsteady = Chaos(every=SECOND, step_store_clock=1)
    assert any(bites(seed, WithoutTheStoresClock, "before their time", chaos=unsteady) for seed in SEEDS)


def test_a_seed_fails_if_a_worker_without_a_lease_does_not_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lease, "lease_over", lambda *_: None)
    lonely = Chaos(every=SECOND, cut_off=1)
    scenarios = (msgspec.structs.replace(draw(seed), ending=20 * SECOND, chaos=lonely) for seed in SEEDS)
    assert any(complains(scenario, RecordedStore, "nothing_runs_twice_at_once") for scenario in scenarios)
