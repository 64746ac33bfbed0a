"""Usage per day: attempts, wall time, CPU time and custom units of the application.

Every attempt counts, also a failed, lost or released one, as its time was used. A released attempt adds its time, but
not to the number of attempts, as it is not charged elsewhere either.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, Instant, Micros

#: Units that are always counted. Wall and CPU time are in microseconds.
ATTEMPTS, WALL, CPU = "attempts", "wall", "cpu"
COUNTED = (ATTEMPTS, WALL, CPU)
#: The maximum number of custom units per attempt.
MOST_UNITS = 20
MOST_AMOUNT = 1e15
#: The retention of daily usage: long enough to compare a year with the previous one.
USAGE_KEPT: Micros = 800 * DAY

GroupBy: TypeAlias = Literal["job", "task", "tenant"]

_is_unit = re.compile("[a-z][a-z0-9_.-]{0,39}").fullmatch


class AttemptCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one attempt beyond its wall time."""

    #: None: unknown.
    cpu: Micros | None = None
    units: Mapping[str, float] = {}


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of one unit for a day, a tenant, and a task or job."""

    day: Instant
    tenant: str
    #: The value grouped by: a task, a job's id or the tenant; empty: none.
    key: str
    unit: str
    amount: float


class UsageLine(msgspec.Struct, frozen=True, kw_only=True):
    """All units of one day and key."""

    day: Instant
    tenant: str
    key: str
    attempts: int = 0
    wall: Micros = 0
    cpu: Micros = 0
    units: dict[str, float] = {}


def find_day(instant: Instant) -> Instant:
    """Return the start of the UTC day."""
    return instant // DAY * DAY


def check_unit(unit: str, field: str = "unit") -> str:
    if not isinstance(unit, str) or _is_unit(unit) is None:
        raise Invalid(field, f"{unit!r:.40} is no name of a unit", "a-z, 0-9, and . _ - from the second on; at most 40")
    if unit in COUNTED:
        raise Invalid(field, f"{unit!r} is counted anyway", "another name")
    return unit


def check_amount(amount: float, field: str = "amount") -> float:
    good = isinstance(amount, int | float) and not isinstance(amount, bool) and 0 <= amount <= MOST_AMOUNT
    if not good or math.isnan(amount):
        raise Invalid(field, f"{amount!r:.40} is no amount", f"0 to {MOST_AMOUNT:.0e}")
    return float(amount)


def check_units(units: Mapping[str, float], field: str = "units") -> None:
    if len(units) > MOST_UNITS:
        raise Invalid(field, f"are {len(units)} kinds", f"at most {MOST_UNITS}")
    for unit, amount in units.items():
        check_unit(unit, field)
        check_amount(amount, f"{field}.{unit}")


def compute_cost(wall: Micros, spent: AttemptCost | None, *, charged: bool) -> dict[str, float]:
    """Return what an attempt adds to the sums."""
    cost: dict[str, float] = {ATTEMPTS: int(charged), WALL: max(wall, 0)}
    if spent is not None:
        cost |= {CPU: spent.cpu or 0, **spent.units}
    return {unit: float(amount) for unit, amount in cost.items() if amount}


def by_line(usage: Iterable[Usage]) -> list[UsageLine]:
    """Merge usage into one line per day and key, sorted by day, then by wall time in descending order."""
    units: dict[tuple[Instant, str, str], dict[str, float]] = {}
    for item in usage:
        of_line = units.setdefault((item.day, item.tenant, item.key), {})
        of_line[item.unit] = of_line.get(item.unit, 0.0) + item.amount
    lines = [
        UsageLine(
            day=day,
            tenant=tenant,
            key=key,
            attempts=round(sums.get(ATTEMPTS, 0)),
            wall=round(sums.get(WALL, 0)),
            cpu=round(sums.get(CPU, 0)),
            units={unit: amount for unit, amount in sorted(sums.items()) if unit not in COUNTED},
        )
        for (day, tenant, key), sums in units.items()
    ]
    return sorted(lines, key=lambda line: (line.day, -line.wall, line.tenant, line.key))
