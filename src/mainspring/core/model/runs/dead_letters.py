"""Alarms and trends for groups of dead letters of the same kind."""

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from mainspring.core.model.base.fingerprint import parse_exception_name
from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, Instant, Micros, isoformat
from mainspring.core.model.runs.view import RunView

#: A group that grows by ``GROWS_BY`` within ``GROWS_WITHIN`` raises an alarm, at most once per ``ALARM_EVERY``.
GROWS_BY = 100
GROWS_WITHIN: Micros = 10 * MINUTE
ALARM_EVERY: Micros = HOUR
#: A group that has not grown for this long counts as new when it grows again.
QUIET: Micros = DAY
#: The number of one-hour steps in a trend, oldest first.
TREND = 24

Alarm: TypeAlias = Literal["dead_letters.opened", "dead_letters.growing"]


class DeadLetterWatch(msgspec.Struct, frozen=True, kw_only=True):
    """The growth state of a group of dead letters."""

    #: When counting of ``count`` began.
    since: Instant
    count: int
    seen_at: Instant
    #: When growth last raised an alarm.
    grew_at: Instant | None = None


class DeadRun(msgspec.Struct, frozen=True, kw_only=True):
    """The message about a failed run for a broker's own dead-letter queue.

    It omits the payload and the error text: both may hold data that readers of that queue must not see.
    """

    id: RunId
    tenant: str
    job: JobId | None
    task: str
    queue: str
    #: Why the run failed: error, timeout, poison …
    reason: str
    #: The name of the exception; empty if the run did not fail with one.
    error: str
    #: When the run failed, in ISO 8601.
    at: str

    def message(self) -> bytes:
        return msgspec.json.encode(self)


def dead_run(view: RunView) -> DeadRun:
    return DeadRun(
        id=view.id,
        tenant=view.tenant,
        job=view.job_id,
        task=view.task,
        queue=view.queue,
        reason=view.reason,
        error=parse_exception_name(view.error or ""),
        at=isoformat(view.created_at if view.finished_at is None else view.finished_at),
    )


def watch(before: DeadLetterWatch | None, new: int, now: Instant) -> tuple[DeadLetterWatch, Alarm | None]:
    """Return the group's state after ``new`` more dead letters, and the alarm to raise, if any."""
    if before is None or now - before.seen_at > QUIET:
        # A group that is already large when it opens raises no second alarm for its size.
        grew_at = now if new >= GROWS_BY else None
        return DeadLetterWatch(since=now, count=new, seen_at=now, grew_at=grew_at), "dead_letters.opened"
    over = now - before.since > GROWS_WITHIN
    since, count = (now, new) if over else (before.since, before.count + new)
    rests = before.grew_at is not None and now - before.grew_at < ALARM_EVERY
    if count < GROWS_BY or rests:
        return DeadLetterWatch(since=since, count=count, seen_at=now, grew_at=before.grew_at), None
    return DeadLetterWatch(since=since, count=count, seen_at=now, grew_at=now), "dead_letters.growing"


def build_trend(times: Iterable[Instant], now: Instant) -> tuple[int, ...]:
    """Return the number of dead letters in each of the last ``TREND`` hours, oldest first."""
    steps = [0] * TREND
    for at in times:
        if 0 <= (ago := (now - at) // HOUR) < TREND:
            steps[TREND - 1 - ago] += 1
    return tuple(steps)
