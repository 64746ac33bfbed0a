"""Reports of attempts: progress, logs and checkpoints, in virtual time."""

import asyncio
import logging

import pytest

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MILLISECOND, SECOND
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.worker.reporting.attempt_reporter import AttemptReporter, ReportListener, current
from mainspring.core.worker.reporting.capture import capture
from mainspring.core.worker.settings import WorkerSettings
from tests.support.builders import a_policy, a_run
from tests.support.virtual import in_virtual_time
from tests.support.worker_kit import Bench, Tasks, running_worker


def get_reporter() -> AttemptReporter[object]:
    reporter = current.get()
    assert reporter is not None
    return reporter


async def read_log(bench: Bench, run: RunId) -> list[str]:
    return [line for piece in await bench.memory.log(run, 0, 1_000) for line in piece.text.splitlines()]


@in_virtual_time
async def test_reports_of_all_attempts_are_flushed_together_every_quarter_second() -> None:
    async def count(held: HeldRun) -> bytes | None:
        for done in range(100):
            get_reporter().progress(done, 100, "")
            await asyncio.sleep(0.01)
        return None

    async with running_worker(Tasks(count=count)) as bench:
        runs = await bench.submit(*(a_run(task="count") for _ in range(20)))
        for run in runs:
            await bench.until(run)
            view = await bench.run(run)
            assert view.progress is not None
            assert view.progress.done == 99
        # Four flushes in a second, one at the start and one at the end.
        assert len(bench.store.progress_flushes) <= 6
        assert max(bench.store.progress_flushes) == 20


@in_virtual_time
async def test_an_outcome_is_reported_after_the_reports_of_its_attempt() -> None:
    async def fail_once(held: HeldRun) -> bytes | None:
        if held.attempt == 1:
            get_reporter().checkpoint(b'"here"')
            get_reporter().log("on my way")
            raise ConnectionError("once")
        return held.state

    async with running_worker(Tasks(fail_once=fail_once)) as bench:
        bench.store.fail("save_checkpoints", times=3)
        (run,) = await bench.submit(a_run(task="fail_once", policy=a_policy(retries=1)))
        while not bench.store.completed:
            assert await bench.state(run) in (RunState.QUEUED, RunState.RUNNING)
            await bench.clock.sleep(10 * MILLISECOND)
        assert await read_log(bench, run) == ["on my way"]
        assert bench.store.checkpoints == [(run, b'"here"')]


@in_virtual_time
async def test_outcomes_wait_for_reports_and_slots_do_not() -> None:
    async def talk(held: HeldRun) -> bytes | None:
        get_reporter().log("hello")
        return None

    async with running_worker(Tasks(talk=talk)) as bench:
        bench.store.fail("append_log")
        runs = await bench.submit(*(a_run(task="talk") for _ in range(5)))
        await bench.clock.sleep(3 * SECOND)
        assert {await bench.state(run) for run in runs} == {RunState.RUNNING}
        assert bench.worker.unflushed == 5
        assert bench.worker.running == 0
        bench.store.heal()
        for run in runs:
            assert (await bench.until(run)).state is RunState.SUCCEEDED
            assert await read_log(bench, run) == ["hello"]


@in_virtual_time
async def test_a_rejected_report_is_dropped_and_the_outcome_is_reported() -> None:
    async def talk(held: HeldRun) -> bytes | None:
        get_reporter().log("hello")
        return None

    async def refuse() -> None:
        raise ValueError("not with me")

    async with running_worker(Tasks(talk=talk)) as bench:
        bench.store.before["append_log"] = refuse
        (run,) = await bench.submit(a_run(task="talk"))
        assert (await bench.until(run)).state is RunState.SUCCEEDED
        assert await read_log(bench, run) == []


@in_virtual_time
async def test_a_handler_can_wait_until_its_reports_are_stored() -> None:
    async def talk(held: HeldRun) -> bytes | None:
        print("half a line", end="")  # noqa: T201
        await get_reporter().flush()
        return None

    async with running_worker(Tasks(talk=talk)) as bench:
        (run,) = await bench.submit(a_run(task="talk"))
        await bench.until(run)
        assert await read_log(bench, run) == ["half a line"]


@in_virtual_time
async def test_output_is_not_captured_if_the_settings_turn_it_off() -> None:
    async def talk(held: HeldRun) -> bytes | None:
        print("plain")  # noqa: T201
        logging.getLogger("library").warning("careful")
        return None

    async with running_worker(Tasks(talk=talk), WorkerSettings(capture_logs=False)) as bench:
        (run,) = await bench.submit(a_run(task="talk"))
        await bench.until(run)
        assert await read_log(bench, run) == []


def test_capture_leaves_a_log_record_factory_set_later_in_place() -> None:
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


def test_capturing_starts_again_after_its_factory_was_saved_and_restored() -> None:
    capture.begin()
    saved = logging.getLogRecordFactory()
    capture.end()
    logging.setLogRecordFactory(saved)
    capture.begin()
    try:
        assert logging.makeLogRecord({"msg": "still works"}).getMessage() == "still works"
        assert logging.getLogger("theirs").makeRecord("theirs", 20, "f", 1, "works", (), None).msg == "works"
    finally:
        capture.end()


class NoReader(ReportListener[None]):
    captures = True

    def wake(self, reporter: AttemptReporter[None]) -> None:
        self.woken = True

    async def flush(self, reporter: AttemptReporter[None]) -> None: ...


def test_log_lines_are_joined_into_pieces_of_bounded_size() -> None:
    reporter = AttemptReporter(None, NoReader())
    for number in range(400):
        reporter.log(f"{number} " + "x" * 100)
    reports = reporter.take()
    assert len(reports.log) == 3
    assert max(map(len, reports.log)) <= 16 * 1024
    assert "\n".join(reports.log).splitlines()[-1].startswith("399 ")


@pytest.mark.parametrize("text", ["x" * 1_000_000, "a\x00b", "\ud800"])
def test_any_log_text_can_be_stored(text: str) -> None:
    reporter = AttemptReporter(None, NoReader())
    reporter.log(text)
    reports = reporter.take()
    kept = "".join(reports.log)
    assert len(kept.encode()) < 100_000
    assert "\x00" not in kept


def test_the_log_of_an_attempt_is_truncated_after_a_megabyte() -> None:
    reporter = AttemptReporter(None, NoReader())
    size = 0
    for _ in range(100):
        for _ in range(100):
            reporter.log("x" * 1_000)
        size += sum(map(len, reporter.take().log))
    assert 1_048_576 < size < 1_500_000
