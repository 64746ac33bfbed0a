"""What is to come, over the wire."""

from mainspring.http.schemas.common import Wire


class MakerOut(Wire):
    name: str
    runs: int


class PeakOut(Wire):
    """One of the busiest minutes, and whose runs these are."""

    at: str
    runs: int
    makers: list[MakerOut]
    others: int
    """So many schedules more have a part in it."""


class ForecastOut(Wire):
    start: str
    runs: int
    schedules: int
    """How many schedules tick in this time."""
    waiting: int
    """Runs that are there already and wait for their time."""
    closed: int
    """Ticks that calendars skip."""
    complete: bool
    """False: there are more schedules than are counted."""
    per_minute: list[int]
    peaks: list[PeakOut]
    totals: list[MakerOut]
    """By schedule, the largest first."""


class SlotMaker(Wire):
    """A schedule that ticks in a stretch of time."""

    job_id: str
    name: str
    runs: int
    first: str
    """The first minute that it ticks in."""


class SlotOut(Wire):
    start: str
    minutes: int
    runs: int
    waiting: int
    """Runs that are there already and wait for their time."""
    schedules: int
    """How many schedules tick in it; the largest hundred are named."""
    makers: list[SlotMaker]
    complete: bool
    """False: there are more schedules than are looked at."""
