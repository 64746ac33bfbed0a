"""The catch-up policy: which missed ticks run, and when."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND, Instant
from mainspring.core.model.schedules.catch_up import LONGEST, CatchUp, decide
from tests.support.boundaries import around_the_boundary

NOW: Instant = 1_000 * DAY
policies = st.builds(
    CatchUp,
    mode=st.sampled_from(["none", "latest", "all"]),
    grace=st.integers(0, HOUR),
    cap=st.integers(0, 20),
    max_age=st.integers(0, DAY),
    pace=st.integers(0, MINUTE),
)
#: In any order, because a calendar can move a tick to a time before the one of its predecessor.
ticks_so_far = st.lists(st.integers(NOW - 2 * DAY, NOW), max_size=40, unique=True)


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
def test_no_more_missed_ticks_run_than_the_policy_allows(policy: CatchUp, ticks: list[Instant]) -> None:
    late = [one for one in decide(policy, ticks, NOW) if NOW - one.tick > policy.grace]
    caught_up = [one for one in late if one.not_before is not None]
    most = {"none": 0, "latest": 1, "all": policy.cap}[policy.mode]
    assert len(caught_up) <= most
    # The newest candidates run.
    if policy.mode == "all":
        young = [one for one in late if NOW - one.tick <= policy.max_age]
        assert caught_up == young[len(young) - len(caught_up) :]
        assert len(caught_up) == min(policy.cap, len(young))


def test_mode_none_skips_every_late_tick() -> None:
    decided = decide(CatchUp(mode="none"), ago(HOUR, 2 * MINUTE, SECOND), NOW)
    assert [(one.not_before, one.reason) for one in decided] == [(None, "missed"), (None, "missed"), (NOW - SECOND, "")]


def test_mode_latest_runs_the_newest_missed_tick_at_once() -> None:
    decided = decide(CatchUp(mode="latest"), ago(HOUR, 2 * MINUTE), NOW)
    assert [one.not_before for one in decided] == [None, NOW]
    assert decided[0].reason == "superseded by a later tick"


def test_mode_latest_runs_a_per_second_job_once_after_an_outage() -> None:
    ticks = [NOW - second * SECOND for second in range(300, -1, -1)]
    decided = decide(CatchUp(mode="latest"), ticks, NOW)
    assert [one.tick for one in decided if one.not_before is not None] == [NOW]


def test_a_short_stall_skips_nothing() -> None:
    ticks = [NOW - second * SECOND for second in range(30, -1, -1)]
    assert all(one.not_before == one.tick for one in decide(CatchUp(mode="latest"), ticks, NOW))


def test_mode_latest_runs_no_missed_tick_if_a_later_one_is_on_time() -> None:
    decided = decide(CatchUp(mode="latest"), ago(HOUR, 2 * MINUTE, SECOND), NOW)
    assert [one.not_before for one in decided] == [None, None, NOW - SECOND]


def test_mode_all_runs_the_newest_ticks_within_cap_and_max_age_at_its_pace() -> None:
    policy = CatchUp(mode="all", cap=2, max_age=5 * HOUR, pace=10 * SECOND)
    decided = decide(policy, ago(6 * HOUR, 3 * HOUR, 2 * HOUR, HOUR, 0), NOW)
    assert [one.not_before for one in decided] == [None, None, NOW, NOW + 10 * SECOND, NOW]
    assert [one.reason for one in decided] == ["too old", "over the cap of 2", "", "", ""]


def test_mode_none_skips_a_late_tick_behind_one_that_is_on_time() -> None:
    decided = decide(CatchUp(mode="none", grace=MINUTE), ago(SECOND, HOUR), NOW)
    assert [(one.not_before, one.reason) for one in decided] == [(NOW - SECOND, ""), (None, "missed")]


def test_mode_latest_runs_a_late_newest_tick_now_if_another_one_is_on_time() -> None:
    decided = decide(CatchUp(mode="latest", grace=MINUTE), ago(SECOND, HOUR), NOW)
    assert [one.not_before for one in decided] == [None, NOW]


def test_mode_all_with_a_cap_of_zero_runs_nothing() -> None:
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
        CatchUp(grace=LONGEST + 1),
        CatchUp(max_age=LONGEST + 1),
        CatchUp(pace=LONGEST + 1),
    ],
)
def test_an_out_of_range_policy_is_rejected(policy: CatchUp) -> None:
    with pytest.raises(Invalid):
        policy.check()


@pytest.mark.parametrize("policy", [CatchUp(cap=0, grace=0, max_age=0), CatchUp(cap=10_000, grace=LONGEST)])
def test_a_policy_at_its_limits_is_accepted(policy: CatchUp) -> None:
    policy.check()


@around_the_boundary
@pytest.mark.parametrize(("mode", "late"), [("none", (None, "missed")), ("latest", (NOW, "")), ("all", (NOW, ""))])
def test_a_tick_is_late_only_beyond_the_grace(
    mode: Literal["none", "latest", "all"], late: tuple[Instant | None, str], offset: int
) -> None:
    [*_, decided] = decide(CatchUp(mode=mode, grace=MINUTE), ago(HOUR, MINUTE + offset), NOW)
    expected = late if offset > 0 else (decided.tick, "")
    assert (decided.not_before, decided.reason) == expected


@around_the_boundary
def test_a_missed_tick_is_too_old_only_beyond_the_max_age(offset: int) -> None:
    for cap, young in ((1, ""), (0, "over the cap of 0")):
        [decided] = decide(CatchUp(mode="all", cap=cap, max_age=HOUR), ago(HOUR + offset), NOW)
        assert decided.reason == ("too old" if offset > 0 else young)


@pytest.mark.parametrize("mode", ["none", "latest"])
@pytest.mark.parametrize(("option", "field"), [({"cap": 4}, "cap"), ({"pace": 1}, "pace"), ({"max_age": 1}, "maxAge")])
def test_an_option_that_the_mode_ignores_is_rejected(
    mode: Literal["none", "latest"], option: dict[str, int], field: str
) -> None:
    policy = CatchUp(mode=mode, grace=MINUTE, **option)
    policy.check()
    with pytest.raises(Invalid, match=f"does not go with mode {mode}") as refused:
        policy.check_meant()
    assert refused.value.field == f"catchUp.{field}"
    assert policy.effective() == CatchUp(mode=mode, grace=MINUTE)
    policy.effective().check_meant()
    CatchUp(mode="all", **option).check_meant()


def test_the_default_policy_is_valid() -> None:
    CatchUp().check_meant()
    CatchUp().check()


def test_ticks_within_the_grace_do_not_count_against_the_cap() -> None:
    """The example of the reference: a tick every 4 s, and an outage of 83 s."""
    ticks = [NOW - 83 * SECOND + number * 4 * SECOND + 3 * SECOND for number in range(21)]
    decided = decide(CatchUp(mode="all", cap=4), ticks, NOW)
    assert sum(one.not_before is not None for one in decided) == 4 + 16
    strict = decide(CatchUp(mode="all", cap=4, grace=0), ticks[:-1], NOW)
    assert sum(one.not_before is not None for one in strict) == 4
