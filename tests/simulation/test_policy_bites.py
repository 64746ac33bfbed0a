"""Seeds fail when a rule of queues, calendars, pauses or objectives is removed."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from mainspring.core.model.base.ids import JobId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.limits.queues import QueuePolicy
from mainspring.core.model.schedules.calendar import Calendar
from mainspring.core.model.schedules.closed_periods import ClosedPeriods
from mainspring.core.model.schedules.job import Job, JobState
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.slos import SloResult
from mainspring.core.scheduler.closed_times import ClosedTimes
from mainspring.stores.changes import Change
from mainspring.stores.memory.rows import RunRow
from tests.support.simulation.biting import SEEDS, MakeStore, bites, complains
from tests.support.simulation.clock import StoreClock
from tests.support.simulation.history import History
from tests.support.simulation.scenario import draw
from tests.support.simulation.store import RecordedStore, RecordingTables

pytestmark = [pytest.mark.simulation, pytest.mark.slow, pytest.mark.timeout(400)]


class CarelessStore(RecordedStore):
    """A store with changed tables."""

    kind: type[RecordingTables] = RecordingTables

    def __init__(self, clock: StoreClock, shards: int, history: History) -> None:
        super().__init__(clock, shards, history)
        self.tables = self._tables = self.kind(clock, shards)


class UncountingTables(RecordingTables):
    def count_running(self, queue: str) -> int:
        return 0


class WithoutConcurrency(CarelessStore):
    """A claim ignores how many runs of the queue are running."""

    kind = UncountingTables


class SpendingTables(RecordingTables):
    def compute_retry_due(self, run: RunRow, due: Instant) -> Instant:
        return due


class WithoutBudget(CarelessStore):
    """Retries ignore the retry budget."""

    kind = SpendingTables


class UnfairTables(RecordingTables):
    def get_queue_policy(self, queue: str) -> QueuePolicy:
        return msgspec.structs.replace(super().get_queue_policy(queue), fair=False, shares={})


class WithoutTurns(CarelessStore):
    """Fair queues are served first come, first served."""

    kind = UnfairTables


class RestlessTables(RecordingTables):
    def is_paused(self, run: RunRow, now: Instant) -> bool:
        return False


class WithoutQueuePauses(CarelessStore):
    """A claim ignores pauses of queues."""

    kind = RestlessTables


class Nothing(set[str]):
    def __contains__(self, _: object) -> bool:
        return False


class WithoutWeights(RecordedStore):
    """A claim ignores the weight of runs."""

    def __init__(self, clock: StoreClock, shards: int, history: History) -> None:
        super().__init__(clock, shards, history)
        self.tables.weighted = Nothing()


class WithoutReplanning(RecordedStore):
    """A change of a calendar does not replan the schedules that use it."""

    def _add_version(self, before: Calendar | None, made: Calendar, author: Author, action: str) -> None:
        self.tables.calendars.setdefault((made.tenant, made.name), []).append(made)
        self.tables.audit(action, author, [Change(made.tenant, made.name)])


class WithoutRevisionCheck(RecordedStore):
    """Several concurrent evaluations of an objective are all accepted."""

    async def save_slos(self, results: Sequence[SloResult]) -> int:
        rows = self.tables.slos
        known = [one for one in results if one.job in rows]
        return await super().save_slos([msgspec.structs.replace(one, rev=rows[one.job].rev) for one in known])


@pytest.mark.parametrize(
    ("store", "complaint"),
    [
        pytest.param(WithoutConcurrency, "queue_concurrency_holds", id="the concurrency of queues"),
        pytest.param(WithoutBudget, "retries_keep_to_their_budget", id="retry budgets"),
        pytest.param(WithoutTurns, "tenants_take_turns", id="fair turns of tenants"),
        pytest.param(WithoutQueuePauses, "nothing_starts_that_is_paused", id="pauses of queues"),
        pytest.param(WithoutWeights, "is the limit", id="weights"),
        pytest.param(WithoutReplanning, "by its calendars", id="replanning schedules when a calendar changes"),
        pytest.param(WithoutRevisionCheck, "a_miss_is_reported_once", id="the revision check of objectives"),
    ],
)
def test_a_seed_fails_without_the_rule(store: MakeStore, complaint: str) -> None:
    assert any(bites(seed, store, complaint, operating=14, heavy=0.5) for seed in SEEDS)


def test_a_seed_fails_if_calendars_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(_: ClosedTimes, __: Sequence[Job]) -> dict[JobId, ClosedPeriods]:
        return {}

    monkeypatch.setattr(ClosedTimes, "of", none)
    assert any(_complains(seed, "by its calendars") for seed in SEEDS)


def test_a_seed_fails_if_pauses_with_an_end_time_do_not_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause lasts until the job is resumed, even past its end time."""
    monkeypatch.setattr(Job, "is_paused_at", lambda job, _: job.state is JobState.PAUSED)
    assert any(_complains(seed, "in no pause", meddling=4.0) for seed in SEEDS)


def _complains(seed: int, complaint: str, **changes: Any) -> bool:
    scenario = msgspec.structs.replace(draw(seed), operating=14, **changes)
    return complains(scenario, RecordedStore, complaint)
