"""Numbers from samples: percentiles, medians of rounds, how they are written."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TypeAlias

Value: TypeAlias = "float | int | str | bool | Mapping[str, Value] | Sequence[Value] | None"
Figures: TypeAlias = dict[str, Value]


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that at least ``percent`` % of all samples do not exceed (nearest rank)."""
    if not samples:
        raise ValueError("there are no samples")
    if not 0 <= percent <= 100:
        raise ValueError(f"{percent} is not a percentage")
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def spread(name: str, samples: Sequence[float], *, maximum: bool = True) -> Figures:
    """``name`` with its 50th and 99th percentile and its maximum, in milliseconds as they came."""
    found: Figures = {
        f"{name}_p50_ms": round(percentile(samples, 50), 2),
        f"{name}_p99_ms": round(percentile(samples, 99), 2),
    }
    if maximum:
        found[f"{name}_max_ms"] = round(max(samples), 2)
    return found


def median_of_rounds(rounds: Sequence[Figures]) -> Figures:
    """Key by key the median of what rounds gave; what is not a number is taken from the last round."""
    merged: Figures = {}
    for figures in rounds:
        for key in figures:
            merged.setdefault(key, None)
    for key in merged:
        values = [figures[key] for figures in rounds if figures.get(key) is not None]
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        if values and len(numbers) == len(values):
            middle = statistics.median(numbers)
            merged[key] = round(middle, 4) if isinstance(middle, float) else middle
        elif values and all(isinstance(value, dict) for value in values):
            merged[key] = median_of_rounds([dict(value) for value in values if isinstance(value, dict)])
        elif values:
            merged[key] = values[-1]
    return merged


def number(value: float) -> str:
    """A number as people read it: three digits that matter, or whole with separators."""
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def minutes(seconds: float) -> str:
    """A duration, roughly."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
