"""The heartbeat: what it tells the store, and that a blocked loop is not death."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from itertools import combinations_with_replacement
from typing import TypeVar

import pytest
from structlog.testing import capture_logs

from mainspring.adapters.clock.system import SystemClock
from mainspring.adapters.store.memory import MemoryStore
from mainspring.domain.errors import StoreUnavailable
from mainspring.domain.ids import SessionId
from mainspring.domain.instant import MILLISECOND, SECOND, Micros
from mainspring.domain.run import HeldRun, RunState, settle_release
from mainspring.ports.store import Beat, Want
from mainspring.testing.virtual_time import VirtualClock, run_virtual
from mainspring.worker import heartbeat as heartbeat_module
from mainspring.worker.attempt import Attempt, Holding
from mainspring.worker.heartbeat import Heartbeat
from mainspring.worker.settings import WorkerSettings
from mainspring.worker.slots import Lane
from tests.support.builders import a_run, a_worker
from tests.support.worker_kit import Bench, FaultyStore, Tasks, WorkforceContext

T = TypeVar("T")


def at_once(operation: Coroutine[None, None, T]) -> T:
    """Call something asynchronous that never waits."""
    try:
        operation.send(None)
    except StopIteration as done:
        answer: T = done.value
        return answer
    raise AssertionError("it waited")


class RacingHolding(Holding):
    """Before each look of the heartbeat the worker's loop takes some of its steps."""

    def __init__(self, session: SessionId, steps: list[Callable[[Holding], None]], looks: tuple[int, ...]) -> None:
        self.looks: list[int] = []
        super().__init__(session, 0)
        self.steps = steps
        self.taken = 0
        self.looks = list(looks)

    def __getattribute__(self, name: str) -> object:
        if name in ("last_claim", "pending", "held"):
            looks: list[int] = object.__getattribute__(self, "looks")
            if looks:
                self.advance(looks.pop(0))
        return super().__getattribute__(name)

    def advance(self, step: int) -> None:
        looks, self.looks = self.looks, []
        while self.taken < step:
            self.taken += 1
            self.steps[self.taken - 1](self)
        self.looks = looks


class Quiet:
    """A patient with nothing but a holding."""

    failing_since: Micros | None = None

    def __init__(self, holding: Holding) -> None:
        self.holding: Holding | None = holding

    def lease_renewed(self) -> None: ...

    def beat_answered(self, holding: Holding, beat: Beat) -> None: ...

    def lease_over(self, holding: Holding, why: str) -> None: ...


def test_whatever_the_worker_does_between_its_looks_no_held_run_is_taken_back() -> None:
    store = MemoryStore(SystemClock())
    claimed: dict[int, list[HeldRun]] = {}
    lane = Lane("default", 10)

    def claim(number: int) -> Callable[[Holding], None]:
        def step(holding: Holding) -> None:
            claimed[number] = at_once(store.claim(holding.session, number, [Want("default", 2)]))

        return step

    def hold(number: int) -> Callable[[Holding], None]:
        return lambda holding: holding.held.update(
            {run.id: Attempt(run, holding, lane, 0, 0) for run in claimed[number]}
        )

    def release(number: int) -> Callable[[Holding], None]:
        def step(holding: Holding) -> None:
            at_once(store.settle([settle_release(run) for run in claimed[number]]))

        return step

    def forget(number: int) -> Callable[[Holding], None]:
        def step(holding: Holding) -> None:
            for run in claimed[number]:
                if holding.held[run.id].held is run:
                    del holding.held[run.id]

        return step

    def answered(number: int) -> Callable[[Holding], None]:
        return lambda holding: holding.pending.discard(number)

    def send(holding: Holding) -> None:
        holding.next_claim()

    # Two claims of the same two runs: given back after the first, and the verdict on that comes late.
    steps = [send, claim(1), hold(1), answered(1), release(1), send, claim(2), hold(2), forget(1), answered(2)]

    async def scenario(looks: tuple[int, ...]) -> int:
        nonlocal store
        clock = VirtualClock()
        store = MemoryStore(clock)
        claimed.clear()
        await store.submit([a_run(), a_run()])
        session = await store.open_session(a_worker())
        holding = RacingHolding(session, steps, looks[:3])
        holding.renewed_at = clock.monotonic()
        faulty = FaultyStore(store)

        async def the_worker_goes_on() -> None:
            holding.advance(looks[3])

        faulty.before["beat"] = the_worker_goes_on
        await Heartbeat(Quiet(holding), faulty, clock, WorkerSettings()).beat(faulty)
        assert not holding.looks, "the heartbeat did not look three times"
        return faulty.beats[0].returned

    for looks in combinations_with_replacement(range(len(steps) + 1), 4):
        assert run_virtual(scenario(looks)) == 0, looks


def test_a_blocked_loop_is_named_and_does_not_look_like_death(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat_module, "_PULSE", 50 * MILLISECOND)
    monkeypatch.setattr(heartbeat_module, "_BLOCKED_AFTER", 300 * MILLISECOND)
    settings = WorkerSettings(lease=SECOND, beat_interval=200 * MILLISECOND, lease_margin=300 * MILLISECOND)

    async def block_the_loop(held: HeldRun) -> bytes | None:
        time.sleep(2)  # noqa: ASYNC251
        return None

    async def scenario() -> None:
        bench = Bench(SystemClock(), Tasks(), settings)
        worker = bench.another(
            Tasks(block=block_the_loop), settings, open_workforce=lambda: WorkforceContext(bench.store)
        )
        await worker.start()
        (run,) = await bench.submit(a_run(task="block"))
        view = await bench.until(run)
        assert (view.state, view.attempt) == (RunState.SUCCEEDED, 1)
        assert len(bench.store.sessions) == 1
        assert len(bench.store.beats) >= 8
        assert all(beat.alive for beat in bench.store.beats)
        assert await bench.memory.lost_runs(10) == []
        await bench.clock.sleep(200 * MILLISECOND)
        await worker.stop()

    with capture_logs() as logs:
        asyncio.run(scenario())
    (blocked,) = [entry for entry in logs if entry["event"] == "the event loop is blocked"]
    assert blocked["task"] == "block"
    assert "test_heartbeat.py" in blocked["at"][0]
    assert "block_the_loop" in blocked["at"][0]
    assert any(entry["event"] == "the event loop turns again" for entry in logs)


def test_the_heartbeat_survives_a_store_that_cannot_be_opened() -> None:
    settings = WorkerSettings(lease=2 * SECOND, beat_interval=300 * MILLISECOND, lease_margin=300 * MILLISECOND)

    async def scenario() -> None:
        bench = Bench(SystemClock(), Tasks(), settings)
        failures = 0

        def open_workforce() -> WorkforceContext:
            nonlocal failures
            failures += 1
            if failures == 1:
                raise StoreUnavailable("no server")
            return WorkforceContext(bench.store)

        worker = bench.another(Tasks(), settings, open_workforce=open_workforce)
        await worker.start()
        give_up = bench.clock.monotonic() + 5 * SECOND
        while not bench.store.beats and bench.clock.monotonic() < give_up:
            await bench.clock.sleep(10 * MILLISECOND)
        assert bench.store.beats
        assert len(bench.store.sessions) == 1
        await worker.stop()

    asyncio.run(scenario())
