"""Effects of a zone's clock changes on an expression: which of its times fall into a gap or a fold."""

from typing import Literal
from zoneinfo import ZoneInfo

import msgspec

from mainspring.core.model.base.instant import SECOND, Instant, to_datetime
from mainspring.core.model.schedules.cron.expression import Cron, DstFold, DstGap
from mainspring.core.model.schedules.cron.wall import DAY_SECONDS
from mainspring.core.model.schedules.cron.zone import segment_at

#: The maximum number of times listed individually.
LISTED = 5


class ClockChange(msgspec.Struct, frozen=True, kw_only=True):
    """A gap or a fold that affects an expression. Times are local times, as ``02:30``."""

    at: Instant
    kind: Literal["gap", "fold"]
    #: The local day of the change, and the local times before and after it.
    day: str
    shown_before: str
    shown_after: str
    #: The first times of the expression that do not exist, or exist twice, and the number of all.
    times: tuple[str, ...]
    count: int
    #: The DST rule that applies; an expression that goes by elapsed time is not affected.
    rule: DstGap | DstFold | Literal["elapsed"]

    @property
    def words(self) -> str:
        times = ", ".join(self.times) + (f" and {self.count - len(self.times)} more" if self.count > LISTED else "")
        several = self.count > 1
        if self.kind == "gap":
            clocks = f"clocks jump from {self.shown_before} to {self.shown_after}"
            meets = f"{times} {'do' if several else 'does'} not exist"
        else:
            clocks = f"clocks go back from {self.shown_before} to {self.shown_after}"
            meets = f"{times} {'come' if several else 'comes'} twice"
        match self.rule:
            case DstGap.RUN_AFTER:
                does = f"runs once, at {self.shown_after}"
            case DstGap.SKIP:
                does = "does not run"
            case DstFold.ONCE:
                does = "runs the first time only"
            case DstFold.TWICE:
                does = "runs both times"
            case "elapsed":
                does = "does not run then" if self.kind == "gap" else "runs both times"
                does += ", as it goes by elapsed time"
        return f"{clocks}; {meets}: {does}"


def clock_changes(
    cron: Cron, zone: ZoneInfo, gap: DstGap, fold: DstFold, after: Instant, until: Instant
) -> list[ClockChange]:
    """Return the clock changes after one instant and up to another that affect an expression, in order."""
    found = []
    last = until // SECOND
    before = segment_at(zone, after // SECOND)
    while before.end <= last:
        segment = segment_at(zone, before.end)
        wall = segment.start + segment.offset
        # The local times that do not exist in a gap, or come twice in a fold.
        low, high = segment.gap_wall, segment.fresh_wall
        # A segment may also end where the offset stays the same.
        walls = _matches(cron, low, high) if segment.offset != before.offset else []
        if walls:
            kind: Literal["gap", "fold"] = "gap" if low < wall else "fold"
            # Include the day if a change spans midnight: the time alone would be ambiguous.
            dated = low // DAY_SECONDS != (high - 1) // DAY_SECONDS
            found.append(
                ClockChange(
                    at=segment.start * SECOND,
                    kind=kind,
                    day=_date(low // DAY_SECONDS),
                    shown_before=_shown(segment.start + before.offset),
                    shown_after=_shown(wall),
                    times=tuple(_shown(match, dated=dated) for match in walls[:LISTED]),
                    count=len(walls),
                    rule="elapsed" if not cron.fixed_times else gap if kind == "gap" else fold,
                )
            )
        before = segment
    return found


def _matches(cron: Cron, low: int, high: int) -> list[int]:
    """Return the matching minutes of a stretch of local time; matches within a minute count once."""
    matches: list[int] = []
    wall = cron.wall_from(low)
    while wall < high:
        matches.append(wall)
        wall = cron.wall_from(wall // 60 * 60 + 60)
    return matches


def _shown(wall: int, *, dated: bool = False) -> str:
    day, time = divmod(wall, DAY_SECONDS)
    text = f"{time // 3600:02}:{time % 3600 // 60:02}" + (f":{time % 60:02}" if time % 60 else "")
    return f"{_date(day)} {text}" if dated else text


def _date(day: int) -> str:
    """Format a day counted from 1970."""
    return to_datetime(day * DAY_SECONDS * SECOND).date().isoformat()
