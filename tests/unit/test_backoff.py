"""Pauses between retries."""

from random import Random

from mainspring.core.model.base.instant import MILLISECOND
from mainspring.core.runtime.backoff import Backoff, jitter


def test_pauses_double_up_to_the_limit_and_start_again_after_a_reset() -> None:
    backoff = Backoff(50 * MILLISECOND, 300 * MILLISECOND)
    assert [backoff.next() // MILLISECOND for _ in range(5)] == [50, 100, 200, 300, 300]
    backoff.reset()
    assert backoff.next() == 50 * MILLISECOND


def test_jitter_shortens_a_pause_to_at_least_its_half() -> None:
    random = Random(1)
    found = [jitter(1_000, random) for _ in range(1_000)]
    assert 500 <= min(found) < 520
    assert 980 < max(found) <= 1_000
