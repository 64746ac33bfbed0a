"""The heartbeat: the claims it reports to the store, and its own thread, which a blocked event loop cannot stop."""

import threading
from collections.abc import Callable, Coroutine, Sequence
from itertools import combinations_with_replacement
from typing import Any, TypeVar

import pytest
from structlog.testing import capture_logs

from mainspring.adapters.clock.system import SystemClock
from mainspring.adapters.store.memory import MemoryStore
from mainspring.domain.errors import StoreUnavailable
from mainspring.domain.ids import SessionId
from mainspring.domain.instant import HOUR, MILLISECOND, MINUTE, Micros
from mainspring.domain.run import HeldRun, RunState, settle_release
from mainspring.ports.store import Beat, Want
from mainspring.testing.virtual_time import VirtualClock
from mainspring.worker import heartbeat as heartbeat_module
from mainspring.worker.attempt import Attempt, Holding
from mainspring.worker.heartbeat import Heartbeat
from mainspring.worker.settings import WorkerSettings
from mainspring.worker.slots import Lane
from tests.support.builders import a_run, a_worker
from tests.support.clock import SkippingClock
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
    """A worker that ignores its heartbeat."""

    failing_since: Micros | None = None

    def __init__(self, holding: Holding) -> None:
        self.holding: Holding | None = holding

    def lease_renewed(self) -> None: ...

    def beat_answered(self, holding: Holding, beat: Beat) -> None: ...

    def lease_over(self, holding: Holding, why: str) -> None: ...


@in_virtual_time
async def test_a_heartbeat_returns_no_held_run_at_any_interleaving_with_the_worker() -> None:
    clock = VirtualClock()
    claimed: dict[int, list[HeldRun]] = {}
    lane = Lane("default", 10)

    def claim(number: int) -> Callable[[Holding], None]:
        def step(holding: Holding) -> None:
            claimed[number] = run_now(store.claim(holding.session, number, [Want("default", 2)]))

        return step

    def hold(number: int) -> Callable[[Holding], None]:
        return lambda holding: holding.held.update(
            {run.id: Attempt(run, holding, lane, 0, 0) for run in claimed[number]}
        )

    def release(number: int) -> Callable[[Holding], None]:
        def step(holding: Holding) -> None:
            run_now(store.settle([settle_release(run) for run in claimed[number]]))

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

        faulty.before["beat"] = advance
        await Heartbeat(IdleWorker(holding), faulty, clock, WorkerSettings()).beat(faulty)
        assert not holding.reads, "the heartbeat did not read three times"
        assert faulty.beats[0].returned == 0, (reads, sent)


async def test_a_blocked_event_loop_is_logged_once_and_heartbeats_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat_module, "_PULSE", 10 * MILLISECOND)
    monkeypatch.setattr(heartbeat_module, "_BLOCKED_AFTER", 10 * MINUTE)
    monkeypatch.setattr(heartbeat_module, "_TELL_AGAIN_AFTER", HOUR)
    settings = WorkerSettings(lease=2 * HOUR, beat_interval=100 * MILLISECOND)
    clock = SkippingClock()
    bench = Bench(clock, Tasks(), settings)
    unblocked = threading.Lock()
    unblocked.acquire()
    blocked_at_beat: int | None = None

    async def block_the_loop(held: HeldRun) -> bytes | None:
        nonlocal blocked_at_beat
        blocked_at_beat = len(bench.store.beats)
        clock.skip(20 * MINUTE)
        assert unblocked.acquire(timeout=120)
        return None

    def find_logs(event: str) -> list[Any]:
        return [entry for entry in logs if entry["event"] == event]

    async def unblock_after_some_beats() -> None:
        beats = 0 if blocked_at_beat is None else len(bench.store.beats) - blocked_at_beat
        if beats >= 3 and find_logs("the event loop is blocked") and unblocked.locked():
            unblocked.release()

    bench.store.after["beat"] = unblock_after_some_beats
    worker = bench.make_worker(
        Tasks(block=block_the_loop), settings, open_workforce=lambda: WorkforceContext(bench.store)
    )
    with capture_logs() as logs:
        await worker.start()
        (run,) = await bench.submit(a_run(task="block"))
        view = await bench.until(run)
        await eventually(lambda: find_logs("the event loop turns again"))
        await worker.stop()
    assert (view.state, view.attempt) == (RunState.SUCCEEDED, 1)
    assert len(bench.store.sessions) == 1
    assert all(beat.alive for beat in bench.store.beats)
    assert await bench.memory.lost_runs(10) == []
    (blocked,) = find_logs("the event loop is blocked")
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
    await eventually(lambda: bench.store.beats)
    assert openings == 2
    assert len(bench.store.sessions) == 1
    await worker.stop()
