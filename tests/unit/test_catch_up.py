"""What happens to ticks that were missed."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.catch_up import CatchUp, decide
from mainspring.domain.errors import Invalid
from mainspring.domain.instant import DAY, HOUR, MINUTE, SECOND, Instant

NOW: Instant = 1_000 * DAY
policies = st.builds(
    CatchUp,
    mode=st.sampled_from(["none", "latest", "all"]),
    grace=st.integers(0, HOUR),
    cap=st.integers(0, 20),
    max_age=st.integers(0, DAY),
    pace=st.integers(0, MINUTE),
)
ticks_so_far = st.lists(st.integers(NOW - 2 * DAY, NOW), max_size=40, unique=True).map(sorted)


def ago(*durations: int) -> list[Instant]:
    return [NOW - duration for duration in durations]


@given(policies, ticks_so_far)
def test_every_tick_is_decided_exactly_once_in_order(policy: CatchUp, ticks: list[Instant]) -> None:
    assert [decided.tick for decided in decide(policy, ticks, NOW)] == ticks


@given(policies, ticks_so_far)
def test_no_tick_is_skipped_without_a_reason_and_none_starts_before_its_time(
    policy: CatchUp, ticks: list[Instant]
) -> None:
    for decided in decide(policy, ticks, NOW):
        if decided.not_before is None:
            assert decided.reason
        else:
            assert decided.not_before >= decided.tick
            assert decided.reason == ""


@given(policies, ticks_so_far)
def test_ticks_within_the_grace_are_on_time_and_run_unless_an_outage_left_later_ones(
    policy: CatchUp, ticks: list[Instant]
) -> None:
    outage = any(NOW - tick > policy.grace for tick in ticks)
    for decided in decide(policy, ticks, NOW):
        if NOW - decided.tick <= policy.grace:
            superseded = outage and policy.mode == "latest" and decided.tick != ticks[-1]
            assert decided.not_before == (None if superseded else decided.tick)


@given(policies, ticks_so_far)
def test_no_more_missed_ticks_run_than_the_rule_says(policy: CatchUp, ticks: list[Instant]) -> None:
    late = [one for one in decide(policy, ticks, NOW) if NOW - one.tick > policy.grace]
    caught_up = [one for one in late if one.not_before is not None]
    most = {"none": 0, "latest": 1, "all": policy.cap}[policy.mode]
    assert len(caught_up) <= most
    # Those that run are the newest of those that might have.
    if policy.mode == "all":
        young = [one for one in late if NOW - one.tick <= policy.max_age]
        assert caught_up == young[len(young) - len(caught_up) :]
        assert len(caught_up) == min(policy.cap, len(young))


def test_none_skips_whatever_is_late() -> None:
    decided = decide(CatchUp(mode="none"), ago(HOUR, 2 * MINUTE, SECOND), NOW)
    assert [(one.not_before, one.reason) for one in decided] == [(None, "missed"), (None, "missed"), (NOW - SECOND, "")]


def test_latest_runs_the_newest_of_the_missed_now() -> None:
    decided = decide(CatchUp(mode="latest"), ago(HOUR, 2 * MINUTE), NOW)
    assert [one.not_before for one in decided] == [None, NOW]
    assert decided[0].reason == "superseded by a later tick"


def test_after_an_outage_a_job_of_every_second_runs_once() -> None:
    ticks = [NOW - second * SECOND for second in range(300, -1, -1)]
    decided = decide(CatchUp(mode="latest"), ticks, NOW)
    assert [one.tick for one in decided if one.not_before is not None] == [NOW]


def test_a_short_stall_skips_nothing() -> None:
    ticks = [NOW - second * SECOND for second in range(30, -1, -1)]
    assert all(one.not_before == one.tick for one in decide(CatchUp(mode="latest"), ticks, NOW))


def test_latest_runs_no_missed_one_beside_one_on_time() -> None:
    decided = decide(CatchUp(mode="latest"), ago(HOUR, 2 * MINUTE, SECOND), NOW)
    assert [one.not_before for one in decided] == [None, None, NOW - SECOND]


def test_all_keeps_the_newest_within_cap_and_age_at_a_pace() -> None:
    policy = CatchUp(mode="all", cap=2, max_age=5 * HOUR, pace=10 * SECOND)
    decided = decide(policy, ago(6 * HOUR, 3 * HOUR, 2 * HOUR, HOUR, 0), NOW)
    assert [one.not_before for one in decided] == [None, None, NOW, NOW + 10 * SECOND, NOW]
    assert [one.reason for one in decided] == ["too old", "over the cap of 2", "", "", ""]


def test_all_with_a_cap_of_none_runs_none() -> None:
    decided = decide(CatchUp(mode="all", cap=0), ago(2 * HOUR, HOUR), NOW)
    assert [one.not_before for one in decided] == [None, None]


@pytest.mark.parametrize(
    "policy",
    [
        CatchUp(cap=-1),
        CatchUp(cap=10_001),
        CatchUp(grace=-1),
        CatchUp(max_age=-1),
        CatchUp(pace=-1),
        CatchUp(pace=1 << 62),
    ],
)
def test_what_cannot_be_meant_is_refused(policy: CatchUp) -> None:
    with pytest.raises(Invalid):
        policy.check()


@pytest.mark.parametrize("mode", ["none", "latest"])
@pytest.mark.parametrize(("said", "field"), [({"cap": 4}, "cap"), ({"pace": 1}, "pace"), ({"max_age": 1}, "maxAge")])
def test_what_would_be_ignored_is_refused_where_it_is_said(
    mode: Literal["none", "latest"], said: dict[str, int], field: str
) -> None:
    policy = CatchUp(mode=mode, grace=MINUTE, **said)
    policy.check()
    with pytest.raises(Invalid, match=f"does not go with mode {mode}") as refused:
        policy.check_meant()
    assert refused.value.field == f"catchUp.{field}"
    assert policy.effective() == CatchUp(mode=mode, grace=MINUTE)
    policy.effective().check_meant()
    CatchUp(mode="all", **said).check_meant()


def test_the_ordinary_is_taken() -> None:
    CatchUp().check_meant()
    CatchUp().check()


def test_the_grace_is_outside_the_cap() -> None:
    """As the reference tells it: every 4 s, nothing for 83 s."""
    ticks = [NOW - 83 * SECOND + number * 4 * SECOND + 3 * SECOND for number in range(21)]
    decided = decide(CatchUp(mode="all", cap=4), ticks, NOW)
    assert sum(one.not_before is not None for one in decided) == 4 + 16
    strict = decide(CatchUp(mode="all", cap=4, grace=0), ticks[:-1], NOW)
    assert sum(one.not_before is not None for one in strict) == 4
