"""What dead letters of one kind tell: whether they are new, how quickly they grow, and how over the last day."""

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from mainspring.core.model.base.fingerprint import exception_of
from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, Instant, Micros, isoformat
from mainspring.core.model.runs.view import RunView

#: A group that grows by so many within this time is worth an alarm; the next one comes an hour later at the earliest.
GROWS_BY = 100
GROWS_WITHIN: Micros = 10 * MINUTE
ALARM_EVERY: Micros = HOUR
#: A group that has not grown for this long is new when it does.
QUIET: Micros = DAY
#: A trend has so many steps of an hour, the oldest first.
TREND = 24

Alarm: TypeAlias = Literal["dead_letters.opened", "dead_letters.growing"]


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of a group."""

    #: Since when ``count`` is counted.
    since: Instant
    count: int
    seen_at: Instant
    #: The last alarm because it grew.
    grew_at: Instant | None = None


class DeadRun(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine's own dead letters say of a run that failed for good. No payload, and not the words of its error:
    both may hold what is not for everybody who can read there."""

    id: RunId
    tenant: str
    job: JobId | None
    task: str
    queue: str
    #: Why it failed: error, timeout, poison …
    reason: str
    #: The name of the exception, if it was one.
    error: str
    #: When.
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
        error=exception_of(view.error or ""),
        at=isoformat(view.created_at if view.finished_at is None else view.finished_at),
    )


def watch(before: Watch | None, new: int, now: Instant) -> tuple[Watch, Alarm | None]:
    """So many came since the last look: what to remember, and whether to tell somebody."""
    if before is None or now - before.seen_at > QUIET:
        # One that is large when it opens has no second alarm for that.
        grew_at = now if new >= GROWS_BY else None
        return Watch(since=now, count=new, seen_at=now, grew_at=grew_at), "dead_letters.opened"
    over = now - before.since > GROWS_WITHIN
    since, count = (now, new) if over else (before.since, before.count + new)
    rests = before.grew_at is not None and now - before.grew_at < ALARM_EVERY
    if count < GROWS_BY or rests:
        return Watch(since=since, count=count, seen_at=now, grew_at=before.grew_at), None
    return Watch(since=since, count=count, seen_at=now, grew_at=now), "dead_letters.growing"


def trend_of(times: Iterable[Instant], now: Instant) -> tuple[int, ...]:
    """How many there were in each of the last hours."""
    steps = [0] * TREND
    for at in times:
        if 0 <= (ago := (now - at) // HOUR) < TREND:
            steps[TREND - 1 - ago] += 1
    return tuple(steps)
