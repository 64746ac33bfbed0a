"""The claimer: which answers to a claim it accepts, and how long it waits when it is idle."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.store import Demand
from mainspring.core.worker.attempt import Holding
from mainspring.core.worker.claimer import Claimer
from mainspring.core.worker.runtime import WorkerRuntime
from mainspring.core.worker.settings import WorkerSettings
from mainspring.core.worker.slots import Slots
from tests.support.builders import a_held_run
from tests.support.clock import ManualClock

SETTINGS = WorkerSettings()


class FixedRandom(Random):
    """Always returns the same number."""

    def __init__(self, number: float) -> None:
        super().__init__(0)
        self.number = number

    def random(self) -> float:
        return self.number


class SlowStore:
    """Answers a claim with one run, after a while in which the lease may be lost."""

    def __init__(self, clock: ManualClock, holding: Holding, took: Micros, *, lost: bool) -> None:
        self.clock = clock
        self.holding = holding
        self.took = took
        self.lost = lost
        self.pending: list[set[int]] = []

    async def claim(self, session: SessionId, number: int, demands: Sequence[Demand]) -> list[HeldRun]:
        self.pending.append(set(self.holding.pending))
        self.clock.advance(self.took)
        self.holding.lost = self.lost
        return [a_held_run()]


@pytest.mark.parametrize(
    ("took", "lost", "accepted"),
    [
        (SETTINGS.claim_timeout, False, True),
        (SETTINGS.claim_timeout + 1, False, False),
        (MILLISECOND, True, False),
        (SETTINGS.claim_timeout + 1, True, False),
    ],
)
async def test_runs_of_a_claim_are_accepted_if_it_was_answered_in_time_under_the_same_lease(
    took: Micros, lost: bool, accepted: bool
) -> None:
    clock, holding = ManualClock(), Holding(SessionId(1), 0)
    clock.advance(SECOND)
    store: Any = SlowStore(clock, holding, took, lost=lost)
    started: list[HeldRun] = []
    wakeup = LocalWakeups().listen([])
    claimer = Claimer(
        WorkerRuntime(store, LocalWakeups(), clock, SETTINGS, Random(0)),
        wakeup,
        Slots(SETTINGS.queues, clock, wakeup, SETTINGS.gather),
        lambda holding, runs: started.extend(runs),
        overloaded=lambda: len(store.pending) == 1,
    )
    claimer.holding = holding
    await claimer.tick()
    assert len(started) == accepted
    # The next heartbeat returns the runs of a claim that is neither pending nor held.
    assert (store.pending, holding.pending) == ([{1}], set())
    assert not claimer.claiming


@pytest.mark.parametrize(("number", "wait"), [(0.0, 750), (0.5, 1_000), (1.0, 1_250)])
async def test_idle_workers_jitter_their_interval_by_a_quarter(number: float, wait: int) -> None:
    clock, wakeup = ManualClock(), LocalWakeups().listen([])
    store: Any = None
    claimer = Claimer(
        WorkerRuntime(store, LocalWakeups(), clock, WorkerSettings(poll_interval=SECOND), FixedRandom(number)),
        wakeup,
        Slots(SETTINGS.queues, clock, wakeup, SETTINGS.gather),
        lambda holding, runs: None,
        overloaded=lambda: False,
    )
    assert await claimer.tick() == wait * MILLISECOND


class SilentBroker:
    """A broker that never has a hint."""

    away = False

    async def take(self, queue: str, limit: int, timeout: Micros, priority: int | None) -> list[object]:
        await asyncio.Event().wait()
        return []


class EmptyStore:
    """Has no runs. Counts the claims."""

    def __init__(self) -> None:
        self.claims = 0

    async def claim(self, session: SessionId, number: int, demands: Sequence[Demand]) -> list[HeldRun]:
        self.claims += 1
        assert not any(demand.runs for demand in demands)
        return []


@pytest.mark.parametrize(("later", "claims"), [(499, 1), (500, 2)])
async def test_a_worker_without_hints_claims_after_half_of_its_poll_interval(later: int, claims: int) -> None:
    clock, wakeup = ManualClock(), LocalWakeups().listen([])
    clock.advance(SECOND)
    store: Any = EmptyStore()
    broker: Any = SilentBroker()
    claimer = Claimer(
        WorkerRuntime(store, LocalWakeups(), clock, WorkerSettings(poll_interval=SECOND), FixedRandom(0)),
        wakeup,
        Slots(SETTINGS.queues, clock, wakeup, SETTINGS.gather),
        lambda holding, runs: None,
        overloaded=lambda: False,
        brokers={"default": broker},
    )
    claimer.holding = Holding(SessionId(1), 0)
    await claimer.tick()
    clock.advance(later * MILLISECOND)
    await claimer.tick()
    await claimer.abort()
    assert store.claims == claims
