"""Reports of running attempts: progress and logs."""

import pytest

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import HOUR, MINUTE
from mainspring.core.model.runs.completion import complete_release
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.runs.view import Progress
from mainspring.core.ports.storage.catalog import (
    LOG_CUT,
    MOST_LOG_BYTES,
    MOST_LOG_PIECES,
    LogLine,
    LogReport,
    ProgressReport,
    RunFilter,
)
from tests.support.builders import a_policy, a_run, an_id
from tests.support.store_harness import SHORT_LEASE, Harness

pytestmark = pytest.mark.api


def line(held: HeldRun, text: str) -> LogReport:
    return LogReport(run=held.id, fence=held.fence, text=text)


def step(held: HeldRun, done: float, total: float | None = None, note: str = "") -> ProgressReport:
    return ProgressReport(run=held.id, fence=held.fence, done=done, total=total, note=note)


async def progress(harness: Harness, run: RunId) -> tuple[float, float | None, str] | None:
    found = (await harness.view(run)).progress
    return None if found is None else (found.done, found.total, found.note)


async def texts(harness: Harness, run: RunId) -> list[str]:
    return [piece.text for piece in await harness.store.log(run, 0, 1_000)]


async def claim_again(harness: Harness, held: HeldRun) -> HeldRun:
    """Release the run and claim it as another worker."""
    await harness.complete(complete_release(held))
    [again] = await harness.claim(await harness.worker())
    assert again.id == held.id
    return again


async def test_progress_is_visible_during_and_after_the_attempt(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    assert await progress(harness, held.id) is None
    before = await harness.now()
    assert await harness.store.report_progress([step(held, 1, 4, "größe 🕰")]) == [True]
    found = (await harness.view(held.id)).progress
    assert found is not None
    assert found == Progress(done=1, total=4, note="größe 🕰", at=found.at)
    assert before <= found.at <= await harness.now()
    assert await harness.store.report_progress([step(held, 2.5)]) == [True]
    assert await progress(harness, held.id) == (2.5, None, "")
    await harness.succeed(held)
    assert await progress(harness, held.id) == (2.5, None, "")


async def test_of_several_progress_reports_in_one_batch_the_last_counts(harness: Harness) -> None:
    one, other = await harness.start(a_run(), a_run())
    assert await harness.store.report_progress([step(one, 1), step(other, 7), step(one, 2)]) == [True] * 3
    assert await progress(harness, one.id) == (2, None, "")
    assert await progress(harness, other.id) == (7, None, "")
    assert await harness.store.report_progress([]) == []


async def test_progress_stays_until_another_attempt_reports(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    await harness.store.report_progress([step(held, 1)])
    again = await claim_again(harness, held)
    assert await progress(harness, held.id) == (1, None, "")
    await harness.store.report_progress([step(again, 0)])
    assert await progress(harness, held.id) == (0, None, "")


async def test_progress_does_not_change_the_recorded_attempt(harness: Harness) -> None:
    one, other = await harness.start(a_run(policy=a_policy(retries=0)), a_run(policy=a_policy(retries=0)))
    await harness.store.report_progress([step(one, 1)])
    await harness.fail(one, other)
    [with_progress], [without] = await harness.store.attempts(one.id), await harness.store.attempts(other.id)
    assert (with_progress.outcome, with_progress.number, with_progress.error) == (
        without.outcome,
        without.number,
        without.error,
    )


async def test_a_listed_run_has_its_progress(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    await harness.store.report_progress([step(held, 3, 9)])
    [listed] = (await harness.store.list_runs(RunFilter(tenant="default"), None, 10)).items
    assert listed.progress == (await harness.view(held.id)).progress


@pytest.mark.parametrize("what", ["progress", "log"])
async def test_reports_of_other_than_the_running_attempt_are_rejected(harness: Harness, what: str) -> None:
    async def report(*runs: HeldRun) -> list[bool]:
        if what == "progress":
            return await harness.store.report_progress([step(run, 1) for run in runs])
        return await harness.store.append_log([line(run, "1") for run in runs])

    [old] = await harness.start(a_run())
    again = await claim_again(harness, old)
    ended, retried, cancelling = await harness.start(a_run(queue="a"), a_run(queue="a"), a_run(queue="a"))
    await harness.succeed(ended)
    await harness.fail(retried)
    await harness.store.cancel([cancelling.id])
    unknown = HeldRun(**{name: getattr(old, name) for name in old.__struct_fields__} | {"id": an_id()})
    assert await report(old, again, ended, retried, cancelling, unknown) == [False, True, False, False, True, False]
    assert await progress(harness, ended.id) is None
    assert await texts(harness, ended.id) == []


async def test_reports_of_an_expired_worker_count_until_the_run_is_taken_from_it(harness: Harness) -> None:
    dying = await harness.worker(SHORT_LEASE)
    await harness.submit(a_run())
    [held] = await harness.claim(dying)
    await harness.advance(2 * SHORT_LEASE)
    await harness.store.lost_runs(10)
    assert await harness.state(held.id) is RunState.RUNNING
    assert await harness.store.append_log([line(held, "last words")]) == [True]


async def test_log_lines_are_stored_in_order(harness: Harness) -> None:
    one, other = await harness.start(a_run(), a_run())
    before = await harness.now()
    batch = [line(one, "a\n"), line(other, "x\n"), line(one, "b\n"), line(one, "größe 🕰")]
    assert await harness.store.append_log(batch) == [True] * 4
    await harness.store.append_log([line(one, "c\n")])
    assert await texts(harness, one.id) == ["a\n", "b\n", "größe 🕰", "c\n"]
    assert await texts(harness, other.id) == ["x\n"]
    pieces = await harness.store.log(one.id, 0, 10)
    positions = [piece.position for piece in pieces]
    assert positions == sorted(set(positions))
    assert positions[0] > 0
    assert all(before <= piece.at for piece in pieces)
    assert {piece.attempt for piece in pieces} == {1}
    await harness.succeed(one)
    assert await harness.store.log(one.id, 0, 10) == pieces
    assert await harness.store.append_log([]) == []


async def test_a_log_line_may_be_large(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    text = "ä" * 8_192
    await harness.store.append_log([line(held, text)])
    assert await texts(harness, held.id) == [text]


async def test_a_log_is_read_after_a_cursor(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    await harness.store.append_log([line(held, str(number)) for number in range(7)])
    everything = await harness.store.log(held.id, 0, 100)
    assert len(everything) == 7
    for limit in range(1, 9):
        read = []
        after = 0
        while pieces := await harness.store.log(held.id, after, limit):
            assert len(pieces) <= limit
            read += pieces
            after = pieces[-1].position
        assert read == everything
    assert await harness.store.log(an_id(), 0, 10) == []


async def test_a_log_is_read_from_its_end(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    await harness.store.append_log([line(held, str(number)) for number in range(7)])
    everything = await harness.store.log(held.id, 0, 100)
    for limit in range(1, 9):
        read: list[LogLine] = []
        before = 2**62
        while pieces := await harness.store.log_before(held.id, before, limit):
            assert len(pieces) <= limit
            read = [*pieces, *read]
            before = pieces[0].position
        assert read == everything
    assert await harness.store.log_before(an_id(), 2**62, 10) == []


async def test_a_log_line_has_its_attempt(harness: Harness) -> None:
    [first] = await harness.start(a_run(policy=a_policy(pause=MINUTE)))
    await harness.store.append_log([line(first, "one")])
    await harness.fail(first)
    await harness.advance(HOUR)
    await harness.stage()
    [second] = await harness.claim(await harness.worker())
    assert await harness.store.append_log([line(first, "too late"), line(second, "two")]) == [False, True]
    pieces = await harness.store.log(first.id, 0, 10)
    assert [(piece.attempt, piece.text) for piece in pieces] == [(1, "one"), (2, "two")]
    assert pieces[0].position < pieces[1].position


async def test_a_log_is_truncated_at_its_maximum_of_bytes(harness: Harness) -> None:
    [held, other] = await harness.start(a_run(), a_run())
    piece = "ü" * 8_000
    whole = MOST_LOG_BYTES // 16_000
    assert await harness.store.append_log([line(held, piece)] * whole) == [True] * whole
    assert await harness.store.append_log([line(held, piece), line(other, "x"), line(held, "small")]) == [True] * 3
    # Even a small line is replaced by the notice, and no line follows it.
    assert await harness.store.append_log([line(held, "small")]) == [True]
    assert await texts(harness, held.id) == [piece] * whole + [LOG_CUT]
    assert await texts(harness, other.id) == ["x"]


async def test_a_log_is_truncated_at_its_maximum_of_lines(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    assert all(await harness.store.append_log([line(held, "x")] * (MOST_LOG_PIECES - 2)))
    assert all(await harness.store.append_log([line(held, "y"), line(held, "z")]))
    last = await harness.store.log(held.id, 0, MOST_LOG_PIECES + 1)
    assert [piece.text for piece in last[-3:]] == ["x", "y", LOG_CUT]
    assert len(last) == MOST_LOG_PIECES
    again = await claim_again(harness, held)
    assert await harness.store.append_log([line(again, "another attempt")]) == [True]
    assert len(await harness.store.log(held.id, 0, MOST_LOG_PIECES + 1)) == MOST_LOG_PIECES


async def test_several_logs_are_read_together(harness: Harness) -> None:
    one, other, quiet = await harness.start(a_run(), a_run(tenant="beta"), a_run())
    await harness.store.append_log([line(one, "a"), line(other, "x"), line(one, "b"), line(one, "c")])
    first, second, third = await harness.store.log(one.id, 0, 10)
    (theirs,) = await harness.store.log(other.id, 0, 10)
    nowhere = an_id()
    places = {one.id: first.position, other.id: 0, quiet.id: 0, nowhere: 0}
    assert await harness.store.logs_after(places, 10) == {one.id: [second, third], other.id: [theirs]}
    assert await harness.store.logs_after(places, 1) == {one.id: [second], other.id: [theirs]}
    assert await harness.store.logs_after({one.id: third.position}, 10) == {}
    assert await harness.store.logs_after({one.id: 2**62}, 10) == {}
    assert await harness.store.logs_after({}, 10) == {}
