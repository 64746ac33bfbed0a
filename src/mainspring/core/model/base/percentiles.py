"""Percentiles of durations counted in buckets: two per power of two, from 100 µs on. Pure."""

import math
from collections.abc import Mapping

from mainspring.core.model.base.instant import Micros

_FIRST: Micros = 100
_TO_A_POWER = 2


def find_bucket(span: Micros) -> int:
    """Return the bucket of a duration. Stores use the same buckets; a duration on an edge may be in either bucket."""
    return math.floor(_TO_A_POWER * math.log2(max(span, _FIRST) / _FIRST))


def percentile(counts: Mapping[int, int], share: float, most: Micros) -> Micros | None:
    """Return a percentile of durations counted by bucket; None: there are none.

    ``most``: no duration was longer. Durations are assumed to be spread evenly within a bucket.
    """
    left = share * sum(counts.values())
    for bucket in sorted(bucket for bucket, count in counts.items() if count):
        if left <= counts[bucket]:
            low, high = _edge(bucket) if bucket else 0.0, _edge(bucket + 1)
            return min(round(low + (high - low) * left / counts[bucket]), most)
        left -= counts[bucket]
    return None


def _edge(bucket: int) -> float:
    return float(_FIRST * 2 ** (bucket / _TO_A_POWER))
