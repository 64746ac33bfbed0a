"""How a worker brings what attempts tell to the store, in virtual time."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from mainspring.domain.ids import RunId
from mainspring.domain.instant import MILLISECOND, SECOND
from mainspring.domain.run import HeldRun, RunState
from mainspring.testing.virtual_time import VirtualClock, run_virtual
from mainspring.worker.capture import capture
from mainspring.worker.settings import WorkerSettings
from mainspring.worker.telling import Ear, Telling, current
from tests.support.builders import a_policy, a_run
from tests.support.worker_kit import Bench, Tasks


def told() -> Telling[object]:
    telling = current.get()
    assert telling is not None
    return telling


@asynccontextmanager
async def a_worker(tasks: Tasks, settings: WorkerSettings | None = None) -> AsyncIterator[Bench]:
    bench = Bench(VirtualClock(), tasks, settings or WorkerSettings())
    await bench.worker.start()
    try:
        yield bench
    finally:
        bench.store.heal()
        bench.worker.stop_now()
        await bench.worker.left()


async def lines(bench: Bench, run: RunId) -> list[str]:
    return [line for piece in await bench.memory.log(run, 0, 1_000) for line in piece.text.splitlines()]


def test_all_attempts_share_a_flush_and_flushes_keep_their_distance() -> None:
    async def count(held: HeldRun) -> bytes | None:
        for done in range(100):
            told().progress(done, 100, "")
            await asyncio.sleep(0.01)
        return None

    async def scenario() -> None:
        async with a_worker(Tasks(count=count)) as bench:
            runs = await bench.submit(*(a_run(task="count") for _ in range(20)))
            for run in runs:
                await bench.until(run)
                view = await bench.run(run)
                assert view.progress is not None
                assert view.progress.done == 99
            # A second at four flushes, one at the start and one at the end.
            assert len(bench.store.told) <= 6
            assert max(bench.store.told) == 20

    run_virtual(scenario())


def test_an_outcome_does_not_overtake_what_its_attempt_told() -> None:
    async def fail_once(held: HeldRun) -> bytes | None:
        if held.attempt == 1:
            told().checkpoint(b'"here"')
            told().log("on my way")
            raise ConnectionError("once")
        return held.state

    async def scenario() -> None:
        async with a_worker(Tasks(fail_once=fail_once)) as bench:
            bench.store.fail("save_checkpoints", times=3)
            (run,) = await bench.submit(a_run(task="fail_once", policy=a_policy(retries=1)))
            while not bench.store.settled:
                assert await bench.state(run) in (RunState.QUEUED, RunState.RUNNING)
                await bench.clock.sleep(10 * MILLISECOND)
            assert await lines(bench, run) == ["on my way"]
            assert bench.store.kept == [(run, b'"here"')]

    run_virtual(scenario())


def test_an_outage_of_the_store_holds_back_outcomes_and_not_the_worker() -> None:
    async def talk(held: HeldRun) -> bytes | None:
        told().log("hello")
        return None

    async def scenario() -> None:
        async with a_worker(Tasks(talk=talk)) as bench:
            bench.store.fail("append_log")
            runs = await bench.submit(*(a_run(task="talk") for _ in range(5)))
            await bench.clock.sleep(3 * SECOND)
            assert {await bench.state(run) for run in runs} == {RunState.RUNNING}
            assert bench.worker.unflushed == 5
            assert bench.worker.running == 0
            bench.store.heal()
            for run in runs:
                assert (await bench.until(run)).state is RunState.SUCCEEDED
                assert await lines(bench, run) == ["hello"]

    run_virtual(scenario())


def test_what_is_refused_is_lost_and_the_outcome_is_not() -> None:
    async def talk(held: HeldRun) -> bytes | None:
        told().log("hello")
        return None

    async def refuse() -> None:
        raise ValueError("not with me")

    async def scenario() -> None:
        async with a_worker(Tasks(talk=talk)) as bench:
            bench.store.before["append_log"] = refuse
            (run,) = await bench.submit(a_run(task="talk"))
            assert (await bench.until(run)).state is RunState.SUCCEEDED
            assert await lines(bench, run) == []

    run_virtual(scenario())


def test_who_settles_by_other_means_can_wait_until_all_is_heard() -> None:
    async def talk(held: HeldRun) -> bytes | None:
        print("half a line", end="")  # noqa: T201
        await told().heard()
        return None

    async def scenario() -> None:
        async with a_worker(Tasks(talk=talk)) as bench:
            (run,) = await bench.submit(a_run(task="talk"))
            await bench.until(run)
            assert await lines(bench, run) == ["half a line"]

    run_virtual(scenario())


def test_nothing_is_caught_where_the_settings_say_so() -> None:
    async def talk(held: HeldRun) -> bytes | None:
        print("plain")  # noqa: T201
        logging.getLogger("library").warning("careful")
        return None

    async def scenario() -> None:
        async with a_worker(Tasks(talk=talk), WorkerSettings(capture_logs=False)) as bench:
            (run,) = await bench.submit(a_run(task="talk"))
            await bench.until(run)
            assert await lines(bench, run) == []

    run_virtual(scenario())


def test_who_sets_up_logging_after_us_is_not_disturbed() -> None:
    before = logging.getLogRecordFactory()

    def theirs(*args: object, **named: object) -> logging.LogRecord:
        record: logging.LogRecord = ours(*args, **named)
        return record

    try:
        capture.begin()
        ours = logging.getLogRecordFactory()
        logging.setLogRecordFactory(theirs)
        capture.end()
        assert logging.getLogRecordFactory() is theirs
        capture.begin()
        logging.getLogger("library").warning("no endless circle")
        capture.end()
    finally:
        logging.setLogRecordFactory(before)
        capture._there = False


class Nobody(Ear[None]):
    captures = True

    def wake(self, telling: Telling[None]) -> None:
        self.woken = True

    async def heard(self, telling: Telling[None]) -> None: ...


def test_lines_are_put_together_into_pieces() -> None:
    telling = Telling(None, Nobody())
    for number in range(400):
        telling.log(f"{number} " + "x" * 100)
    told = telling.take()
    assert len(told.log) == 3
    assert max(map(len, told.log)) <= 16 * 1024
    assert "\n".join(told.log).splitlines()[-1].startswith("399 ")


@pytest.mark.parametrize("text", ["x" * 1_000_000, "a\x00b", "\ud800"])
def test_whatever_is_said_can_be_kept(text: str) -> None:
    telling = Telling(None, Nobody())
    telling.log(text)
    told = telling.take()
    kept = "".join(told.log)
    assert len(kept.encode()) < 100_000
    assert "\x00" not in kept


def test_an_attempt_that_prints_for_ever_is_not_kept_for_ever() -> None:
    telling = Telling(None, Nobody())
    size = 0
    for _ in range(100):
        for _ in range(100):
            telling.log("x" * 1_000)
        size += sum(map(len, telling.take().log))
    assert 1_048_576 < size < 1_500_000
