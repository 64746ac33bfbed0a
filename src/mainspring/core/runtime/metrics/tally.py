"""Counting that costs next to nothing: plain numbers, added up by the batch, read when somebody asks."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence

#: What stands for every name beyond the bound.
OTHER = "other"


class Tally(defaultdict[tuple[str, ...], int]):
    """A count for each combination of labels."""

    def __init__(self) -> None:
        super().__init__(int)


class Names(dict[str, str]):
    """Names that may be labels: the first so many; all others are one. Asking is a look into a dictionary."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __missing__(self, name: str) -> str:
        if len(self) >= self._most:
            # Not kept: there may be no end of them.
            return OTHER
        self[name] = name
        return name


class Spread:
    """How often a value fell between which bounds. ``scale``: of the values, to what the bounds are in."""

    __slots__ = ("_bounds", "_scale", "bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float], scale: int = 1) -> None:
        self.bounds = tuple(bounds)
        self._bounds = [bound * scale for bound in bounds]
        self._scale = scale
        #: Between each two bounds, and beyond the last.
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value / self._scale

    def add_all(self, values: list[int]) -> None:
        """Sorts them. Of many a look for each bound is cheaper than one for each value."""
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
