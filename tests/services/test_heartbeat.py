"""The heartbeat: the claims it reports to the store, and its own thread, which a blocked event loop cannot stop."""

import threading
from collections.abc import Callable, Coroutine, Sequence
from itertools import combinations_with_replacement
from typing import Any, TypeVar

import pytest
from structlog.testing import capture_logs

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import HOUR, MILLISECOND, MINUTE, SECOND, Micros
from mainspring.core.model.runs.completion import complete_release
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.ports.storage.answers import HeartbeatAnswer
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.core.store import Demand
from mainspring.core.worker import heartbeat as heartbeat_module
from mainspring.core.worker.attempt import Attempt, Holding
from mainspring.core.worker.heartbeat import Heartbeat
from mainspring.core.worker.settings import WorkerSettings
from mainspring.core.worker.slots import SlotGroup
from mainspring.stores.memory import MemoryStore
from mainspring.testing.virtual_time import VirtualClock
from tests.support.builders import a_run, a_worker, an_id
from tests.support.clock import START, ManualClock, SkippingClock
from tests.support.virtual import in_virtual_time
from tests.support.waiting import eventually
from tests.support.worker_kit import Bench, FaultyStore, Tasks, WorkforceContext

T = TypeVar("T")


def run_now(operation: Coroutine[None, None, T]) -> T:
    """Run a coroutine that never waits."""
    try:
        operation.send(None)
    except StopIteration as done:
        answer: T = done.value
        return answer
    raise AssertionError("it waited")


class RacingHolding(Holding):
    """Lets the worker take some of its steps before each read by the heartbeat.

    ``reads`` says up to which step the worker has come before the first, second and third read.
    """

    def __init__(self, session: SessionId, steps: list[Callable[[Holding], None]], reads: Sequence[int]) -> None:
        self.reads: list[int] = []
        super().__init__(session, 0)
        self.steps = steps
        self.taken = 0
        self.reads = list(reads)

    def __getattribute__(self, name: str) -> object:
        if name in ("last_claim", "pending", "held"):
            reads: list[int] = object.__getattribute__(self, "reads")
            if reads:
                self.advance(reads.pop(0))
        return super().__getattribute__(name)

    def advance(self, step: int) -> None:
        reads, self.reads = self.reads, []
        while self.taken < step:
            self.taken += 1
            self.steps[self.taken - 1](self)
        self.reads = reads


class IdleWorker:
    """A worker that only records what its heartbeat reports."""

    failing_since: Micros | None = None

    def __init__(self, holding: Holding) -> None:
        self.holding: Holding | None = holding
        self.lease_ended: list[str] = []
        self.answers: list[HeartbeatAnswer] = []

    def lease_renewed(self) -> None: ...

    def heartbeat_answered(self, holding: Holding, heartbeat: HeartbeatAnswer) -> None:
        self.answers.append(heartbeat)

    def lease_over(self, holding: Holding, why: str) -> None:
        self.lease_ended.append(why)


@in_virtual_time
async def test_a_heartbeat_returns_no_held_run_at_any_interleaving_with_the_worker() -> None:
    clock = VirtualClock()
    claimed: dict[int, list[HeldRun]] = {}
    group = SlotGroup("default", 10)

    def claim(number: int) -> Callable[[Holding], None]:
        def step(holding: Holding) -> None:
            claimed[number] = run_now(store.claim(holding.session, number, [Demand("default", 2)]))

        return step

    def hold(number: int) -> Callable[[Holding], None]:
        return lambda holding: holding.held.update(
            {run.id: Attempt(run, holding, group, 0, 0) for run in claimed[number]}
        )

    def release(number: int) -> Callable[[Holding], None]:
        def step(holding: Holding) -> None:
            run_now(store.complete([complete_release(run) for run in claimed[number]]))

        return step

    def forget(number: int) -> Callable[[Holding], None]:
        def step(holding: Holding) -> None:
            for run in claimed[number]:
                if holding.held[run.id].held is run:
                    del holding.held[run.id]

        return step

    def acknowledge(number: int) -> Callable[[Holding], None]:
        return lambda holding: holding.pending.discard(number)

    def send(holding: Holding) -> None:
        holding.next_claim()

    # Two claims of the same two runs: released after the first, and the answer to that release comes late.
    steps = [send, claim(1), hold(1), acknowledge(1), release(1), send, claim(2), hold(2), forget(1), acknowledge(2)]
    for *reads, sent in combinations_with_replacement(range(len(steps) + 1), 4):
        store = MemoryStore(clock)
        claimed.clear()
        await store.submit([a_run(), a_run()])
        holding = RacingHolding(await store.open_session(a_worker()), steps, reads)
        holding.renewed_at = clock.monotonic()
        faulty = FaultyStore(store)

        async def advance(holding: RacingHolding = holding, step: int = sent) -> None:
            holding.advance(step)

        faulty.before["heartbeat"] = advance
        await Heartbeat(IdleWorker(holding), faulty, clock, WorkerSettings()).send(faulty)
        assert not holding.reads, "the heartbeat did not read three times"
        assert faulty.heartbeats[0].returned == 0, (reads, sent)


async def a_heartbeat(clock: VirtualClock | ManualClock) -> tuple[Heartbeat, IdleWorker, FaultyStore]:
    """A heartbeat with a lease of 10 s that was renewed just now."""
    store = FaultyStore(MemoryStore(clock))
    worker = IdleWorker(Holding(await store.open_session(a_worker(ttl=10 * SECOND)), clock.monotonic()))
    return Heartbeat(worker, store, clock, WorkerSettings()), worker, store


@pytest.mark.parametrize(
    ("takes", "times"),
    [
        (0, [0, 3_000, 6_000, 9_000]),
        # A heartbeat begins three seconds after the last one began, but not less than 0.1 s after the last one ended.
        (500, [0, 3_000, 6_000, 9_000]),
        (2_900, [0, 3_000, 6_000, 9_000]),
        (2_950, [0, 3_050, 6_100, 9_150]),
    ],
)
@in_virtual_time
async def test_heartbeats_are_sent_at_their_interval(takes: int, times: list[int]) -> None:
    clock = VirtualClock()
    heartbeat, _, store = await a_heartbeat(clock)
    began, sent = clock.monotonic(), list[Micros]()

    async def note() -> None:
        sent.append(clock.monotonic() - began)
        await clock.sleep(takes * MILLISECOND)

    store.before["heartbeat"] = note
    heartbeat.start()
    await clock.sleep(times[-1] * MILLISECOND + SECOND)
    await heartbeat.stop()
    assert sent == [at * MILLISECOND for at in times]


@pytest.mark.parametrize(("hurried_at", "second"), [(20, 100), (100, 100), (500, 500)])
@in_virtual_time
async def test_a_hurried_heartbeat_is_sent_at_once_but_a_tenth_of_a_second_after_the_last(
    hurried_at: int, second: int
) -> None:
    clock = VirtualClock()
    heartbeat, _, store = await a_heartbeat(clock)
    began, sent = clock.monotonic(), list[Micros]()

    async def note() -> None:
        sent.append(clock.monotonic() - began)

    store.before["heartbeat"] = note
    heartbeat.start()
    await clock.sleep(hurried_at * MILLISECOND)
    heartbeat.hurry()
    await clock.sleep(SECOND)
    await heartbeat.stop()
    assert sent == [0, second * MILLISECOND]


@pytest.mark.parametrize(("silent", "heartbeats"), [(8 * SECOND - 1, 1), (8 * SECOND, 0)])
async def test_a_lease_is_given_up_its_margin_before_it_expires(silent: Micros, heartbeats: int) -> None:
    clock = ManualClock()
    clock.advance(MINUTE)
    heartbeat, worker, store = await a_heartbeat(clock)
    clock.advance(silent)
    await heartbeat.send(store)
    assert len(store.heartbeats) == heartbeats
    assert len(worker.lease_ended) == 1 - heartbeats


@pytest.mark.parametrize(("failing", "heartbeats"), [(10 * SECOND - 1, 1), (10 * SECOND, 0)])
async def test_no_heartbeat_is_sent_when_no_outcome_was_reported_for_a_lease(failing: Micros, heartbeats: int) -> None:
    clock = ManualClock()
    clock.advance(MINUTE)
    heartbeat, worker, store = await a_heartbeat(clock)
    worker.failing_since = clock.monotonic() - failing
    await heartbeat.send(store)
    assert len(store.heartbeats) == heartbeats
    assert heartbeat.withholding is (heartbeats == 0)


async def test_a_withheld_lease_is_logged_once_until_it_is_renewed() -> None:
    clock = ManualClock()
    clock.advance(MINUTE)
    heartbeat, worker, store = await a_heartbeat(clock)
    logged: list[int] = []
    for failing in (True, True, False, True):
        worker.failing_since = clock.monotonic() - 10 * SECOND if failing else None
        with capture_logs() as logs:
            await heartbeat.send(store)
        logged.append(len(logs))
    assert logged == [1, 0, 0, 1]


@pytest.mark.parametrize(
    ("answer", "reported"),
    [
        (HeartbeatAnswer(now=START, alive=True), 0),
        (HeartbeatAnswer(now=START, alive=True, returned=1), 0),
        (HeartbeatAnswer(now=START, alive=True, cancels=(an_id(),)), 1),
        (HeartbeatAnswer(now=START, alive=True, draining=True), 1),
        (HeartbeatAnswer(now=START, alive=True, lost=(an_id(),)), 1),
    ],
)
async def test_a_worker_learns_of_cancels_drains_and_lost_runs(answer: HeartbeatAnswer, reported: int) -> None:
    heartbeat, worker, store = await a_heartbeat(ManualClock())

    async def respond(*_: object) -> HeartbeatAnswer:
        return answer

    store.inner.heartbeat = respond  # type: ignore[method-assign,assignment]
    await heartbeat.send(store)
    assert worker.answers == [answer] * reported
    assert worker.lease_ended == []


@pytest.mark.parametrize(
    ("error", "message"), [(StoreUnavailable("no server"), "no server"), (TimeoutError(), "no answer")]
)
async def test_a_failed_heartbeat_is_logged_with_its_reason(error: Exception, message: str) -> None:
    heartbeat, _, store = await a_heartbeat(ManualClock())

    async def fail() -> None:
        raise error

    store.before["heartbeat"] = fail
    with capture_logs() as logs:
        await heartbeat.send(store)
    assert [entry["error"] for entry in logs] == [message]


async def test_a_lease_counts_from_when_its_heartbeat_was_sent() -> None:
    clock = ManualClock()
    clock.advance(MINUTE)
    heartbeat, worker, store = await a_heartbeat(clock)
    assert worker.holding is not None

    async def pass_a_second() -> None:
        clock.advance(SECOND)

    store.after["heartbeat"] = pass_a_second
    clock.advance(SECOND)
    sent = clock.monotonic()
    assert await heartbeat.send(store) == 2 * SECOND
    assert worker.holding.renewed_at == sent
    # A later renewal is kept.
    worker.holding.renewed_at = later = clock.monotonic() + MILLISECOND
    await heartbeat.send(store)
    assert worker.holding.renewed_at == later


async def test_a_blocked_event_loop_is_logged_after_two_seconds_and_again_every_ten() -> None:
    clock = ManualClock()
    clock.advance(MINUTE)
    heartbeat, _, _ = await a_heartbeat(clock)
    heartbeat._worker_thread = threading.get_ident()
    heartbeat._pulse_at = clock.monotonic()

    def look_after(duration: Micros) -> list[tuple[str, float | None]]:
        clock.advance(duration)
        with capture_logs() as logs:
            heartbeat._look_at_the_loop()
        assert all(len(entry["at"]) == 5 for entry in logs if "at" in entry)
        return [(entry["event"], entry.get("seconds")) for entry in logs]

    assert look_after(2 * SECOND) == []
    assert look_after(1) == [("event loop blocked", 2.0)]
    assert look_after(9_260 * MILLISECOND) == []
    assert look_after(739_999) == []
    assert look_after(1) == [("event loop blocked", 12.0)]
    assert look_after(10_260 * MILLISECOND) == [("event loop blocked", 22.3)]
    heartbeat._pulse_at = clock.monotonic()
    assert look_after(2 * SECOND) == [("event loop no longer blocked", None)]
    assert look_after(0) == []


async def test_a_blocked_event_loop_is_logged_once_and_heartbeats_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat_module, "_PULSE", 10 * MILLISECOND)
    monkeypatch.setattr(heartbeat_module, "_BLOCKED_AFTER", 10 * MINUTE)
    monkeypatch.setattr(heartbeat_module, "_LOG_AGAIN_AFTER", HOUR)
    settings = WorkerSettings(lease=2 * HOUR, heartbeat_interval=100 * MILLISECOND)
    clock = SkippingClock()
    bench = Bench(clock, Tasks(), settings)
    unblocked = threading.Lock()
    unblocked.acquire()
    blocked_at_heartbeat: int | None = None

    async def block_the_loop(held: HeldRun) -> bytes | None:
        nonlocal blocked_at_heartbeat
        blocked_at_heartbeat = len(bench.store.heartbeats)
        clock.skip(20 * MINUTE)
        assert unblocked.acquire(timeout=120)
        return None

    def find_logs(event: str) -> list[Any]:
        return [entry for entry in logs if entry["event"] == event]

    async def unblock_after_some_heartbeats() -> None:
        heartbeats = 0 if blocked_at_heartbeat is None else len(bench.store.heartbeats) - blocked_at_heartbeat
        if heartbeats >= 3 and find_logs("event loop blocked") and unblocked.locked():
            unblocked.release()

    bench.store.after["heartbeat"] = unblock_after_some_heartbeats
    worker = bench.make_worker(
        Tasks(block=block_the_loop), settings, open_workforce=lambda: WorkforceContext(bench.store)
    )
    with capture_logs() as logs:
        await worker.start()
        (run,) = await bench.submit(a_run(task="block"))
        view = await bench.until(run)
        await eventually(lambda: find_logs("event loop no longer blocked"))
        await worker.stop()
    assert (view.state, view.attempt) == (RunState.SUCCEEDED, 1)
    assert len(bench.store.sessions) == 1
    assert all(heartbeat.alive for heartbeat in bench.store.heartbeats)
    assert await bench.memory.lost_runs(10) == []
    (blocked,) = find_logs("event loop blocked")
    assert blocked["task"] == "block"
    assert "test_heartbeat.py" in blocked["at"][0]
    assert "block_the_loop" in blocked["at"][0]


async def test_the_heartbeat_opens_its_store_again_after_a_failure() -> None:
    settings = WorkerSettings(lease=HOUR)
    bench = Bench(SystemClock(), Tasks(), settings)
    openings = 0

    def open_workforce() -> WorkforceContext:
        nonlocal openings
        openings += 1
        if openings == 1:
            raise StoreUnavailable("no server")
        return WorkforceContext(bench.store)

    worker = bench.make_worker(Tasks(), settings, open_workforce=open_workforce)
    await worker.start()
    await eventually(lambda: bench.store.heartbeats)
    assert openings == 2
    assert len(bench.store.sessions) == 1
    await worker.stop()
