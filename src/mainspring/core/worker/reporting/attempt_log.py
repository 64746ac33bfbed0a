"""Log lines about attempts: one for each failure, or one for each attempt."""

from enum import StrEnum

import msgspec

from mainspring.core.model.base.headline import find_headline
from mainspring.core.model.base.instant import SECOND, Micros, format_duration, isoformat
from mainspring.core.model.runs.completion import Completion
from mainspring.core.model.runs.run import Outcome, RunState
from mainspring.core.ports.clock import Clock
from mainspring.core.runtime.log import get_logger
from mainspring.core.worker.attempt import Attempt

#: Lines per second. Failures have their own budget, so that successes never hide them.
_LINES_PER_SECOND = 20
_FAILURES_PER_SECOND = 50
_LONGEST_RESULT = 120

_EVENTS = {
    Outcome.SUCCESS: "run succeeded",
    Outcome.ERROR: "run failed",
    Outcome.TIMEOUT: "run timed out",
    Outcome.LOST: "run lost its process",
    Outcome.CANCELLED: "run cancelled",
    Outcome.RELEASED: "run released",
}
_FAILURES = frozenset({Outcome.ERROR, Outcome.TIMEOUT, Outcome.LOST})

_log = get_logger("mainspring.runs")


class Tracebacks(StrEnum):
    """How much of a failed attempt's traceback is logged."""

    FULL = "full"
    #: The headline: the exception and the first line of its message.
    SHORT = "short"


class AttemptLog:
    """Logs attempts up to a number of lines per second, and counts the lines it leaves out."""

    def __init__(self, clock: Clock, *, every_attempt: bool = False, tracebacks: Tracebacks = Tracebacks.FULL) -> None:
        """``every_attempt``: log successful attempts too, as on a terminal."""
        self.every_attempt = every_attempt
        self._clock = clock
        self._tracebacks = tracebacks
        self._second: Micros = 0
        self._lines = 0
        self._failures = 0
        self._hidden = 0
        self._hidden_failures = 0

    def ended(self, attempt: Attempt, completion: Completion, *, reported: bool = False) -> None:
        """Log the end of an attempt. Success is logged only with ``every_attempt``.

        ``reported``: a warning already covers it, so it is logged at debug and takes none of the lines per second.
        """
        if completion.outcome in _FAILURES:
            if self._may_log_failure():
                self._log_failure(attempt, completion)
        elif self.every_attempt and (reported or self._may_log()):
            values = _describe(attempt)
            if completion.result is not None:
                values["result"] = _shorten(completion.result)
            if completion.reason:
                values["reason"] = completion.reason
            (_log.debug if reported else _log.info)(_EVENTS[completion.outcome], **values)

    def take_hidden(self) -> dict[str, int]:
        """Return how many lines were left out since the last call, by kind."""
        hidden = {"runs": self._hidden, "failures": self._hidden_failures}
        self._hidden = self._hidden_failures = 0
        return {kind: count for kind, count in hidden.items() if count}

    def _log_failure(self, attempt: Attempt, completion: Completion) -> None:
        values = _describe(attempt)
        error = completion.error or completion.reason
        headline = find_headline(error)
        values["error"] = headline
        if self._tracebacks is Tracebacks.FULL and headline != error:
            values["traceback"] = error
        if completion.state is RunState.FAILED:
            if completion.reason and completion.reason != completion.outcome.value:
                values["reason"] = completion.reason
            _log.error(f"{_EVENTS[completion.outcome]}; no attempt is left", **values)
        elif completion.state is RunState.SCHEDULED:
            _log.warning(_EVENTS[completion.outcome], **values, next_attempt_in=_seconds(completion.delay))
        else:
            _log.warning(_EVENTS[completion.outcome], **values)

    def _may_log(self) -> bool:
        self._turn()
        self._lines += 1
        if self._lines <= _LINES_PER_SECOND:
            return True
        self._hidden += 1
        return False

    def _may_log_failure(self) -> bool:
        self._turn()
        self._failures += 1
        if self._failures <= _FAILURES_PER_SECOND:
            return True
        self._hidden_failures += 1
        return False

    def _turn(self) -> None:
        second = self._clock.monotonic() // SECOND
        if second != self._second:
            self._second, self._lines, self._failures = second, 0, 0


def _describe(attempt: Attempt) -> dict[str, object]:
    held = attempt.held
    # Lost attempts are not counted against the retries.
    retries = 0 if held.policy.guarantee == "at-most-once" else held.policy.retry.max_retries
    took = attempt.ended_at - attempt.came_at
    values: dict[str, object] = {
        "task": held.task,
        "queue": held.queue,
        "run": held.id,
        "attempt": held.attempt,
        "max_attempts": 1 + retries + held.lost,
        "took": _seconds(took),
    }
    if took >= SECOND:
        # A shorter attempt started at the time of its line.
        values["started"] = isoformat(held.started_at - held.started_at % SECOND)
    return values


def _seconds(duration: Micros) -> str:
    """Format a duration with three significant digits, which are enough for a reader."""
    if duration >= 10 * SECOND:
        return format_duration(duration // SECOND * SECOND)
    return f"{duration / SECOND:.3g}s" if duration >= SECOND else f"{duration / 1_000:.3g}ms"


def _shorten(result: bytes) -> str:
    text = result.decode("utf-8", "replace")
    if text.startswith('"'):
        text = msgspec.json.decode(result, type=str)
    return text if len(text) <= _LONGEST_RESULT else f"{text[: _LONGEST_RESULT - 1]}…"
