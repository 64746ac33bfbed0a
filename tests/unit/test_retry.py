"""Retry policies: when a failed run is retried."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND
from mainspring.core.model.runs.retry import LONGEST_DELAY, MAX_PATTERN, MAX_PATTERNS, MAX_RETRIES, RetryPolicy


def test_attempts_are_one_more_than_retries() -> None:
    policy = RetryPolicy(max_retries=3)
    assert [policy.allows(failures) for failures in (1, 2, 3, 4)] == [True, True, True, False]
    assert not RetryPolicy(max_retries=0).allows(1)


@given(st.integers(1, MAX_RETRIES), st.integers(0, HOUR), st.integers(0, DAY), st.integers())
def test_an_exponential_delay_stays_under_its_ceiling(failures: int, first: int, most: int, seed: int) -> None:
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


class NoJitter(Random):
    def random(self) -> float:
        return 1.0


def test_the_ceiling_doubles_forty_times_at_most() -> None:
    policy = RetryPolicy(first_delay=1, max_delay=LONGEST_DELAY)
    delays = [policy.delay_after(failures, NoJitter()) for failures in (1, 2, 40, 41, 42, MAX_RETRIES)]
    assert delays == [1, 2, 1 << 39, 1 << 40, 1 << 40, 1 << 40]


def test_a_fixed_delay_is_always_the_same() -> None:
    policy = RetryPolicy(backoff="fixed", first_delay=7 * SECOND)
    assert {policy.delay_after(failures, Random(0)) for failures in range(1, 20)} == {7 * SECOND}


def test_the_last_of_a_list_of_delays_repeats() -> None:
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
        RetryPolicy(backoff="fixed", first_delay=LONGEST_DELAY + 1),
        RetryPolicy(max_delay=LONGEST_DELAY + 1),
        RetryPolicy(backoff="list", delays=(LONGEST_DELAY + 1,)),
        RetryPolicy(retry_on=("",)),
        RetryPolicy(never_on=("two words",)),
        RetryPolicy(never_on=("x\n",)),
        RetryPolicy(never_on=("x" * (MAX_PATTERN + 1),)),
        RetryPolicy(retry_on=("ValueError",) * (MAX_PATTERNS + 1)),
        RetryPolicy(retry_on="ValueError"),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_policy_is_rejected(policy: RetryPolicy) -> None:
    with pytest.raises(Invalid):
        policy.check()


@pytest.mark.parametrize(
    ("policy", "field", "words"),
    [
        (RetryPolicy(backoff="fixed", delays=(SECOND,)), "retry.delays", "does not go with backoff fixed"),
        (RetryPolicy(delays=(SECOND,)), "retry.delays", "does not go with backoff exponential"),
        (RetryPolicy(first_delay=MINUTE, max_delay=SECOND), "retry.maxDelay", "1s is shorter than firstDelay"),
        (RetryPolicy(first_delay=2 * HOUR), "retry.maxDelay", "at least 2h"),
    ],
)
def test_an_option_that_the_backoff_ignores_is_rejected(policy: RetryPolicy, field: str, words: str) -> None:
    policy.check()
    with pytest.raises(Invalid, match=words) as refused:
        policy.check_meant()
    assert refused.value.field == field
    policy.effective().check_meant()


@given(
    st.builds(
        RetryPolicy,
        backoff=st.sampled_from(["exponential", "fixed"]),
        delays=st.just((SECOND,)),
        first_delay=st.integers(0, DAY),
        max_delay=st.integers(0, DAY),
    )
)
def test_ignored_options_do_not_change_the_delay(policy: RetryPolicy) -> None:
    for failures in range(1, 5):
        assert policy.delay_after(failures, Random(1)) == policy.effective().delay_after(failures, Random(1))


def test_valid_policies_are_accepted() -> None:
    for policy in (RetryPolicy(), RetryPolicy(backoff="fixed", first_delay=2 * HOUR)):
        policy.check_meant()
    RetryPolicy().check()
    RetryPolicy(max_retries=0, backoff="list", delays=(0, LONGEST_DELAY)).check()
    RetryPolicy(max_retries=MAX_RETRIES, first_delay=0, max_delay=0).check()
    RetryPolicy(first_delay=LONGEST_DELAY, max_delay=LONGEST_DELAY).check()
    RetryPolicy(retry_on=("x" * MAX_PATTERN,) * MAX_PATTERNS, never_on=("*",)).check()
    RetryPolicy(retry_on=("smtplib.*", "*Timeout"), never_on=("ValueError",)).check()


REFUSED = ("smtplib.SMTPRecipientsRefused", "smtplib.SMTPException", "builtins.OSError", "builtins.Exception")


@pytest.mark.parametrize(
    ("retry_on", "never_on", "covered"),
    [
        ((), (), True),
        (("SMTPException",), (), True),
        (("smtplib.*",), (), True),
        (("OSError",), (), True),
        (("builtins.OSError",), (), True),
        (("smtplib",), (), False),
        (("ValueError",), (), False),
        (("smtpexception",), (), False),
        ((), ("SMTPRecipients*",), False),
        ((), ("ValueError", "Exception"), False),
        ((), ("ValueError",), True),
        (("OSError",), ("SMTPRecipientsRefused",), False),
    ],
)
def test_errors_are_retried_by_their_type(retry_on: tuple[str, ...], never_on: tuple[str, ...], covered: bool) -> None:
    assert RetryPolicy(retry_on=retry_on, never_on=never_on).covers(REFUSED) is covered


kinds = st.lists(st.sampled_from([*REFUSED, "app.Boom", "app.inner.Bang"]), max_size=4)
patterns = st.lists(st.sampled_from(["*", "OSError", "smtplib.*", "app.*", "B*", "Exception"]), max_size=3).map(tuple)


@given(kinds, patterns, patterns)
def test_never_on_overrides_retry_on_and_an_empty_policy_covers_every_error(
    kinds: list[str], retry_on: tuple[str, ...], never_on: tuple[str, ...]
) -> None:
    both = RetryPolicy(retry_on=retry_on, never_on=never_on).covers(kinds)
    assert both == (RetryPolicy(retry_on=retry_on).covers(kinds) and RetryPolicy(never_on=never_on).covers(kinds))
    assert RetryPolicy().covers(kinds)
    assert RetryPolicy(retry_on=retry_on, never_on=never_on).covers(())
