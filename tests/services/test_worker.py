"""The worker on a memory store in virtual time."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from mainspring.core.model.base.errors import Invalid, StoreDamaged, StoreUnavailable
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MILLISECOND, MINUTE, SECOND, Micros
from mainspring.core.model.runs.completion import Completion
from mainspring.core.model.runs.run import HeldRun, Outcome, RunState
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.wakeups import CANCELS
from mainspring.core.runtime.metrics.run_metrics import RunMetrics
from mainspring.core.worker.attempt import Attempt, Holding, Stop
from mainspring.core.worker.completer import Completer
from mainspring.core.worker.reporting.attempt_log import AttemptLog
from mainspring.core.worker.reporting.reporter import Reporter
from mainspring.core.worker.settings import WorkerSettings
from mainspring.core.worker.worker import Worker
from mainspring.testing.virtual_time import VirtualClock
from tests.support.builders import a_policy, a_run, some_runs
from tests.support.virtual import in_virtual_time
from tests.support.worker_kit import Bench, Tasks, running_worker


async def greet(held: HeldRun) -> bytes | None:
    return b'"hello"'


async def sleep_long(held: HeldRun) -> bytes | None:
    await asyncio.sleep(1_000)
    return None


def a_worker(tasks: Tasks | None = None, settings: WorkerSettings | None = None) -> AbstractAsyncContextManager[Bench]:
    return running_worker(tasks or Tasks(greet=greet, sleep=sleep_long), settings)


class Counting:
    """A task that counts its concurrent calls."""

    def __init__(self, duration: Micros) -> None:
        self.duration = duration
        self.running = 0
        self.most = 0
        self.started: list[RunId] = []

    async def __call__(self, held: HeldRun) -> bytes | None:
        self.running += 1
        self.most = max(self.most, self.running)
        self.started.append(held.id)
        try:
            await asyncio.sleep(self.duration / SECOND)
        finally:
            self.running -= 1
        return None


# Claiming


@in_virtual_time
async def test_a_run_is_started_and_its_result_is_recorded() -> None:
    async with a_worker() as bench:
        (run,) = await bench.submit(a_run())
        view = await bench.until(run)
        assert view.state is RunState.SUCCEEDED
        assert view.result == b'"hello"'
        assert view.attempt == 1


@in_virtual_time
async def test_a_notification_starts_a_run_at_once_and_polling_within_its_interval() -> None:
    started: list[Micros] = []

    async def note(held: HeldRun) -> bytes | None:
        started.append(clock.monotonic())
        return None

    async with a_worker(Tasks(greet=note)) as bench:
        clock = bench.clock
        await clock.sleep(10 * SECOND)
        submitted = clock.monotonic()
        await bench.submit(a_run())
        await clock.sleep(10 * SECOND)
        assert started[0] - submitted <= MILLISECOND
        submitted = clock.monotonic()
        await bench.submit(a_run(), notify=False)
        await clock.sleep(10 * SECOND)
        assert MILLISECOND < started[1] - submitted <= 1.25 * SECOND


@in_virtual_time
async def test_a_worker_never_runs_more_than_its_slots() -> None:
    mail, video = Counting(300 * MILLISECOND), Counting(2 * SECOND)
    settings = WorkerSettings(queues={"mail": 7, "video": 2})
    async with a_worker(Tasks(mail=mail, video=video), settings) as bench:
        runs = [a_run(task="mail", queue="mail") for _ in range(50)]
        runs += [a_run(task="video", queue="video") for _ in range(9)]
        for run in await bench.submit(*runs):
            await bench.until(run)
        assert (mail.most, video.most) == (7, 2)
        assert len(mail.started) == 50


@in_virtual_time
async def test_a_worker_claims_no_more_than_its_free_slots() -> None:
    async with a_worker(settings=WorkerSettings(queues={"default": 5})) as bench:
        runs = await bench.submit(*[a_run(task="sleep") for _ in range(20)])
        await bench.clock.sleep(20 * SECOND)
        states = [await bench.state(run) for run in runs]
        assert states.count(RunState.RUNNING) == 5
        assert states.count(RunState.QUEUED) == 15
        assert all(sum(demand.limit for demand in demands) <= 5 for demands, _ in bench.store.claims)
        assert sum(got for _, got in bench.store.claims) == 5


@in_virtual_time
async def test_a_freed_slot_is_filled_within_milliseconds_while_others_are_busy() -> None:
    async def task(held: HeldRun) -> bytes | None:
        started[held.id] = bench.clock.monotonic()
        await asyncio.sleep(1 if held.priority == 1 else 60)
        return None

    started: dict[RunId, Micros] = {}
    async with a_worker(Tasks(greet=task), WorkerSettings(queues={"default": 20})) as bench:
        short, *_ = await bench.submit(a_run(priority=1), *some_runs(19))
        (late,) = await bench.submit(a_run())
        ended = (await bench.until(short)).state
        await bench.clock.sleep(100 * MILLISECOND)
        assert ended is RunState.SUCCEEDED
        assert started[late] - started[short] <= SECOND + 3 * MILLISECOND


@in_virtual_time
async def test_slots_that_become_free_under_load_are_claimed_in_batches() -> None:
    async def task(held: HeldRun) -> bytes | None:
        # The handlers return a tenth of a millisecond apart.
        await asyncio.sleep(0.05 + len(ends) * 0.0001)
        ends.append(held.id)
        return None

    ends: list[RunId] = []
    async with a_worker(Tasks(greet=task), WorkerSettings(queues={"default": 100})) as bench:
        for run in await bench.submit(*some_runs(1_000)):
            await bench.until(run)
        answered = [got for _, got in bench.store.claims if got]
        assert len(answered) <= 60, "claims for single slots"


@in_virtual_time
async def test_a_worker_stops_claiming_while_too_many_outcomes_wait_for_the_store() -> None:
    async with a_worker(settings=WorkerSettings(queues={"default": 100})) as bench:
        bench.store.fail("complete")
        for _ in range(50):
            await bench.submit(*some_runs(100))
            await bench.clock.sleep(100 * MILLISECOND)
        assert 2_000 <= bench.worker.unflushed <= 2_100
        bench.store.heal()
        await bench.clock.sleep(10 * SECOND)
        assert bench.worker.unflushed == 0
        assert sum(got for _, got in bench.store.claims) == 5_000


@in_virtual_time
async def test_a_run_without_a_handler_is_released_uncharged_and_logged_once() -> None:
    async with a_worker() as bench:
        with capture_logs() as logs:
            runs = await bench.submit(*[a_run(task="unknown") for _ in range(3)])
            await bench.submit(a_run(task="greeet"))
            await bench.clock.sleep(100 * MILLISECOND)
        for run in runs:
            view = await bench.run(run)
            assert (view.state, view.attempt) == (RunState.SCHEDULED, 0)
            (attempt,) = await bench.memory.attempts(run)
            assert attempt.outcome is Outcome.RELEASED
            assert "no handler for task 'unknown'" in attempt.reason
        hints = {entry["task"]: entry["hint"] for entry in logs if "hint" in entry}
        assert hints == {"unknown": "it waits until one does", "greeet": "did you mean 'greet'?"}
        assert len([entry for entry in logs if entry.get("task") == "unknown"]) == 1


# Outcomes


@in_virtual_time
async def test_a_handler_that_raises_is_retried_and_its_error_is_stored() -> None:
    async def fail(held: HeldRun) -> bytes | None:
        raise ValueError("no such user")

    async with a_worker(Tasks(greet=fail)) as bench:
        (run,) = await bench.submit(a_run(policy=a_policy(retries=3)))
        view = await bench.until(run, RunState.SCHEDULED)
        assert view.attempt == 1
        (attempt,) = await bench.memory.attempts(run)
        assert attempt.outcome is Outcome.ERROR
        assert attempt.error is not None
        assert attempt.error.splitlines()[-1] == "ValueError: no such user"
        assert "in fail" in attempt.error
        assert "loop.py" not in attempt.error


class NotAnException(BaseException):
    """A handler may raise anything."""


@pytest.mark.parametrize("kind", [NotAnException, GeneratorExit, KeyboardInterrupt, SystemExit, asyncio.CancelledError])
@in_virtual_time
async def test_any_exception_of_a_handler_fails_only_its_run(kind: type[BaseException]) -> None:
    async def fail(held: HeldRun) -> bytes | None:
        raise kind("by a handler")

    async with a_worker(Tasks(greet=greet, fail=fail)) as bench:
        (run,) = await bench.submit(a_run(task="fail", policy=a_policy(retries=0)))
        view = await bench.until(run)
        assert view.state is RunState.FAILED
        assert view.error is not None
        assert view.error.splitlines()[-1].endswith(f"{kind.__name__}: by a handler")
        assert bench.worker.running == 0
        (after,) = await bench.submit(a_run())
        assert (await bench.until(after)).state is RunState.SUCCEEDED


@pytest.mark.parametrize(
    ("result", "message"),
    [(b'"' + b"x" * 70_000 + b'"', "at most 65536"), (b"{oops", "ResultNotJSON"), (b'"\xff"', "ResultNotJSON")],
)
@in_virtual_time
async def test_a_result_that_cannot_be_stored_fails_the_run_with_a_reason(result: bytes, message: str) -> None:
    async def give(held: HeldRun) -> bytes | None:
        return result

    async with a_worker(Tasks(greet=give)) as bench:
        (run,) = await bench.submit(a_run(policy=a_policy(retries=0)))
        view = await bench.until(run)
        assert view.state is RunState.FAILED
        assert view.error is not None
        assert message in view.error


@in_virtual_time
async def test_an_attempt_past_its_timeout_is_stopped_and_charged() -> None:
    stopped: list[Micros] = []

    async def task(held: HeldRun) -> bytes | None:
        began = bench.clock.monotonic()
        try:
            await asyncio.sleep(1_000)
        finally:
            stopped.append(bench.clock.monotonic() - began)
        return None

    async with a_worker(Tasks(greet=task)) as bench:
        (run,) = await bench.submit(a_run(policy=a_policy(retries=0, timeout=2 * SECOND)))
        view = await bench.until(run)
        assert (view.state, view.reason) == (RunState.FAILED, "timeout")
        assert view.error is not None
        assert view.error.splitlines()[-1] == "TimeoutError: it may take 2s and took longer"
        assert 2 * SECOND <= stopped[0] <= 2 * SECOND + 50 * MILLISECOND
        assert bench.worker.running == 0


@in_virtual_time
async def test_a_slow_claim_does_not_count_towards_the_timeout() -> None:
    async def task(held: HeldRun) -> bytes | None:
        await asyncio.sleep(0.8)
        return None

    async with a_worker(Tasks(greet=task)) as bench:
        bench.store.after["claim"] = lambda: asyncio.sleep(2)
        (run,) = await bench.submit(a_run(policy=a_policy(retries=0, timeout=SECOND)))
        assert (await bench.until(run)).state is RunState.SUCCEEDED


@in_virtual_time
async def test_a_run_is_cancelled_only_when_its_handler_has_stopped() -> None:
    async def task(held: HeldRun) -> bytes | None:
        try:
            await asyncio.sleep(1_000)
        except asyncio.CancelledError:
            assert held.cancel_requested
            await asyncio.sleep(1)
            raise
        return None

    async with a_worker(Tasks(greet=task)) as bench:
        (run,) = await bench.submit(a_run())
        await bench.until(run, RunState.RUNNING)
        await bench.clock.sleep(500 * MILLISECOND)
        asked = bench.clock.monotonic()
        await bench.memory.cancel([run])
        bench.wakeups.notify([CANCELS])
        await bench.clock.sleep(900 * MILLISECOND)
        assert await bench.state(run) is RunState.CANCELLING
        assert (await bench.until(run)).state is RunState.CANCELLED
        assert bench.clock.monotonic() - asked < 1.3 * SECOND, "the notification did not trigger a heartbeat"


@pytest.mark.parametrize("why", ["cancel", "timeout"])
@in_virtual_time
async def test_a_handler_that_returns_after_it_was_stopped_succeeds(why: str) -> None:
    async def task(held: HeldRun) -> bytes | None:
        try:
            await asyncio.sleep(1_000)
        except asyncio.CancelledError:
            return b'"done all the same"'
        return None

    async with a_worker(Tasks(greet=task)) as bench:
        (run,) = await bench.submit(a_run(policy=a_policy(timeout=5 * SECOND)))
        await bench.until(run, RunState.RUNNING)
        if why == "cancel":
            await bench.memory.cancel([run])
        view = await bench.until(run)
        assert (view.state, view.result) == (RunState.SUCCEEDED, b'"done all the same"')


@in_virtual_time
async def test_a_handler_that_ignores_a_stop_is_stopped_again_and_keeps_its_slot() -> None:
    cancels = 0

    async def task(held: HeldRun) -> bytes | None:
        nonlocal cancels
        while cancels < 3:
            try:
                await asyncio.sleep(1_000)
            except asyncio.CancelledError:
                cancels += 1
                assert bench.worker.running == 1
        raise asyncio.CancelledError

    async with a_worker(Tasks(greet=task)) as bench:
        (run,) = await bench.submit(a_run(policy=a_policy(retries=0, timeout=SECOND)))
        view = await bench.until(run)
        assert (view.state, view.reason) == (RunState.FAILED, "timeout")
        assert cancels == 3
        assert bench.worker.running == 0


@in_virtual_time
async def test_an_attempt_stopped_before_its_first_step_is_released() -> None:
    task = Counting(SECOND)

    def stop_all() -> None:
        stopped.extend(bench.worker._running)
        for attempt in stopped:
            bench.worker._cancellation.request(attempt, Stop.RELEASE)

    async def stop_after_claim() -> None:
        # This is after the claim and before the first step of their tasks.
        bench.store.after.clear()
        asyncio.get_running_loop().call_soon(stop_all)

    stopped: list[Attempt] = []
    async with a_worker(Tasks(greet=task)) as bench:
        await bench.clock.sleep(SECOND)
        bench.store.after["claim"] = stop_after_claim
        runs = await bench.submit(*some_runs(3))
        await bench.clock.sleep(100 * MILLISECOND)
        assert [attempt.begun for attempt in stopped] == [False] * 3
        for run in runs:
            (attempt,) = await bench.memory.attempts(run)
            assert attempt.outcome is Outcome.RELEASED
            assert (await bench.until(run)).attempt == 1
        assert len(task.started) == 3
        assert bench.worker.running == 0


# Stopping


@in_virtual_time
async def test_a_stopping_worker_finishes_its_runs_and_claims_no_more() -> None:
    task = Counting(10 * SECOND)
    async with a_worker(Tasks(greet=task), WorkerSettings(queues={"default": 1})) as bench:
        first, second = await bench.submit(*some_runs(2))
        await bench.until(first, RunState.RUNNING)
        await bench.worker.stop()
        assert await bench.state(first) is RunState.SUCCEEDED
        assert await bench.state(second) is RunState.QUEUED
        assert len(task.started) == 1


@in_virtual_time
async def test_a_run_that_outlasts_the_grace_period_is_released_uncharged() -> None:
    async with a_worker() as bench:
        (run,) = await bench.submit(a_run(task="sleep"))
        await bench.until(run, RunState.RUNNING)
        asked = bench.clock.monotonic()
        await bench.worker.stop()
        view = await bench.run(run)
        assert (view.state, view.attempt, view.lost) == (RunState.QUEUED, 0, 0)
        assert 25 * SECOND <= bench.clock.monotonic() - asked <= 26 * SECOND
        (attempt,) = await bench.memory.attempts(run)
        assert (attempt.outcome, attempt.reason) == (Outcome.RELEASED, "the worker left")
        assert await bench.memory.lost_runs(10) == []


@pytest.mark.parametrize("grace", [300 * MILLISECOND, 1_300 * MILLISECOND])
@in_virtual_time
async def test_a_worker_leaves_exactly_when_its_grace_period_ends(grace: Micros) -> None:
    async with a_worker() as bench:
        (run,) = await bench.submit(a_run(task="sleep"))
        await bench.until(run, RunState.RUNNING)
        asked = bench.clock.monotonic()
        await bench.worker.stop(grace)
        assert bench.clock.monotonic() - asked == grace


@in_virtual_time
async def test_heartbeats_and_cancels_continue_while_a_worker_stops() -> None:
    async with a_worker() as bench:
        (run,) = await bench.submit(a_run(task="sleep"))
        await bench.until(run, RunState.RUNNING)
        leaving = asyncio.create_task(bench.worker.stop(60 * SECOND))
        await bench.clock.sleep(20 * SECOND)
        assert await bench.memory.lost_runs(10) == []
        await bench.memory.cancel([run])
        await leaving
        assert await bench.state(run) is RunState.CANCELLED
        assert bench.worker.running == 0


@in_virtual_time
async def test_a_second_stop_releases_all_runs_at_once() -> None:
    async with a_worker() as bench:
        (run,) = await bench.submit(a_run(task="sleep"))
        await bench.until(run, RunState.RUNNING)
        leaving = asyncio.create_task(bench.worker.stop())
        await bench.clock.sleep(SECOND)
        asked = bench.clock.monotonic()
        bench.worker.stop_now()
        await leaving
        assert bench.clock.monotonic() - asked <= 100 * MILLISECOND
        view = await bench.run(run)
        assert (view.state, view.attempt) == (RunState.QUEUED, 0)


@in_virtual_time
async def test_a_run_that_does_not_stop_with_its_worker_is_lost_when_the_lease_expires() -> None:
    async def task(held: HeldRun) -> bytes | None:
        while True:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                if over:
                    raise

    over = False
    async with a_worker(Tasks(greet=task, sleep=sleep_long)) as bench:
        run, neighbour = await bench.submit(a_run(), a_run(task="sleep"))
        await bench.until(run, RunState.RUNNING)
        asked = bench.clock.monotonic()
        await bench.worker.stop(SECOND)
        assert bench.clock.monotonic() - asked <= 3 * SECOND
        assert await bench.state(neighbour) is RunState.QUEUED
        # The handler may still run, so no outcome is reported and the run is not requeued yet.
        assert await bench.state(run) is RunState.RUNNING
        assert await bench.memory.lost_runs(10) == []
        await bench.clock.sleep(bench.worker.settings.lease + 1)
        assert [lost.id for lost in await bench.memory.lost_runs(10)] == [run]
    over = True


@in_virtual_time
async def test_an_at_most_once_run_that_has_begun_fails_instead_of_being_released() -> None:
    async with a_worker() as bench:
        (run,) = await bench.submit(a_run(task="sleep", policy=a_policy(at_most_once=True)))
        await bench.until(run, RunState.RUNNING)
        bench.worker.stop_now()
        await bench.worker.left()
        view = await bench.run(run)
        assert view.state is RunState.FAILED
        assert view.error is not None
        assert "never repeated" in view.error


@in_virtual_time
async def test_runs_claimed_while_a_worker_stops_are_released() -> None:
    async with a_worker() as bench:
        bench.store.after["claim"] = lambda: asyncio.sleep(1)
        (run,) = await bench.submit(a_run(task="sleep"))
        await bench.clock.sleep(500 * MILLISECOND)
        assert await bench.state(run) is RunState.RUNNING
        asked = bench.clock.monotonic()
        await bench.worker.stop()
        assert bench.clock.monotonic() - asked <= SECOND
        view = await bench.run(run)
        assert (view.state, view.attempt, view.lost) == (RunState.QUEUED, 0, 0)


@in_virtual_time
async def test_a_draining_worker_finishes_its_runs_and_closes_its_session() -> None:
    task = Counting(10 * SECOND)
    async with a_worker(Tasks(greet=task), WorkerSettings(queues={"default": 1})) as bench:
        first, second = await bench.submit(*some_runs(2))
        await bench.until(first, RunState.RUNNING)
        assert await bench.memory.drain(bench.store.sessions[0], Author("ops"))
        await bench.until(first, RunState.SUCCEEDED)
        await bench.clock.sleep(5 * SECOND)
        await bench.worker.left()
        assert await bench.state(second) is RunState.QUEUED
        assert len(task.started) == 1
        assert await bench.memory.sessions("worker") == []
        assert not bench.worker.wants_recycling


@in_virtual_time
async def test_a_draining_worker_releases_runs_that_outlast_the_grace_period() -> None:
    async with a_worker() as bench:
        (run,) = await bench.submit(a_run(task="sleep"))
        await bench.until(run, RunState.RUNNING)
        await bench.memory.drain(bench.store.sessions[0], Author("ops"))
        view = await bench.until(run, RunState.QUEUED)
        assert (view.attempt, view.lost) == (0, 0)


@in_virtual_time
async def test_a_session_lists_the_queues_and_tasks_of_its_worker() -> None:
    async with a_worker(settings=WorkerSettings(queues={"default": 1, "mail": 2})) as bench:
        (session,) = await bench.memory.sessions("worker")
        assert session.queues == ("default", "mail")
        assert session.tasks == ("greet", "sleep")


@in_virtual_time
async def test_a_worker_recycles_after_the_configured_number_of_runs() -> None:
    settings = WorkerSettings(queues={"default": 2}, recycle_after_runs=10)
    async with a_worker(settings=settings) as bench:
        runs = await bench.submit(*some_runs(30))
        await bench.clock.sleep(5 * SECOND)
        assert bench.worker.wants_recycling
        await bench.worker.left()
        states = [await bench.state(run) for run in runs]
        assert states.count(RunState.SUCCEEDED) == 10
        assert states.count(RunState.QUEUED) == 20


@pytest.mark.parametrize(("used", "recycles"), [(999, False), (1_000, True)])
@in_virtual_time
async def test_a_worker_recycles_when_it_uses_the_configured_memory(
    monkeypatch: pytest.MonkeyPatch, used: int, recycles: bool
) -> None:
    checks = 0

    def read_memory() -> int:
        nonlocal checks
        checks += 1
        return used

    monkeypatch.setattr("mainspring.core.worker.worker.resident_bytes", read_memory)
    async with a_worker(settings=WorkerSettings(recycle_memory_bytes=1_000)) as bench:
        await bench.clock.sleep(14 * SECOND)
        assert bench.worker.wants_recycling is recycles
        # The memory is read every five seconds.
        assert recycles or checks == 3


@in_virtual_time
async def test_the_margin_of_a_lease_shrinks_to_nothing_while_it_is_not_renewed() -> None:
    async with a_worker() as bench:
        bench.store.fail("heartbeat")
        assert bench.worker.lease.margin == 8 * SECOND
        await bench.clock.sleep(3 * SECOND)
        assert bench.worker.lease.margin == 5 * SECOND
        assert bench.worker.lease.holding is not None
        bench.worker.lease.holding.renewed_at -= 5 * SECOND + 1
        assert bench.worker.lease.margin == 0
        bench.worker.lease.holding.renewed_at += 2
        assert bench.worker.lease.margin == 1


# Figures and limits


@pytest.mark.parametrize(
    ("slots", "unflushed", "overloaded"),
    # Ten outcomes for each slot, and at least 2,000.
    [(100, 2_000, False), (100, 2_001, True), (300, 3_000, False), (300, 3_001, True)],
)
@in_virtual_time
async def test_claiming_stops_above_ten_unreported_outcomes_for_each_slot(
    monkeypatch: pytest.MonkeyPatch, slots: int, unflushed: int, overloaded: bool
) -> None:
    bench = Bench(VirtualClock(), Tasks(), WorkerSettings(queues={"default": slots}))
    monkeypatch.setattr(Worker, "unflushed", unflushed)
    assert bench.worker._overloaded() is overloaded


@pytest.mark.parametrize(
    ("outcomes", "reports", "since"), [(None, None, None), (5, None, 5), (None, 7, 7), (5, 7, 5), (7, 5, 5)]
)
@in_virtual_time
async def test_a_worker_fails_since_the_first_of_its_outcomes_or_reports(
    monkeypatch: pytest.MonkeyPatch, outcomes: Micros | None, reports: Micros | None, since: Micros | None
) -> None:
    bench = Bench(VirtualClock(), Tasks(), WorkerSettings())
    monkeypatch.setattr(Completer, "failing_since", outcomes)
    bench.worker._reporter.failing_since = reports
    assert bench.worker.lease.failing_since == since


@in_virtual_time
async def test_unreported_outcomes_include_those_that_wait_for_their_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(VirtualClock(), Tasks(), WorkerSettings())
    assert bench.worker.unflushed == 0
    monkeypatch.setattr(Completer, "unflushed", 3)
    monkeypatch.setattr(Reporter, "unflushed", 2)
    assert bench.worker.unflushed == 5


@pytest.mark.parametrize(
    ("priorities", "slots"), [({}, {"default": 4, "mail": 2}), ({1: 2, 2: 3}, {"default": 5, "mail": 5})]
)
@in_virtual_time
async def test_the_slots_of_a_queue_are_counted_over_its_priorities(
    priorities: dict[int, int], slots: dict[str, int]
) -> None:
    settings = WorkerSettings(queues={"default": 4, "mail": 2}, priorities=priorities)
    async with a_worker(settings=settings) as bench:
        assert bench.worker.slots.by_queue() == {queue: (number, 0) for queue, number in slots.items()}
        for run in await bench.submit(*[a_run(task="sleep", queue="mail", priority=one) for one in (1, 2)]):
            await bench.until(run, RunState.RUNNING)
        assert bench.worker.slots.by_queue() == {"default": (slots["default"], 0), "mail": (slots["mail"], 2)}


@pytest.mark.parametrize(("silent", "lost"), [(8 * SECOND - 1, 0), (8 * SECOND, 1)])
@in_virtual_time
async def test_a_worker_stops_its_runs_exactly_at_the_margin_of_its_lease(silent: Micros, lost: int) -> None:
    async with a_worker() as bench:
        holding = bench.worker.lease.holding
        assert holding is not None
        holding.renewed_at = bench.clock.monotonic() - silent
        for _ in range(2):
            bench.worker.lease.check()
            assert bench.worker.lease.losses == lost
        # The end of an older lease changes nothing.
        bench.worker.lease.lease_over(Holding(holding.session, 0), "for the test")
        assert bench.worker.lease.losses == lost


@in_virtual_time
async def test_a_task_without_a_handler_is_logged_once_a_minute() -> None:
    async with a_worker() as bench:
        (run,) = await bench.submit(a_run(task="sleep"))
        await bench.until(run, RunState.RUNNING)
        (attempt,) = bench.worker._running
        bench.worker._outcomes.released = lambda *_, **__: None  # type: ignore[method-assign]
        logged: list[list[int | None]] = []
        for pause in (0, 1, MINUTE - 2, 1, MINUTE - 1, 1):
            await bench.clock.sleep(pause)
            with capture_logs() as logs:
                bench.worker._starter.release_unknown(attempt)
            logged.append([entry.get("runs") for entry in logs if entry["event"].startswith("no handler")])
        assert logged == [[None], [], [], [1], [], [1]]


@in_virtual_time
async def test_the_warning_about_an_unknown_task_is_repeated_with_the_number_of_its_runs() -> None:
    log = AttemptLog(VirtualClock(), every_attempt=True)
    async with a_worker() as bench:
        bench.worker._outcomes._log = log
        with capture_logs() as logs:
            for runs, pause in ((30, 30 * SECOND), (30, 31 * SECOND), (1, SECOND)):
                await bench.submit(*[a_run(task="unknown") for _ in range(runs)])
                await bench.clock.sleep(pause)
        warnings = [entry for entry in logs if entry["event"].startswith("no handler")]
        assert [entry.get("runs") for entry in warnings] == [None, 60]
        assert {entry["log_level"] for entry in warnings} == {"warning"}
        released = [entry for entry in logs if entry["event"] == "run released"]
        assert len(released) == 61
        assert {entry["log_level"] for entry in released} == {"debug"}
        assert log.take_hidden() == {}


# Faults


@in_virtual_time
async def test_a_claim_whose_answer_was_lost_is_returned_by_the_next_heartbeat() -> None:
    async with a_worker() as bench:
        await bench.clock.sleep(SECOND)
        bench.store.fail("claim", applied=True, times=1)
        (run,) = await bench.submit(a_run())
        view = await bench.until(run)
        assert (view.state, view.attempt) == (RunState.SUCCEEDED, 1)
        assert sum(heartbeat.returned for heartbeat in bench.store.heartbeats) == 1


@in_virtual_time
async def test_a_claim_that_is_answered_too_late_is_returned_by_the_next_heartbeat() -> None:
    async with a_worker() as bench:
        await bench.clock.sleep(SECOND)

        async def slow() -> None:
            bench.store.after.clear()
            await asyncio.sleep(6)

        bench.store.after["claim"] = slow
        (run,) = await bench.submit(a_run())
        await bench.clock.sleep(4_900 * MILLISECOND)
        # Heartbeats left the run alone, because its claim is pending.
        assert sum(heartbeat.returned for heartbeat in bench.store.heartbeats) == 0
        assert (await bench.until(run)).state is RunState.SUCCEEDED
        assert sum(heartbeat.returned for heartbeat in bench.store.heartbeats) == 1


@pytest.mark.parametrize("applied", [False, True])
@in_virtual_time
async def test_outcomes_are_reported_until_the_store_accepts_them(applied: bool) -> None:
    async with a_worker() as bench:
        bench.store.fail("complete", applied=applied, times=5)
        runs = await bench.submit(*some_runs(10))
        await bench.clock.sleep(8 * SECOND)
        for run in runs:
            view = await bench.run(run)
            assert (view.state, view.attempt) == (RunState.SUCCEEDED, 1)
        assert bench.worker.unflushed == 0
        assert len(bench.store.sessions) == 1
        assert bench.worker.lease.holding is not None
        assert not bench.worker.lease.holding.held


@in_virtual_time
async def test_outcomes_are_reported_again_with_pauses_that_double_up_to_two_seconds() -> None:
    sent: list[Micros] = []

    async def fail() -> None:
        sent.append(bench.clock.monotonic())
        if len(sent) <= 8:
            raise StoreUnavailable("no server")

    settings = WorkerSettings(lease=MINUTE)
    async with a_worker(settings=settings) as bench:
        bench.worker.runtime.jitter.random = lambda: 1.0  # type: ignore[method-assign]
        bench.store.before["complete"] = fail
        (run,) = await bench.submit(a_run())
        await bench.until(run)
        pauses = [(later - earlier) // MILLISECOND for earlier, later in pairwise(sent)]
        assert pauses == [50, 100, 200, 400, 800, 1_600, 2_000, 2_000]


@in_virtual_time
async def test_outcomes_fail_since_the_first_of_their_batches_failed() -> None:
    async with a_worker() as bench:
        bench.store.fail("complete")
        began = bench.clock.monotonic()
        for _ in range(2):
            await bench.submit(a_run())
            await bench.clock.sleep(SECOND)
        assert bench.store.completions_in_flight <= len(bench.worker._completer._failing) == 2
        since = bench.worker._completer.failing_since
        assert since is not None
        assert since - began < SECOND // 2


@in_virtual_time
async def test_a_rejected_outcome_fails_only_its_own_run() -> None:
    async with a_worker() as bench:
        runs = [a_run(policy=a_policy(retries=0)) for _ in range(20)]
        culprit = runs[13].id

        def check(completions: Sequence[Completion]) -> None:
            if any(item.run == culprit and item.outcome is Outcome.SUCCESS for item in completions):
                raise Invalid("result", "has something the database refuses")

        bench.store.check_completions = check
        for run in await bench.submit(*runs):
            view = await bench.until(run)
            assert view.state is (RunState.FAILED if run == culprit else RunState.SUCCEEDED)
        view = await bench.run(culprit)
        assert view.error is not None
        assert "the database refuses" in view.error


@pytest.mark.slow
@in_virtual_time
async def test_a_batch_of_outcomes_that_keeps_failing_does_not_delay_others() -> None:
    async with a_worker() as bench:
        culprit = a_run()

        def check(completions: Sequence[Completion]) -> None:
            if any(item.run == culprit.id for item in completions):
                raise RuntimeError("unexpected")

        bench.store.check_completions = check
        await bench.submit(culprit)
        await bench.clock.sleep(SECOND)
        for run in await bench.submit(*some_runs(10)):
            await bench.until(run, within=100 * MILLISECOND)
        assert await bench.state(culprit.id) is RunState.RUNNING


@in_virtual_time
async def test_outcomes_are_reported_in_large_batches_and_at_most_two_at_once() -> None:
    settings = WorkerSettings(queues={"default": 3_000}, largest_completion=1_000)
    async with a_worker(settings=settings) as bench:
        bench.store.before["complete"] = lambda: asyncio.sleep(0.05)
        for run in await bench.submit(*some_runs(6_000)):
            await bench.until(run)
        assert bench.store.most_completions_in_flight == 2
        assert max(len(batch) for batch in bench.store.completed) <= 1_000
        assert len(bench.store.completed) <= 20


@in_virtual_time
async def test_a_stale_outcome_is_logged_and_not_reported_again() -> None:
    async with a_worker(Tasks(greet=Counting(5 * SECOND))) as bench:
        (run,) = await bench.submit(a_run())
        await bench.until(run, RunState.RUNNING)
        assert bench.worker.lease.holding is not None
        traced: list[object] = []
        tracing: Any = SimpleNamespace(completed=lambda batch, clock: traced.extend(batch))
        bench.worker._completer._tracing = tracing
        metrics = bench.worker._completer._metrics = RunMetrics()
        # The run vanishes from the store while it runs.
        stolen = bench.memory._tables.runs.pop(run)
        with capture_logs() as logs:
            await bench.clock.sleep(10 * SECOND)
        bench.memory._tables.runs[run] = stolen
        assert [entry["run"] for entry in logs if "too late" in entry["event"]] == [run]
        assert sum(len(batch) for batch in bench.store.completed) == 1
        assert not bench.worker.lease.holding.held
        # A stale outcome records no span, and is counted apart.
        assert traced == []
        assert metrics.fenced == 1


@in_virtual_time
async def test_a_worker_that_cannot_renew_its_lease_stops_its_runs_and_reports_nothing() -> None:
    task = Counting(1_000 * SECOND)
    async with a_worker(Tasks(greet=task)) as bench:
        (run,) = await bench.submit(a_run())
        await bench.until(run, RunState.RUNNING)
        bench.store.fail("heartbeat")
        lost_at = bench.clock.monotonic()
        while task.running:
            await bench.clock.sleep(10 * MILLISECOND)
        assert bench.clock.monotonic() - lost_at <= 8 * SECOND + 600 * MILLISECOND
        assert await bench.state(run) is RunState.RUNNING
        bench.store.heal()
        await bench.clock.sleep(5 * SECOND)
        assert len(bench.store.sessions) == 2
        assert bench.store.completed == []
        # The reaper requeues the run.
        assert [lost.id for lost in await bench.memory.lost_runs(10)] == [run]


@in_virtual_time
async def test_a_worker_whose_session_was_closed_stops_its_runs_and_opens_a_new_one() -> None:
    task = Counting(1_000 * SECOND)
    async with a_worker(Tasks(greet=task)) as bench:
        (run,) = await bench.submit(a_run())
        await bench.until(run, RunState.RUNNING)
        await bench.memory.close_session(bench.store.sessions[0])
        await bench.clock.sleep(4 * SECOND)
        assert task.running == 0
        assert bench.store.completed == []
        assert len(bench.store.sessions) == 2
        (new,) = await bench.submit(a_run())
        await bench.until(new, RunState.RUNNING)


@in_virtual_time
async def test_a_worker_opens_a_new_session_with_pauses_that_double_up_to_two_seconds() -> None:
    opened: list[Micros] = []

    async def fail() -> None:
        opened.append(bench.clock.monotonic())
        if len(opened) <= 8:
            raise StoreUnavailable("no server")

    async with a_worker() as bench:
        bench.worker.runtime.jitter.random = lambda: 1.0  # type: ignore[method-assign]
        bench.store.before["open_session"] = fail
        await bench.memory.close_session(bench.store.sessions[0])
        await bench.clock.sleep(20 * SECOND)
        pauses = [(later - earlier) // MILLISECOND for earlier, later in pairwise(opened)]
        assert pauses == [100, 200, 400, 800, 1_600, 2_000, 2_000, 2_000]
        assert len(bench.store.sessions) == 2


@in_virtual_time
async def test_a_worker_that_starts_while_the_store_does_not_answer_waits_for_it() -> None:
    async def hang() -> None:
        if bench.clock.monotonic() < began + 20 * SECOND:
            await asyncio.sleep(1_000)

    bench = Bench(VirtualClock(), Tasks(greet=greet), WorkerSettings())
    began = bench.clock.monotonic()
    bench.store.before["open_session"] = hang
    await bench.worker.start()
    try:
        (run,) = await bench.submit(a_run())
        await bench.until(run)
    finally:
        bench.worker.stop_now()
        await bench.worker.left()


@in_virtual_time
@pytest.mark.parametrize(
    ("error", "seconds"), [(StoreUnavailable("no server"), 90), (StoreDamaged("removed"), 0), (Invalid("name", "x"), 0)]
)
async def test_a_worker_that_cannot_open_its_first_session_fails_to_start(error: Exception, seconds: int) -> None:
    async def fail() -> None:
        raise error

    bench = Bench(VirtualClock(), Tasks(greet=greet), WorkerSettings())
    began = bench.clock.monotonic()
    bench.store.before["open_session"] = fail
    with pytest.raises(type(error), match=str(error)):
        await bench.worker.start()
    assert seconds <= (bench.clock.monotonic() - began) // SECOND <= seconds + 2


@in_virtual_time
async def test_a_new_session_waits_for_the_runs_of_the_old_one_but_not_for_ever() -> None:
    async def ignore_stops(held: HeldRun) -> bytes | None:
        while True:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                if over:
                    raise

    over, opened = False, list[Micros]()

    async def note() -> None:
        opened.append(bench.clock.monotonic())

    async with a_worker(Tasks(greet=ignore_stops), WorkerSettings(kill_grace=1_500 * MILLISECOND)) as bench:
        (run,) = await bench.submit(a_run())
        await bench.until(run, RunState.RUNNING)
        bench.store.before["open_session"] = note
        assert bench.worker.lease.holding is not None
        bench.worker.lease.lease_over(bench.worker.lease.holding, "for the test")
        lost_at = bench.clock.monotonic()
        await bench.clock.sleep(10 * SECOND)
        # Twice the time that a stopped attempt gets for cleaning up.
        assert [at - lost_at for at in opened] == [3 * SECOND]
        over = True


@in_virtual_time
async def test_an_outcome_from_before_the_lease_expired_is_still_reported() -> None:
    async with a_worker() as bench:
        for operation in ("heartbeat", "complete", "claim", "open_session"):
            bench.store.fail(operation)
        bench.store.before.pop("claim")
        (run,) = await bench.submit(a_run())
        await bench.clock.sleep(12 * SECOND)
        assert await bench.state(run) is RunState.RUNNING
        bench.store.heal()
        assert (await bench.until(run)).state is RunState.SUCCEEDED
        await bench.clock.sleep(3 * SECOND)
        assert len(bench.store.sessions) == 2


@in_virtual_time
async def test_a_worker_that_cannot_report_outcomes_lets_its_lease_expire() -> None:
    async with a_worker(Tasks(greet=greet, sleep=sleep_long)) as bench:
        bench.store.fail("complete")
        mute, other = await bench.submit(a_run(), a_run(task="sleep"))
        await bench.clock.sleep(30 * SECOND)
        lost = {held.id for held in await bench.memory.lost_runs(10)}
        assert lost == {mute, other}
        assert len(bench.store.sessions) == 2


@in_virtual_time
async def test_runs_succeed_after_the_store_was_unavailable_for_a_minute() -> None:
    async with a_worker() as bench:
        for operation in ("open_session", "heartbeat", "claim", "complete"):
            bench.store.fail(operation)
        runs = await bench.submit(*some_runs(5))
        await bench.clock.sleep(MINUTE)
        bench.store.heal()
        for run in runs:
            assert (await bench.until(run)).state is RunState.SUCCEEDED


@pytest.mark.parametrize("seed", range(10))
@in_virtual_time
async def test_every_run_succeeds_once_although_store_operations_fail_at_random(seed: int) -> None:
    random = Random(seed)

    async def delay_or_fail() -> None:
        await asyncio.sleep(random.random() * 0.2)
        if random.random() < 0.2:
            raise StoreUnavailable("at random")

    async with a_worker(Tasks(greet=Counting(30 * MILLISECOND)), WorkerSettings(queues={"default": 10})) as bench:
        for operation in ("heartbeat", "claim", "complete"):
            bench.store.before[operation] = bench.store.after[operation] = delay_or_fail
        for run in await bench.submit(*some_runs(300)):
            view = await bench.until(run, within=30 * MINUTE)
            assert (view.state, view.attempt, view.lost) == (RunState.SUCCEEDED, 1, 0)
        assert bench.worker.running == 0
