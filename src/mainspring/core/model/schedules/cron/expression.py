"""A cron expression in a time zone: the fires after and before an instant, with gaps and folds.

The search proceeds from one change of offset to the next, and inside each segment over local times alone.
"""

from enum import StrEnum
from typing import Self
from zoneinfo import ZoneInfo

from mainspring.core.model.base.instant import SECOND, Instant
from mainspring.core.model.schedules.cron.reading import HOUR_FIELD, MINUTE_FIELD, MONTH_FIELD, SECOND_FIELD, CronParser
from mainspring.core.model.schedules.cron.wall import DAY_SECONDS, WallTimes, bits
from mainspring.core.model.schedules.cron.words import describe
from mainspring.core.model.schedules.cron.zone import FIRST_SECOND, LAST_SECOND, MARGIN, segment_at

# A day that exists occurs again within 40 years, and one that a gap removed may take twice that.
_HORIZON = 100 * 366 * DAY_SECONDS


class DstGap(StrEnum):
    """What happens to a fixed time that the clocks jump over."""

    RUN_AFTER = "run_after"
    SKIP = "skip"


class DstFold(StrEnum):
    """How often a fixed time fires that occurs twice."""

    ONCE = "once"
    TWICE = "twice"


class Cron(WallTimes, frozen=True):
    """A parsed expression."""

    expression: str
    #: Neither minute nor hour begins with ``*``: the DST switches apply.
    fixed_times: bool

    @classmethod
    def parse(cls, expression: str, *, hash_key: str = "", field: str = "cron") -> Self:
        """Parse an expression, or refuse it with the part and the reason; one that can never fire is refused, too."""
        reader = CronParser(field, hash_key)
        second, minute, hour, day, month, weekday = reader.split(expression)
        days, days_before_last, nearest_weekdays = reader.days(day)
        weekdays, numbered_weekdays = reader.weekdays(weekday)
        cron = cls(
            expression=expression.strip(),
            seconds=reader.values(SECOND_FIELD, second),
            minutes=reader.values(MINUTE_FIELD, minute),
            hours=reader.values(HOUR_FIELD, hour),
            days=days,
            months=reader.values(MONTH_FIELD, month),
            weekdays=weekdays,
            days_before_last=days_before_last,
            nearest_weekdays=nearest_weekdays,
            numbered_weekdays=numbered_weekdays,
            either_day=day[0] not in "*?" and weekday[0] not in "*?",
            fixed_times=minute[0] != "*" and hour[0] != "*",
        )
        months = range(1, 13) if "H" in month else bits(cron.months)
        exists = map(cron.has_a_day, months)
        # The key must not decide whether an expression is refused, so every month that H could select needs a day.
        if not (all(exists) if "H" in month else any(exists)):
            raise reader.refusal("day of month", "no such day exists in these months", "it would never fire")
        return cron

    def next_after(self, after: Instant, zone: ZoneInfo, gap: DstGap, fold: DstFold) -> Instant | None:
        """Return the first fire strictly after ``after``; None if there is none in the next hundred years."""
        once = self.fixed_times and fold == DstFold.ONCE
        run_after = self.fixed_times and gap == DstGap.RUN_AFTER
        second = max(after // SECOND + 1, FIRST_SECOND)
        limit = min(second + _HORIZON, LAST_SECOND)
        while second <= limit:
            segment = segment_at(zone, second)
            offset = segment.offset
            if run_after and second == segment.start and self._any_wall(segment.gap_wall, second + offset):
                return second * SECOND
            wall = max(second + offset, segment.fresh_wall) if once else second + offset
            match = self.wall_from(wall)
            if match - offset < segment.end:
                return (match - offset) * SECOND if match - offset <= limit else None
            if segment.end + offset - wall >= MARGIN:
                # There is no match from `wall` to `match`, with any offsets in between, so skip to near the match.
                # Closer to the segment's end a fold could still repeat a wall time before `wall`, so continue with the
                # next segment.
                second = max(segment.end, match - offset - MARGIN)
            else:
                second = segment.end
        return None

    def latest_until(self, until: Instant, zone: ZoneInfo, gap: DstGap, fold: DstFold) -> Instant | None:
        """Return the last fire at or before ``until``; None if there was none in the hundred years before."""
        once = self.fixed_times and fold == DstFold.ONCE
        run_after = self.fixed_times and gap == DstGap.RUN_AFTER
        second = min(until // SECOND, LAST_SECOND)
        limit = max(second - _HORIZON, FIRST_SECOND)
        while second >= limit:
            segment = segment_at(zone, second)
            offset = segment.offset
            start_wall = segment.start + offset
            match = self.wall_until(second + offset)
            if match >= (segment.fresh_wall if once else start_wall):
                return (match - offset) * SECOND if match - offset >= limit else None
            if run_after and self._any_wall(segment.gap_wall, start_wall):
                return segment.start * SECOND if segment.start >= limit else None
            if second - segment.start >= MARGIN:
                second = min(segment.start - 1, match - offset + MARGIN)
            else:
                second = segment.start - 1
        return None

    def describe(self) -> str:
        """Describe the meaning of the expression in English, independent of its spelling."""
        return describe(self)

    def _any_wall(self, low: int, high: int) -> bool:
        return low < high and self.wall_from(low) < high
