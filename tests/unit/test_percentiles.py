"""Percentiles of durations that are counted in buckets."""

import math
from collections import Counter
from random import Random

import pytest

from mainspring.core.model.base.instant import HOUR, MILLISECOND, SECOND
from mainspring.core.model.base.percentiles import find_bucket, percentile


def test_without_values_there_is_no_percentile() -> None:
    assert percentile({}, 0.5, 0) is None
    assert percentile({3: 0}, 0.95, 0) is None


def test_longer_durations_are_in_later_buckets() -> None:
    durations = [0, 1, 99, 100, 150, MILLISECOND, 2 * MILLISECOND, SECOND, HOUR, 30 * 24 * HOUR]
    buckets = [find_bucket(duration) for duration in durations]
    assert buckets == sorted(buckets)
    assert buckets[0] == buckets[3] == 0
    assert buckets[-1] < 80


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_percentiles_are_within_ten_percent_of_the_exact_ones(share: float) -> None:
    random = Random(1)
    durations = sorted(int(random.lognormvariate(11, 2)) for _ in range(10_000))
    found = percentile(Counter(find_bucket(duration) for duration in durations), share, durations[-1])
    true = durations[math.ceil(share * len(durations)) - 1]
    assert found is not None
    assert true / 1.1 < found < true * 1.1


def test_a_percentile_never_exceeds_the_maximum() -> None:
    assert percentile({find_bucket(130 * MILLISECOND): 10}, 0.95, 130 * MILLISECOND) == 130 * MILLISECOND
    assert percentile({0: 1}, 0.5, 20) == 20
