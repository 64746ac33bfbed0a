"""What changes of a zone's clocks do to an expression: which of its times fall into a gap or a fold."""

from typing import Literal
from zoneinfo import ZoneInfo

import msgspec

from mainspring.core.model.base.instant import SECOND, Instant, to_datetime
from mainspring.core.model.schedules.cron.expression import Cron, DstFold, DstGap
from mainspring.core.model.schedules.cron.wall import DAY_SECONDS
from mainspring.core.model.schedules.cron.zone import segment_at

#: So many times are listed by name.
LISTED = 5


class ClockChange(msgspec.Struct, frozen=True, kw_only=True):
    """A jump or a repetition that touches an expression. Times are what clocks show, as ``02:30``."""

    at: Instant
    kind: Literal["gap", "fold"]
    #: The day on the clocks, and what they show before and after.
    day: str
    shown_before: str
    shown_after: str
    #: The first times of the expression that do not exist, or exist twice, and how many there are.
    times: tuple[str, ...]
    count: int
    #: What is done about it; an expression that goes by elapsed time takes no notice.
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
    """The changes after an instant and up to another that an expression meets, in order."""
    found = []
    last = until // SECOND
    before = segment_at(zone, after // SECOND)
    while before.end <= last:
        segment = segment_at(zone, before.end)
        wall = segment.start + segment.offset
        # Of a gap the wall times that do not exist, of a fold those that come twice.
        low, high = segment.gap_wall, segment.fresh_wall
        # A segment also ends where the offset stays the same.
        walls = _matches(cron, low, high) if segment.offset != before.offset else []
        if walls:
            kind: Literal["gap", "fold"] = "gap" if low < wall else "fold"
            # Both days are told where a change reaches over midnight: a time alone would mean either.
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
    """The matching minutes of a stretch; seconds are not told apart."""
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
    """A day counted from 1970."""
    return to_datetime(day * DAY_SECONDS * SECOND).date().isoformat()
