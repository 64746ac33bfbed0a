"""What a worker logs about attempts."""

import pytest
from structlog.testing import capture_logs

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import SECOND, parse_instant
from mainspring.core.model.runs.completion import Completion
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.retry import RetryPolicy
from mainspring.core.model.runs.run import HeldRun, Outcome, RunState
from mainspring.core.worker.attempt import Attempt, Holding
from mainspring.core.worker.reporting.attempt_log import AttemptLog, Tracebacks
from mainspring.core.worker.slots import SlotGroup
from mainspring.testing.virtual_time import VirtualClock
from tests.support.builders import a_held_run
from tests.support.virtual import in_virtual_time

TRACEBACK = "Traceback (most recent call last):\n  File 'tasks.py', line 6, in pay\nValueError: no such card"


def make_attempt(held: HeldRun, took: int = 12_000) -> Attempt:
    return Attempt(held, Holding(SessionId(1), 0), SlotGroup("default", 10), 0, SECOND, ended_at=took)


def end(held: HeldRun, outcome: Outcome, state: RunState, **values: object) -> Completion:
    return Completion(run=held.id, fence=held.fence, outcome=outcome, state=state, **values)  # type: ignore[arg-type]


@in_virtual_time
async def test_a_failed_attempt_is_logged_with_its_number_the_next_try_and_its_traceback() -> None:
    held = a_held_run(attempt=2, policy=RunPolicy(retry=RetryPolicy(max_retries=3)))
    with capture_logs() as lines:
        AttemptLog(VirtualClock()).ended(
            make_attempt(held),
            end(held, Outcome.ERROR, RunState.SCHEDULED, error=TRACEBACK, delay=1_500_000, reason="error"),
        )
    [line] = lines
    assert (line["event"], line["log_level"]) == ("run failed", "warning")
    assert (line["task"], line["run"], line["attempt"], line["max_attempts"]) == ("greet", held.id, 2, 4)
    assert (line["took"], line["next_attempt_in"]) == ("12ms", "1.5s")
    assert (line["error"], line["traceback"]) == ("ValueError: no such card", TRACEBACK)


@in_virtual_time
async def test_a_line_of_an_attempt_of_a_second_or_more_has_its_start() -> None:
    held = a_held_run()
    held.started_at = parse_instant("2026-11-19T23:41:36.5Z")
    done = end(held, Outcome.SUCCESS, RunState.SUCCEEDED)
    with capture_logs() as lines:
        log = AttemptLog(VirtualClock(), every_attempt=True)
        log.ended(make_attempt(held, SECOND - 1), done)
        log.ended(make_attempt(held, 90 * SECOND), done)
    assert [line.get("started") for line in lines] == [None, "2026-11-19T23:41:36Z"]


@in_virtual_time
async def test_the_last_failed_attempt_is_an_error_that_says_so() -> None:
    held = a_held_run(attempt=4)
    with capture_logs() as lines:
        AttemptLog(VirtualClock()).ended(
            make_attempt(held), end(held, Outcome.TIMEOUT, RunState.FAILED, error="TimeoutError: 1m", reason="timeout")
        )
    [line] = lines
    assert (line["event"], line["log_level"]) == ("run timed out; no attempt is left", "error")
    assert "next_attempt_in" not in line
    assert "traceback" not in line


@in_virtual_time
async def test_short_tracebacks_are_the_exception_alone() -> None:
    held = a_held_run()
    with capture_logs() as lines:
        AttemptLog(VirtualClock(), tracebacks=Tracebacks.SHORT).ended(
            make_attempt(held), end(held, Outcome.ERROR, RunState.SCHEDULED, error=TRACEBACK)
        )
    assert lines[0]["error"] == "ValueError: no such card"
    assert "traceback" not in lines[0]


@pytest.mark.parametrize("every_attempt", [False, True])
@in_virtual_time
async def test_successes_are_logged_where_every_attempt_is(every_attempt: bool) -> None:
    held = a_held_run()
    log = AttemptLog(VirtualClock(), every_attempt=every_attempt)
    with capture_logs() as lines:
        log.ended(make_attempt(held), end(held, Outcome.SUCCESS, RunState.SUCCEEDED, result=b'"' + b"x" * 500 + b'"'))
    if not every_attempt:
        assert lines == []
        return
    [line] = lines
    assert line["event"] == "run succeeded"
    assert len(str(line["result"])) == 120


@in_virtual_time
async def test_lines_beyond_the_limit_of_a_second_are_counted_and_never_hide_failures() -> None:
    held, clock = a_held_run(), VirtualClock()
    log = AttemptLog(clock, every_attempt=True)
    attempt, success = make_attempt(held), end(held, Outcome.SUCCESS, RunState.SUCCEEDED)
    with capture_logs() as lines:
        for _ in range(30):
            log.ended(attempt, success)
        log.ended(attempt, end(held, Outcome.ERROR, RunState.SCHEDULED, error="E: 1"))
        assert [line["event"] for line in lines] == ["run succeeded"] * 20 + ["run failed"]
        assert log.take_hidden() == {"runs": 10}
        assert log.take_hidden() == {}
        await clock.sleep(SECOND)
        log.ended(attempt, success)
    assert lines[-1]["event"] == "run succeeded"
    with capture_logs() as lines:
        for _ in range(60):
            log.ended(attempt, end(held, Outcome.LOST, RunState.QUEUED, error="its worker died"))
    assert len(lines) == 50
    assert log.take_hidden() == {"failures": 10}
