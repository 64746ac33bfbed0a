"""Forecasts in the wire format."""

from mainspring.http.schemas.common import Wire


class MakerOut(Wire):
    name: str
    runs: int


class PeakOut(Wire):
    """One of the busiest minutes, and the schedules with runs in it."""

    at: str
    runs: int
    makers: list[MakerOut]
    others: int
    """The number of other schedules with runs in this minute."""


class ForecastOut(Wire):
    start: str
    runs: int
    schedules: int
    """How many schedules tick in this time."""
    waiting: int
    """Runs that exist already and are scheduled in this time."""
    closed: int
    """Ticks that calendars skip."""
    complete: bool
    """False: only some of the schedules were counted."""
    per_minute: list[int]
    peaks: list[PeakOut]
    totals: list[MakerOut]
    """By schedule, the largest first."""


class SlotMaker(Wire):
    """A schedule that ticks in a span of time."""

    job_id: str
    name: str
    runs: int
    first: str
    """The first minute in which it ticks."""


class SlotOut(Wire):
    start: str
    minutes: int
    runs: int
    waiting: int
    """Runs that exist already and are scheduled in this time."""
    schedules: int
    """How many schedules tick in it; the largest hundred are named."""
    makers: list[SlotMaker]
    complete: bool
    """False: only some of the schedules were examined."""
