"""Layout of a fan-out into parts, and the survey that counts its members."""

from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import RunId, decode_shard, is_id, made_at
from mainspring.core.model.base.instant import MILLISECOND, SECOND
from mainspring.core.model.runs.rank import MOST_URGENT
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.workflows.fan_out import (
    LARGEST_PART,
    MAX_AT_A_TIME,
    FanOutCounts,
    FanOutLayout,
    FanOutNames,
    FanOutSurvey,
    choose_parts,
    count,
    look_after,
    member_priority,
    plan_layout,
)

ROOT = RunId("019a8c4b6f2c70008042b1c2d3e4f506")
layouts = some.builds(plan_layout, some.integers(0, 500), some.integers(1, 100))
ENDS = (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.SKIPPED)


@given(layouts)
def test_every_member_is_in_exactly_one_part(layout: FanOutLayout) -> None:
    members = [number for part in range(layout.parts) for number in layout.list_members(part)]
    assert members == list(range(layout.members))
    assert all(layout.list_members(part) for part in range(layout.parts))
    assert set(layout.first_parts()) <= set(range(layout.parts))


@given(some.integers(0, 5_000_000), some.integers(1, MAX_AT_A_TIME))
def test_open_parts_hold_nearly_the_requested_concurrency_and_never_more(members: int, at_a_time: int) -> None:
    layout = plan_layout(members, at_a_time)
    assert layout.open * layout.size <= at_a_time
    assert 1 <= layout.size <= min(LARGEST_PART, at_a_time)
    assert (layout.open == 0) == (members == 0)
    # Less than a tenth of the requested concurrency is lost to rounding.
    assert layout.open * layout.size > 0.9 * at_a_time - 1 or layout.open == layout.parts


def test_a_concurrency_out_of_bounds_is_rejected() -> None:
    for wrong in (0, MAX_AT_A_TIME + 1):
        with pytest.raises(Invalid, match="atATime"):
            plan_layout(10, wrong)


@settings(max_examples=30)
@given(some.integers(0, 40), some.integers(1, 8), some.randoms(use_true_random=False))
def test_every_member_is_counted_once_in_any_order_of_completion(members: int, at_a_time: int, chance: Random) -> None:
    layout = plan_layout(members, at_a_time)
    states = [chance.choice(ENDS) for _ in range(members)]
    parts = [count(len(of), [states[number] for number in of]) for of in map(layout.list_members, range(layout.parts))]
    survey = FanOutSurvey(members=members, began=0)
    made, gathered = set(layout.first_parts()), set[int]()
    while survey.counts.members < members:
        if on_their_way := sorted(made - gathered):
            assert len(on_their_way) <= layout.open
            part = chance.choice(on_their_way)
            gathered.add(part)
            missing = [one for one in range(layout.open, layout.parts) if one not in made]
            made.update(choose_parts(missing, part, layout.open)[:1])
            beyond = [one for one in missing if one < max(made)]
            assert len(beyond) <= layout.open, "parts are created nearly in order"
        if chance.random() < 0.5:
            end = max(made, default=-1) + 1
            seen = survey.after(end, {one: parts[one] for one in survey.ahead(end) if one in gathered})
            assert set(seen.open) == set(range(end)) - gathered
            survey = msgspec.json.decode(msgspec.json.encode(seen), type=FanOutSurvey)
    expected = count(members, states)
    assert survey.counts == expected
    assert (expected.words() == "") == (expected.succeeded == members)


def test_the_counts_describe_the_members_that_did_not_succeed() -> None:
    counts = FanOutCounts(members=1_000_000, succeeded=999_983, failed=12, cancelled=5)
    assert counts.words() == "17 of 1,000,000 members did not succeed (12 failed, 5 cancelled)"
    assert count(3, [RunState.SUCCEEDED]) == FanOutCounts(members=3, succeeded=1, skipped=2), (
        "a missing member counts as skipped"
    )


def test_ids_are_derived_from_the_root_and_are_unique() -> None:
    layout, names = plan_layout(1_200), FanOutNames(ROOT)
    ids = [names.member(number, part) for part in range(layout.parts) for number in layout.list_members(part)]
    ids += [names.gathering(part) for part in range(layout.parts)] + [names.clean_up()]
    assert len(set(ids)) == len(ids)
    assert all(is_id(one) for one in ids)
    assert FanOutNames(ROOT).member(7, 0) == names.member(7, 0)
    assert names.member(0, 0) < names.member(0, 1), "ids are ordered by part"
    milliseconds = {made_at(one) - made_at(ROOT) for one in (names.clean_up(), names.gathering(0), names.member(7, 0))}
    assert milliseconds == {0}
    assert made_at(names.gathering(3)) == made_at(names.member(7, 3)) == made_at(ROOT) + 3 * MILLISECOND
    assert {decode_shard(one) for one in ids} == {decode_shard(ROOT)}
    assert decode_shard(names.member(7, 0, shard=0)) == 0
    assert decode_shard(names.member(7, 0, shard=99)) == 99


@pytest.mark.parametrize(
    ("priority", "of_member"),
    [(MOST_URGENT, MOST_URGENT + 1), (MOST_URGENT + 1, MOST_URGENT + 1), (MOST_URGENT + 2, MOST_URGENT + 2)],
)
def test_members_are_less_urgent_than_the_runs_that_gather_them(priority: int, of_member: int) -> None:
    assert member_priority(priority) == of_member


@given(some.integers(0, 10_000 * SECOND))
def test_the_polling_interval_grows_with_the_time_waited(waited: int) -> None:
    assert 0.1 * SECOND <= look_after(waited) <= 10 * SECOND
    assert look_after(waited) <= max(0.1 * SECOND, waited / 20)
