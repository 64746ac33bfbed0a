"""When a failed run is tried again."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.errors import Invalid
from mainspring.domain.instant import DAY, HOUR, MINUTE, SECOND
from mainspring.domain.retry import MAX_RETRIES, RetryPolicy


def test_attempts_are_one_more_than_retries() -> None:
    policy = RetryPolicy(max_retries=3)
    assert [policy.allows(failures) for failures in (1, 2, 3, 4)] == [True, True, True, False]
    assert not RetryPolicy(max_retries=0).allows(1)


@given(st.integers(1, MAX_RETRIES), st.integers(0, HOUR), st.integers(0, DAY), st.integers())
def test_an_exponential_pause_stays_under_its_ceiling(failures: int, first: int, most: int, seed: int) -> None:
    policy = RetryPolicy(first_delay=first, max_delay=most)
    delay = policy.delay_after(failures, Random(seed))
    assert 0 <= delay <= min(first * 2 ** (failures - 1), most)


def test_the_ceiling_doubles_and_the_jitter_fills_it() -> None:
    policy = RetryPolicy(first_delay=SECOND, max_delay=HOUR)
    random = Random(0)
    for failures in (1, 2, 3, 4):
        ceiling = SECOND * 2 ** (failures - 1)
        delays = [policy.delay_after(failures, random) for _ in range(500)]
        assert min(delays) < ceiling * 0.05
        assert max(delays) > ceiling * 0.95


def test_a_fixed_pause_is_always_the_same() -> None:
    policy = RetryPolicy(backoff="fixed", first_delay=7 * SECOND)
    assert {policy.delay_after(failures, Random(0)) for failures in range(1, 20)} == {7 * SECOND}


def test_the_last_of_a_list_of_pauses_repeats() -> None:
    policy = RetryPolicy(backoff="list", delays=(SECOND, MINUTE, HOUR))
    assert [policy.delay_after(failures, Random(0)) for failures in (1, 2, 3, 4, 99)] == [
        SECOND,
        MINUTE,
        HOUR,
        HOUR,
        HOUR,
    ]


@pytest.mark.parametrize(
    "policy",
    [
        RetryPolicy(max_retries=-1),
        RetryPolicy(max_retries=MAX_RETRIES + 1),
        RetryPolicy(first_delay=-1),
        RetryPolicy(max_delay=-1),
        RetryPolicy(backoff="list"),
        RetryPolicy(backoff="list", delays=(SECOND, -1)),
        RetryPolicy(backoff="fixed", first_delay=1 << 62),
    ],
)
def test_what_cannot_be_meant_is_refused(policy: RetryPolicy) -> None:
    with pytest.raises(Invalid):
        policy.check()


def test_the_ordinary_is_taken() -> None:
    RetryPolicy().check()
    RetryPolicy(max_retries=0, backoff="list", delays=(0,)).check()
