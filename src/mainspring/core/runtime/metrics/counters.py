"""Counters at almost no cost: plain numbers, added up per batch, read on a scrape."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence

#: The label for every name beyond the limit.
OTHER = "other"


class LabelCounts(defaultdict[tuple[str, ...], int]):
    """A count for each combination of labels."""

    def __init__(self) -> None:
        super().__init__(int)


class BoundedNames(dict[str, str]):
    """Names that may be labels: the first ``most`` names; all others become ``OTHER``.

    A call is one dictionary lookup.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __missing__(self, name: str) -> str:
        if len(self) >= self._most:
            # Not kept: their number may be unlimited.
            return OTHER
        self[name] = name
        return name


class Histogram:
    """A histogram. ``scale``: converts values to the unit of the bounds."""

    __slots__ = ("_bounds", "_scale", "bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float], scale: int = 1) -> None:
        self.bounds = tuple(bounds)
        self._bounds = [bound * scale for bound in bounds]
        self._scale = scale
        #: One count per interval between bounds, and one beyond the last.
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value / self._scale

    def add_all(self, values: list[int]) -> None:
        """Add many values; sorts the list. For many values, one search per bound is cheaper than one per value."""
        if len(values) < len(self._bounds):
            for value in values:
                self.add(value)
            return
        values.sort()
        counts, before = self.counts, 0
        for number, bound in enumerate(self._bounds):
            until = bisect_right(values, bound, before)
            counts[number] += until - before
            before = until
        counts[-1] += len(values) - before
        self.total += sum(values) / self._scale
