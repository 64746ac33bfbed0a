"""The reaper on the memory store, in virtual time."""

from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from mainspring.core.maintenance.reaper import Reaper
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import HOUR, MILLISECOND, MINUTE, SECOND, Micros
from mainspring.core.model.runs.completion import LOST_AFTER, Completion, CompletionAnswer, complete_success
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import HeldRun, Outcome, RunState
from mainspring.core.model.runs.view import OVERDUE_GRACE
from mainspring.core.model.workflows.dependencies import DependencyRule
from mainspring.core.ports.wakeups import SCHEDULES, Wakeup, queue_topic
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.scheduler.loader import HORIZON
from mainspring.core.store import Demand
from mainspring.stores.memory import MemoryStore
from mainspring.testing.virtual_time import VirtualClock
from tests.support.builders import a_held_run, a_policy, a_run, a_worker, some_runs
from tests.support.virtual import in_virtual_time


class World:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore(self.clock, 4)
        self.wakeups = LocalWakeups()
        self.reaper = self.make_reaper()

    def make_reaper(self) -> Reaper:
        return Reaper(self.store, self.wakeups, self.clock, Random(1))

    def wakeup(self, queue: str = "default") -> Wakeup:
        return self.wakeups.listen([queue_topic(queue)])

    async def claim(self, limit: int = 1_000, ttl: Micros = 10 * SECOND) -> tuple[SessionId, list[HeldRun]]:
        """Open a session, and claim all queued runs."""
        session = await self.store.open_session(a_worker(ttl=ttl))
        return session, await self.store.claim(session, 1, [Demand("default", limit)])

    async def states(self, runs: Sequence[NewRun]) -> list[RunState | None]:
        return [None if view is None else view.state for view in await self.store.runs([run.id for run in runs])]


@in_virtual_time
async def test_runs_of_an_expired_worker_are_queued_again_within_twelve_seconds() -> None:
    world = World()
    run = a_run()
    await world.store.submit([run])
    _, (held,) = await world.claim()
    died_at = world.clock.monotonic()
    async with world.reaper:
        wakeup = world.wakeup()
        assert await wakeup.wait(MINUTE)
        assert world.clock.monotonic() - died_at <= 12 * SECOND
        _, (again,) = await world.claim()
    assert (again.id, again.attempt, again.lost) == (run.id, 2, 1)
    assert again.fence > held.fence
    assert await world.store.complete([complete_success(held, None)]) == [CompletionAnswer.STALE]
    (attempt,) = await world.store.attempts(run.id)
    assert attempt.outcome is Outcome.LOST


@in_virtual_time
async def test_a_worker_that_sends_heartbeats_keeps_its_runs() -> None:
    world = World()
    run = a_run()
    await world.store.submit([run])
    session, (held,) = await world.claim()
    async with world.reaper:
        for _ in range(100):
            await world.clock.sleep(3 * SECOND)
            await world.store.heartbeat(session, 10 * SECOND, [held.id], [], 1)
    assert await world.states([run]) == [RunState.RUNNING]


@in_virtual_time
async def test_one_step_requeues_more_lost_runs_than_fit_into_a_batch() -> None:
    world = World()
    runs = some_runs(1_700)
    await world.store.submit(runs)
    await world.claim(2_000)
    await world.clock.sleep(11 * SECOND)
    await world.reaper.step()
    assert set(await world.states(runs)) == {RunState.QUEUED}


@in_virtual_time
async def test_two_reapers_do_not_count_a_loss_twice() -> None:
    world = World()
    run = a_run()
    await world.store.submit([run])
    await world.claim()
    async with world.reaper, world.make_reaper():
        await world.clock.sleep(20 * SECOND)
    (view,) = await world.store.runs([run.id])
    assert view is not None
    assert (view.state, view.lost) == (RunState.QUEUED, 1)
    assert len(await world.store.attempts(run.id)) == 1


@in_virtual_time
async def test_a_run_that_loses_several_workers_fails_as_poison() -> None:
    world = World()
    poison, innocent = a_run(), a_run()
    await world.store.submit([poison, innocent])
    deaths = 0
    async with world.reaper:
        while True:
            _, held = await world.claim()
            if deaths == 1:
                # The innocent run shares only the first lost worker.
                await world.store.complete([complete_success(run, None) for run in held if run.id == innocent.id])
            if not any(run.id == poison.id for run in held):
                break
            deaths += 1
            await world.clock.sleep(13 * SECOND)
    assert deaths == LOST_AFTER
    assert await world.states([poison, innocent]) == [RunState.FAILED, RunState.SUCCEEDED]
    (view,) = await world.store.runs([poison.id])
    assert view is not None
    assert view.reason == "poison"


@in_virtual_time
async def test_a_lost_at_most_once_run_fails_without_a_retry() -> None:
    world = World()
    run = a_run(policy=a_policy(at_most_once=True))
    await world.store.submit([run])
    await world.claim()
    async with world.reaper:
        await world.clock.sleep(15 * SECOND)
    assert await world.states([run]) == [RunState.FAILED]


@in_virtual_time
async def test_a_cancelling_run_is_cancelled_when_its_worker_expires() -> None:
    world = World()
    run = a_run()
    await world.store.submit([run])
    await world.claim()
    await world.store.cancel([run.id])
    async with world.reaper:
        await world.clock.sleep(15 * SECOND)
    assert await world.states([run]) == [RunState.CANCELLED]


@in_virtual_time
async def test_a_hung_attempt_is_timed_out_and_retried_although_its_worker_is_alive() -> None:
    world = World()
    run = a_run(policy=a_policy(timeout=5 * SECOND))
    await world.store.submit([run])
    session, (held,) = await world.claim(ttl=HOUR)
    async with world.reaper:
        await world.clock.sleep(5 * SECOND + OVERDUE_GRACE - SECOND)
        assert await world.states([run]) == [RunState.RUNNING]
        await world.clock.sleep(4 * SECOND)
        assert await world.states([run]) == [RunState.SCHEDULED]
    (attempt,) = await world.store.attempts(run.id)
    assert attempt.outcome is Outcome.TIMEOUT
    # The worker reports too late.
    assert await world.store.complete([complete_success(held, None)]) == [CompletionAnswer.STALE]
    assert not (await world.store.heartbeat(session, HOUR, [], [], 1)).returned


@in_virtual_time
async def test_a_run_that_waits_past_its_start_limit_or_deadline_ends_with_a_reason() -> None:
    world = World()
    unstarted, unfinished = a_run(start_within=5 * SECOND), a_run(deadline=5 * SECOND)
    await world.store.submit([unstarted, unfinished])
    async with world.reaper:
        await world.clock.sleep(7 * SECOND)
    views = await world.store.runs([unstarted.id, unfinished.id])
    assert [view and (view.state, view.reason) for view in views] == [
        (RunState.SKIPPED, "expired"),
        (RunState.FAILED, "deadline"),
    ]


@pytest.mark.parametrize("counted", [False, True])
@in_virtual_time
async def test_expired_runs_are_counted_if_there_are_metrics(counted: bool) -> None:
    world = World()
    await world.store.submit([a_run(start_within=5 * SECOND) for _ in range(3)])
    counts: list[int] = []
    metrics: Any = SimpleNamespace(expired=counts.append) if counted else None
    reaper = Reaper(world.store, world.wakeups, world.clock, Random(1), metrics)
    await reaper.tick()
    await world.clock.sleep(6 * SECOND)
    for _ in range(2):
        await reaper.tick()
    assert counts == [3] * counted


@in_virtual_time
async def test_reapers_jitter_their_interval() -> None:
    world = World()
    waits = {await world.reaper.tick() for _ in range(20)}
    assert len(waits) > 10
    assert all(SECOND // 2 < wait <= 1.25 * SECOND for wait in waits)


@pytest.mark.parametrize(("number", "wait"), [(0.0, 750), (0.5, 1_000), (1.0, 1_250)])
@in_virtual_time
async def test_the_interval_of_a_reaper_varies_by_a_quarter(number: float, wait: int) -> None:
    world = World()
    random = Random(1)
    random.random = lambda: number  # type: ignore[method-assign]
    assert await Reaper(world.store, world.wakeups, world.clock, random).tick() == wait * MILLISECOND


@pytest.mark.parametrize(
    ("state", "delay", "topics"),
    [
        (RunState.SCHEDULED, HORIZON, {"default", SCHEDULES}),
        # The loader of the agenda reads this run before it is due.
        (RunState.SCHEDULED, HORIZON + 1, {"default"}),
        (RunState.QUEUED, 0, {"default"}),
        (RunState.FAILED, 0, {"default"}),
    ],
)
@pytest.mark.parametrize("answer", CompletionAnswer)
@in_virtual_time
async def test_schedulers_are_notified_of_lost_runs_that_are_due_within_their_horizon(
    answer: CompletionAnswer, state: RunState, delay: Micros, topics: set[str]
) -> None:
    world = World()
    held = a_held_run()
    completion = Completion(run=held.id, fence=held.fence, outcome=Outcome.LOST, state=state, delay=delay)

    async def complete(completions: Sequence[Completion]) -> list[CompletionAnswer]:
        return [answer]

    world.store.complete = complete  # type: ignore[method-assign]
    listeners = {"default": world.wakeup(), SCHEDULES: world.wakeups.listen([SCHEDULES])}
    with capture_logs() as logs:
        completed = await world.reaper._complete("runs of expired workers", "lost", [held], [completion])
    notified = {topic for topic, wakeup in listeners.items() if await wakeup.wait(1)}
    # A duplicate or stale settlement was another reaper's.
    assert (completed, notified) == ((1, topics) if answer is CompletionAnswer.ACCEPTED else (0, set()))
    failed = [entry["failed"] for entry in logs]
    assert failed == ([int(state is RunState.FAILED)] if answer is CompletionAnswer.ACCEPTED else [])


@in_virtual_time
async def test_a_thousand_children_continue_within_two_seconds_of_their_parent() -> None:
    world = World()
    parent = a_run()
    children = [a_run(after=[parent], rule=DependencyRule.ALL_DONE, queue="children") for _ in range(1_200)]
    await world.store.submit([parent, *children])
    async with world.reaper:
        await world.store.cancel([parent.id])
        await world.clock.sleep(2 * SECOND)
    assert set(await world.states(children)) == {RunState.QUEUED}
