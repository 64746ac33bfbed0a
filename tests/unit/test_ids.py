"""Ids sort in the order in which they were made, and carry their shard."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.ids import (
    MAX_SHARDS,
    IdMaker,
    decode_shard,
    derived_id,
    is_id,
    made_at,
    shard_for,
    stable_hash,
)
from mainspring.core.model.base.instant import MILLISECOND, Instant
from mainspring.core.model.schedules.job import tick_run_id, version_body_id
from tests.support.builders import a_job_id
from tests.support.clock import START

instants = st.integers(0, START * 4)
shards = st.integers(0, MAX_SHARDS - 1)


@given(instants, shards)
def test_an_id_carries_its_shard_and_its_time_to_the_millisecond(at: Instant, shard: int) -> None:
    made = IdMaker(Random(0)).make(at, shard)
    assert is_id(made)
    assert decode_shard(made) == shard
    assert made_at(made) == at // MILLISECOND * MILLISECOND


@given(st.lists(st.integers(-5_000, 5_000), max_size=50))
def test_ids_of_one_maker_grow_whatever_the_clock_does(steps: list[int]) -> None:
    maker = IdMaker(Random(0))
    now = START
    made = []
    for step in steps:
        now += step
        made.append(maker.make(now, 0))
    assert made == sorted(set(made))


def test_more_ids_than_a_millisecond_has_room_for_still_grow() -> None:
    maker = IdMaker(Random(0))
    made = [maker.make(START, 3) for _ in range(10_000)]
    assert made == sorted(set(made))
    assert {decode_shard(one) for one in made} == {3}
    assert made_at(made[-1]) - START < 5 * MILLISECOND


def test_makers_in_the_same_moment_do_not_make_the_same_id() -> None:
    one, other = IdMaker(Random(1)), IdMaker(Random(2))
    assert one.make(START, 0) != other.make(START, 0)


def test_an_id_has_the_layout_of_a_version_7_uuid() -> None:
    made = IdMaker(Random(0)).make(START, MAX_SHARDS - 1)
    assert made[12] == "7"
    assert made[16] in "89ab"


@given(instants, shards, st.text(), st.text())
def test_the_same_parts_give_the_same_derived_id(at: Instant, shard: int, one: str, other: str) -> None:
    derived = derived_id(at, shard, one.encode("utf-8", "replace"), 7)
    assert derived == derived_id(at, shard, one.encode("utf-8", "replace"), 7)
    assert is_id(derived)
    assert derived[12] == "8"
    assert decode_shard(derived) == shard
    assert made_at(derived) == at // MILLISECOND * MILLISECOND
    if one.encode("utf-8", "replace") != other.encode("utf-8", "replace"):
        assert derived != derived_id(at, shard, other.encode("utf-8", "replace"), 7)


def test_each_tick_and_target_of_a_job_has_its_own_run_in_the_jobs_shard() -> None:
    job = a_job_id(shard=42)
    made = {
        tick_run_id(job, START),
        tick_run_id(job, START + 1),
        tick_run_id(job, START, "eu-1"),
        tick_run_id(a_job_id(shard=42), START),
    }
    assert len(made) == 4
    assert {decode_shard(run) for run in made} == {42}
    assert tick_run_id(job, START) == tick_run_id(job, START)


def test_each_version_of_a_job_has_its_own_body() -> None:
    job = a_job_id(shard=42)
    assert version_body_id(job, 1) != version_body_id(job, 2)
    assert decode_shard(version_body_id(job, 1)) == 42


@given(st.text(max_size=40))
def test_arbitrary_text_is_not_an_id(text: str) -> None:
    assert not is_id(text)


def test_text_that_resembles_an_id_is_not_one() -> None:
    made = IdMaker(Random(0)).make(START, 0)
    assert not is_id(made.upper())
    assert not is_id(made[:-1])
    assert not is_id(made + "0")
    assert not is_id(made[:12] + "4" + made[13:])
    assert not is_id("٣" * 32)


def test_the_hash_of_a_key_is_the_same_on_every_machine_and_fits_a_signed_bigint() -> None:
    # Stored in every database: a change of these numbers would orphan limiters and key locks.
    assert stable_hash("order:default:video-1") == 2_855_879_542_516_377_283
    assert 0 <= stable_hash("") < 1 << 63


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(1, MAX_SHARDS))
def test_a_key_maps_to_an_existing_shard(key: str, count: int) -> None:
    assert 0 <= shard_for(key, count) < count


def test_keys_spread_over_the_shards() -> None:
    counts = [0] * 10
    for number in range(10_000):
        counts[shard_for(f"video-{number}", 10)] += 1
    assert min(counts) > 850
    assert max(counts) < 1_150
