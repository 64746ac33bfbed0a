"""Ticks and decisions computed in a slow and obvious way, for comparison with the scheduler's."""

from collections.abc import Sequence
from datetime import UTC, datetime

from mainspring.core.model.base.instant import SECOND, Instant
from mainspring.core.model.schedules.calendar import Calendar, WhenClosed
from mainspring.core.model.schedules.catch_up import CatchUp
from mainspring.core.model.schedules.job import JobSpec
from mainspring.core.model.schedules.schedule import CronSchedule, Interval

#: A decision: the tick, whether it runs, and the reason if it does not.
Fate = tuple[Instant, bool, str]


def ticks(schedule: CronSchedule | Interval, after: Instant, until: Instant) -> list[Instant]:
    """Every tick after one instant and up to another, found by checking each second or each point of the grid."""
    last = until if schedule.end is None else min(until, schedule.end)
    first = after + 1 if schedule.start is None else max(after + 1, schedule.start)
    if isinstance(schedule, CronSchedule):
        seconds = range(-(-first // SECOND), last // SECOND + 1)
        return [second * SECOND for second in seconds if _matches(schedule.expression, second)]
    anchor = schedule.start or 0
    begin = anchor + -(-(first - anchor) // schedule.every) * schedule.every
    return list(range(begin, last + 1, schedule.every))


def _matches(expression: str, second: int) -> bool:
    fields = expression.split()
    if len(fields) == 5:
        fields = ["0", *fields]
    moment = datetime.fromtimestamp(second, UTC)
    values = (moment.second, moment.minute, moment.hour, moment.day, moment.month, moment.isoweekday() % 7)
    return all(_field_matches(field, value) for field, value in zip(fields, values, strict=True))


def _field_matches(field: str, value: int) -> bool:
    for part in field.split(","):
        if part == "*" or (part.startswith("*/") and value % int(part[2:]) == 0) or part == str(value):
            return True
    return False


class Closed:
    """The closed periods of a job, second by second. Supports only freezes."""

    def __init__(self, spec: JobSpec, calendars: Sequence[Calendar]) -> None:
        self._rule = spec.when_closed
        self._freezes = [
            freeze
            for calendar in calendars
            if calendar.name in spec.calendars or calendar.spec.covers is not None
            for freeze in calendar.spec.freezes
        ]

    def at(self, instant: Instant) -> bool:
        return any(freeze.start // SECOND <= instant // SECOND < freeze.end // SECOND for freeze in self._freezes)

    def place(self, tick: Instant) -> Instant | None:
        """The time that a tick moves to, or None if it is skipped."""
        if not self.at(tick):
            return tick
        if self._rule is WhenClosed.SKIP:
            return None
        step = SECOND if self._rule is WhenClosed.AFTER else -SECOND
        moved = tick // SECOND * SECOND
        while self.at(moved):
            moved += step
        return moved


def fates(policy: CatchUp, due: list[Instant], now: Instant) -> list[Fate]:
    """Apply a catch-up rule to ticks that are fired together at ``now``. The last one is the newest."""
    late = [number for number, tick in enumerate(due) if now - tick > policy.grace]
    if policy.mode == "latest" and late:
        # A late tick means an outage, and then only one tick runs.
        older: list[Fate] = [(tick, False, "superseded by a later tick") for tick in due[:-1]]
        return [*older, (due[-1], True, "")]
    decided: list[Fate] = []
    for number, tick in enumerate(due):
        if number not in late:
            decided.append((tick, True, ""))
        elif policy.mode == "none":
            decided.append((tick, False, "missed"))
        elif now - tick > policy.max_age:
            decided.append((tick, False, "too old"))
        else:
            kept = sum(later >= number and now - due[later] <= policy.max_age for later in late) <= policy.cap
            decided.append((tick, kept, "" if kept else f"over the cap of {policy.cap}"))
    return decided
