"""Data centers: placement of runs, preferences and failover."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring import prefer
from mainspring.cli.tables.datacenters import parse_datacenters
from mainspring.config.loading import load
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import MINUTE, SECOND, Instant
from mainspring.core.model.cluster.datacenters import (
    ALL,
    Preference,
    at_home,
    find_datacenter,
    find_preference,
    may_run,
    placed,
    requiring,
    serving,
)
from mainspring.core.model.cluster.labels import check_labels_kept
from mainspring.core.model.schedules.catch_up import CatchUp
from mainspring.core.model.schedules.job import JobSpec, LedgerEntry, Overlap
from mainspring.core.model.schedules.plan import plan_job
from mainspring.core.model.schedules.slo import TickFact, worse
from mainspring.core.model.schedules.spread import NOWHERE, spread, whole_ticks
from tests.support.builders import a_job_id, a_policy, a_spec, a_stored_job, every

LENIENT = CatchUp(grace=10 * MINUTE)
NAMES = ("asia", "eu", "us")
orders = st.permutations(NAMES).flatmap(
    lambda names: st.builds(
        Preference,
        st.integers(2, 3).map(lambda count: tuple(names[:count])),
        st.integers(1, 600).map(lambda seconds: seconds * SECOND),
    )
)
last_seen = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 20 * MINUTE))


@given(orders)
def test_a_preference_is_encoded_as_a_label_and_decoded_again(order: Preference) -> None:
    check_labels_kept("requires", (order.word,))
    assert find_preference(("gpu=a100", order.word)) == order
    assert find_datacenter((order.word,)) is None


@given(orders, last_seen, st.integers(0, 20 * MINUTE), st.integers(0, 5 * MINUTE))
def test_the_first_data_center_that_was_seen_within_the_failover_time_serves(
    order: Preference, last: dict[str, Instant], since: Instant, later: int
) -> None:
    now = max([since, *last.values()]) + later
    served_by, why = serving(order, last, since, now)
    there = [name for name in order.order if now - last.get(name, since) <= order.patience]
    assert served_by == (there[0] if there else order.order[0])
    assert bool(why) == (served_by != order.order[0])
    if why:
        assert served_by in why


@given(orders, last_seen, st.integers(0, 20 * MINUTE))
def test_a_data_center_that_returns_serves_its_runs_again(
    order: Preference, last: dict[str, Instant], now: Instant
) -> None:
    first = order.order[0]
    assert serving(order, {**last, first: now}, 0, now) == (first, "")


def test_a_worker_gets_its_data_center_from_a_label_or_from_its_setting() -> None:
    assert at_home(("gpu=a100",), "eu") == (("datacenter=eu", "gpu=a100"), "eu")
    assert at_home(("datacenter=eu",), "") == (("datacenter=eu",), "eu")
    assert at_home(("gpu=a100",), "") == (("gpu=a100",), "")
    with pytest.raises(Invalid, match="one of them"):
        at_home(("datacenter=eu",), "us")
    with pytest.raises(Invalid, match="letters"):
        at_home((), "a b")


def test_a_worker_runs_what_its_data_center_serves_and_its_labels_allow() -> None:
    word = Preference(("us", "eu"), SECOND).word
    served = {word: "eu"}
    assert may_run((), "eu", (word,), served)
    assert not may_run((), "us", (word,), served)
    assert not may_run((), "eu", (word, "gpu=a100"), served)
    assert may_run(("datacenter=us",), "us", ("datacenter=us",), {})


def test_a_required_data_center_replaces_another() -> None:
    assert requiring(("datacenter=us", "gpu=a100"), "datacenter=eu") == ("datacenter=eu", "gpu=a100")
    assert placed(a_policy(requires=("gpu=a100",)), "").requires == ("gpu=a100",)


def test_every_tick_fires_once_in_each_data_center() -> None:
    job = a_stored_job(a_spec(schedule=every(MINUTE)), next_fire=5 * MINUTE)
    fire = plan_job(job, 5 * MINUTE)
    spread_fire = spread(fire, ("eu", "us"))
    assert [(tick.scheduled_at, tick.target) for tick in spread_fire.ticks] == [(5 * MINUTE, "eu"), (5 * MINUTE, "us")]
    assert len({tick.run_id for tick in (*spread_fire.ticks, *fire.ticks)}) == 3
    assert (spread_fire.next_fire, spread_fire.job) == (fire.next_fire, fire.job)


def test_a_tick_without_any_data_center_is_skipped_with_a_reason() -> None:
    job = a_stored_job(a_spec(schedule=every(MINUTE)), next_fire=5 * MINUTE)
    [tick] = spread(plan_job(job, 5 * MINUTE), ()).ticks
    assert (tick.decision, tick.reason, tick.run_id) == ("skipped", NOWHERE, None)


@pytest.mark.parametrize("overlap", Overlap)
def test_ticks_without_any_data_center_do_not_overlap_with_each_other(overlap: Overlap) -> None:
    job = a_stored_job(a_spec(schedule=every(MINUTE), overlap=overlap, catch_up=LENIENT), next_fire=5 * MINUTE)
    fire = spread(plan_job(job, 8 * MINUTE), ())
    assert [(tick.decision, tick.reason) for tick in fire.ticks] == [("skipped", NOWHERE)] * 4


def test_a_tick_that_is_skipped_anyway_keeps_its_reason_without_any_data_center() -> None:
    strict = CatchUp(mode="none", grace=MINUTE)
    job = a_stored_job(a_spec(schedule=every(MINUTE), catch_up=strict), next_fire=5 * MINUTE)
    fire = spread(plan_job(job, 7 * MINUTE), ())
    assert [tick.reason for tick in fire.ticks] == ["missed", NOWHERE, NOWHERE]


@given(st.lists(st.integers(0, 5), max_size=30).map(sorted), st.integers(1, 30))
def test_a_page_of_the_ledger_never_splits_a_tick(times: list[int], limit: int) -> None:
    entries = [
        LedgerEntry(job_id=a_job_id(), scheduled_at=at, decision="run", reason="", run_id=None, job_version=1, epoch=1)
        for at in times
    ]
    end = whole_ticks(entries, limit)
    assert end >= min(limit, len(entries))
    assert not (0 < end < len(times) and times[end - 1] == times[end])


def test_an_objective_is_met_only_if_every_data_center_meets_it() -> None:
    early, late, never, excused = TickFact(1, 0), TickFact(9, 0), TickFact(None, 0), TickFact(None, 0, excused=True)
    assert worse(None, early) == early
    assert worse(early, late) == worse(late, early) == late
    assert worse(never, late) == worse(late, never) == never
    assert worse(excused, early) == worse(early, excused) == early


@pytest.mark.parametrize(("labels", "datacenter"), [((), "us>eu>30s"), (("datacenter=us>eu>30s",), "")])
def test_a_preference_is_not_the_name_of_a_data_center(labels: tuple[str, ...], datacenter: str) -> None:
    with pytest.raises(Invalid, match="is not a name of a data center"):
        at_home(labels, datacenter)
    with pytest.raises(Invalid, match="datacenter: 'us>eu>30s' is not a name of a data center"):
        load({"datacenter": "us>eu>30s"}, {})


def test_a_job_lists_distinct_data_centers_or_all() -> None:
    for datacenters in ((ALL, "us"), ("us", "us"), ("a b",), ("us>eu",)):
        with pytest.raises(Invalid):
            a_spec_for(*datacenters).check()
    a_spec_for("us", "eu").check()
    a_spec_for(ALL).check()


def a_spec_for(*datacenters: str) -> JobSpec:
    return msgspec.structs.replace(a_spec(schedule=every(MINUTE)), datacenters=datacenters)


def test_data_centers_are_parsed_from_the_sdk_and_the_command_line() -> None:
    assert prefer("us", "eu", failover_after="1m") == "us>eu>60s"
    with pytest.raises(Invalid, match="'us>eu' is not a name of a data center"):
        prefer("us>eu", "asia")
    with pytest.raises(Invalid):
        prefer("us")
    assert parse_datacenters("us, eu") == ["us", "eu"]
    assert parse_datacenters("all") == "all"
    assert parse_datacenters("us>eu") == {"prefer": ["us", "eu"]}
    assert parse_datacenters("us>eu>30s") == {"prefer": ["us", "eu"], "failoverAfter": "30s"}
    assert parse_datacenters("us>eu>1m30s") == {"prefer": ["us", "eu"], "failoverAfter": "1m30s"}
