"""Whether a node's clock is right, by the store's: what is due is decided there.

Nothing fires by a node's own clock. But ids and logs carry it, and a clock that is far off is a sign of a machine that
cannot be trusted with its leases either. And if all nodes are far from the store's clock, it is the store's that is
wrong: then nothing had better fire.
"""

from enum import StrEnum

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Instant, Micros, format_duration


class ClockReading(msgspec.Struct, frozen=True):
    """How far a node's clock is ahead of the store's, and how wrong that may be in either direction."""

    offset: Micros
    error: Micros

    def __str__(self) -> str:
        sign = "-" if self.offset < 0 else "+"
        return f"{sign}{format_duration(abs(self.offset) // MILLISECOND * MILLISECOND)}"


class ClockState(StrEnum):
    RIGHT = "right"
    #: Off: it is told.
    OFF = "off"
    #: So far off that the node schedules nothing.
    FENCED = "fenced"


class ClockRules(msgspec.Struct, frozen=True):
    #: Beyond this it is told …
    warn: Micros = 500 * MILLISECOND
    #: … and beyond this a scheduler schedules nothing; 0: it does all the same.
    fence: Micros = 5 * SECOND

    def check(self) -> None:
        if self.fence and self.fence < self.warn:
            raise Invalid("clock.fence", "is less than clock.warn", "0 for never, or more than clock.warn")


def read_clock(wall: Instant, monotonic: Micros, ahead: tuple[Micros, Micros]) -> ClockReading:
    """``wall`` and ``monotonic``: what both clocks of a node show at one moment. ``ahead``: the least and the most that
    the store's clock can be ahead of the monotonic one, as by a request that was answered between two moments."""
    least, most = ahead
    middle = least + (most - least) // 2
    return ClockReading(wall - (monotonic + middle), max(middle - least, most - middle))


def judge(reading: ClockReading, rules: ClockRules, was: ClockState = ClockState.RIGHT) -> ClockState:
    """What the reading says for certain. Where it does not, all stays as it was, so that nobody comes and goes."""
    surely, maybe = abs(reading.offset) - reading.error, abs(reading.offset) + reading.error
    if rules.fence and (surely > rules.fence or (was is ClockState.FENCED and maybe > rules.fence)):
        return ClockState.FENCED
    if surely > rules.warn or (was is not ClockState.RIGHT and maybe > rules.warn):
        return ClockState.OFF
    return ClockState.RIGHT
