"""Checks a node's clock against the store's clock, which decides what is due.

Nothing fires by a node's own clock. But ids and logs contain its time, and a clock that is far off indicates a machine
that cannot be trusted with leases either. If all nodes are far from the store's clock, the store's clock is wrong: then
nothing should fire.
"""

from enum import StrEnum

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Instant, Micros, format_duration


class ClockReading(msgspec.Struct, frozen=True):
    """How far a node's clock is ahead of the store's, and the possible error in either direction."""

    offset: Micros
    error: Micros

    def __str__(self) -> str:
        sign = "-" if self.offset < 0 else "+"
        return f"{sign}{format_duration(abs(self.offset) // MILLISECOND * MILLISECOND)}"


class ClockState(StrEnum):
    RIGHT = "right"
    #: The clock is off, which is reported.
    OFF = "off"
    #: The clock is so far off that the node schedules nothing.
    FENCED = "fenced"


class ClockRules(msgspec.Struct, frozen=True):
    #: A larger offset is reported.
    warn: Micros = 500 * MILLISECOND
    #: A scheduler with a larger offset schedules nothing; 0: it never stops because of its clock.
    fence: Micros = 5 * SECOND

    def check(self) -> None:
        if self.fence and self.fence < self.warn:
            raise Invalid(
                "clock.max_offset", "is less than clock.warn_offset", "0 for never, or more than clock.warn_offset"
            )


def read_clock(wall: Instant, monotonic: Micros, ahead: tuple[Micros, Micros]) -> ClockReading:
    """Compute a reading from both clocks of a node at one moment.

    ``ahead`` has the least and the most that the store's clock can be ahead of the monotonic clock, as known from a
    request and its answer.
    """
    least, most = ahead
    middle = least + (most - least) // 2
    return ClockReading(wall - (monotonic + middle), max(middle - least, most - middle))


def judge(reading: ClockReading, rules: ClockRules, was: ClockState = ClockState.RIGHT) -> ClockState:
    """Return the state that the reading proves. If the error allows both states, the previous one stays."""
    surely, maybe = abs(reading.offset) - reading.error, abs(reading.offset) + reading.error
    if rules.fence and (surely > rules.fence or (was is ClockState.FENCED and maybe > rules.fence)):
        return ClockState.FENCED
    if surely > rules.warn or (was is not ClockState.RIGHT and maybe > rules.warn):
        return ClockState.OFF
    return ClockState.RIGHT
