"""Parsing and formatting of quantities: 100M jobs, 500B, 10x, 1200/s."""

import re
from math import isfinite

from mainspring.core.model.base.errors import Invalid

_NUMBER = re.compile(r"([0-9][0-9_,]*\.?[0-9]*|\.[0-9]+)\s*([A-Za-z×]*)\Z")
_COUNTS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}
#: A kilobyte is 1,000 bytes, as for disks and networks; KiB is 1,024.
_SIZES = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
_SECONDS_OF = {"s": 1, "min": 60, "h": 3_600, "day": 86_400, "d": 86_400}
DAY_SECONDS = 86_400
_MOST = 1e15


def parse_count(text: str, field: str) -> float:
    """Parse a count: ``100M``, ``1.5k``, ``2B`` (billions), ``12``."""
    return _parse(text, field, _COUNTS, "a number", "for example 250k, 100M or 2B")


def parse_size(text: str, field: str) -> float:
    """Parse a size: ``500B``, ``2kB``, ``1MiB``; a bare number is bytes."""
    return _parse(text, field, _SIZES, "a size", "for example 500B, 2kB or 1MiB")


def parse_per_day(text: str, field: str) -> float:
    """Parse jobs per day: ``100M``, or a rate: ``1200/s``, ``5k/min``."""
    count, slash, unit = text.strip().partition("/")
    if not slash:
        return parse_count(count, field)
    return parse_count(count, field) * DAY_SECONDS / _parse_seconds(unit, text, field)


def parse_peak(text: str, field: str, per_second: float) -> float:
    """Parse a peak as a multiple of the mean: ``10x``, or a rate: ``10k/s``. ``per_second`` is the mean."""
    words = text.strip()
    count, slash, unit = words.partition("/")
    if slash:
        factor = parse_count(count, field) / _parse_seconds(unit, text, field) / per_second
    else:
        factor = _parse(
            words.removesuffix("x").removesuffix("×"), field, {"": 1}, "a factor", "for example 10x or 10k/s"
        )
    if factor < 1:
        raise Invalid(field, f"{text} is less than the mean", "at least 1x")
    return factor


def _parse_seconds(unit: str, text: str, field: str) -> int:
    seconds = _SECONDS_OF.get(unit.strip())
    if seconds is None:
        raise Invalid(field, f"{text!r:.40} is not a rate", "for example 1200/s, 5k/min or 100M/day")
    return seconds


def _parse(text: str, field: str, units: dict[str, int], what: str, hint: str) -> float:
    found = _NUMBER.match(text.strip()) if len(text) <= 40 else None
    factor = units.get(found.group(2)) if found else None
    if found is None or factor is None:
        raise Invalid(field, f"{text!r:.40} is not {what}", hint)
    value = float(found.group(1).replace("_", "").replace(",", "")) * factor
    if not isfinite(value) or value > _MOST:
        raise Invalid(field, f"{text} is out of range", hint)
    return value


def format_count(value: float) -> str:
    """Format with three significant digits: ``100 M``, ``1,157``, ``11.6``."""
    for size, unit in ((10**12, " T"), (10**9, " G"), (10**6, " M")):
        if value >= size:
            return _short(value / size) + unit
    return _short(value)


def format_size(value: float) -> str:
    for size, unit in ((10**15, "PB"), (10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if value >= size:
            return f"{_short(value / size)} {unit}"
    return f"{_short(value)} B"


def _short(value: float) -> str:
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    if value >= 1:
        return f"{value:.3g}"
    return f"{value:.2g}"
