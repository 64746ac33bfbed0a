"""Percentiles of spans that were counted in buckets."""

import math
from collections import Counter
from random import Random

import pytest

from mainspring.domain.instant import HOUR, MILLISECOND, SECOND
from mainspring.domain.percentiles import bucket_of, percentile


def test_of_nothing_there_are_none() -> None:
    assert percentile({}, 0.5, 0) is None
    assert percentile({3: 0}, 0.95, 0) is None


def test_a_span_is_in_one_bucket_and_longer_ones_in_later_ones() -> None:
    spans = [0, 1, 99, 100, 150, MILLISECOND, 2 * MILLISECOND, SECOND, HOUR, 30 * 24 * HOUR]
    buckets = [bucket_of(span) for span in spans]
    assert buckets == sorted(buckets)
    assert buckets[0] == buckets[3] == 0
    assert buckets[-1] < 80


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_they_are_near_the_true_ones(share: float) -> None:
    random = Random(1)
    spans = sorted(int(random.lognormvariate(11, 2)) for _ in range(10_000))
    found = percentile(Counter(bucket_of(span) for span in spans), share, spans[-1])
    true = spans[math.ceil(share * len(spans)) - 1]
    assert found is not None
    assert true / 1.1 < found < true * 1.1


def test_none_is_longer_than_the_longest() -> None:
    assert percentile({bucket_of(130 * MILLISECOND): 10}, 0.95, 130 * MILLISECOND) == 130 * MILLISECOND
    assert percentile({0: 1}, 0.5, 20) == 20
