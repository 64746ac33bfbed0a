"""How many workers and schedulers a load needs."""

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND
from mainspring.core.model.cluster.autoscale import (
    CALM,
    LEAST_SCHEDULERS,
    MOST,
    Bounds,
    QueueLoad,
    Scale,
    rescale,
    schedulers_for,
    slots_for,
    workers_for,
)

loads = st.builds(
    QueueLoad,
    queue=st.just("default"),
    queued=st.integers(0, 1_000_000),
    running=st.integers(0, 100_000),
    lag=st.integers(0, HOUR),
    service_rate=st.floats(0, 10_000),
    took=st.none() | st.integers(0, HOUR),
    workers=st.integers(0, 100),
)
bounds = st.integers(0, 20).flatmap(lambda least: st.builds(Bounds, st.just(least), st.integers(max(least, 1), 40)))
demands = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 2 * MINUTE)), max_size=30)


def test_a_steady_load_needs_arrival_rate_times_duration_slots() -> None:
    load = QueueLoad(queue="q", running=80, service_rate=40.0, took=2 * SECOND)
    assert workers_for(load, 10) == 10


def test_a_backlog_needs_more_workers_than_a_steady_load() -> None:
    steady = QueueLoad(queue="q", running=40, service_rate=40.0, took=SECOND)
    piled_up = QueueLoad(queue="q", running=40, queued=4_000, lag=2 * MINUTE, service_rate=40.0, took=SECOND)
    assert workers_for(steady, 10) == 5
    assert workers_for(piled_up, 10) == 55


def test_the_arrival_rate_of_a_backlog_is_its_size_divided_by_its_lag() -> None:
    assert QueueLoad(queue="q", queued=600, lag=MINUTE, service_rate=3.0).arrival_rate == 10.0
    assert QueueLoad(queue="q", service_rate=3.0).arrival_rate == 3.0


def test_without_a_known_duration_workers_grow_one_at_a_time() -> None:
    assert workers_for(QueueLoad(queue="q", queued=1_000, workers=3), 100) == 4
    assert workers_for(QueueLoad(queue="q", running=150), 100) == 2


def count_pods(load: QueueLoad, slots: int) -> int:
    """The replicas that a HorizontalPodAutoscaler computes from the number of slots."""
    return ceil(round(slots_for(load) / slots, 6))


def test_one_run_needs_one_worker_however_few_slots_it_has() -> None:
    assert count_pods(QueueLoad(queue="q", running=1, took=HOUR), 2) == 1
    for took in (None, SECOND):
        assert count_pods(QueueLoad(queue="q", running=1, took=took), 2) == 1
        assert count_pods(QueueLoad(queue="q", queued=1, took=took), 2) == 1


def test_without_a_known_duration_slots_grow_by_a_quarter_while_they_are_full() -> None:
    assert [count_pods(QueueLoad(queue="q", queued=1_000, running=held, workers=9), 2) for held in (0, 2, 4, 8)] == [
        1,
        2,
        3,
        5,
    ]
    assert count_pods(QueueLoad(queue="q", running=8, workers=4), 2) == 4


@given(loads, st.integers(1, 1_000))
def test_dividing_slots_by_slots_per_worker_gives_the_number_of_workers(load: QueueLoad, slots: int) -> None:
    if load.took is not None:
        assert min(MOST, count_pods(load, slots)) == workers_for(load, slots)
    assert (slots_for(load) >= 1) >= bool(load.queued)


@given(loads, st.integers(1, 1_000))
def test_an_idle_queue_needs_no_worker_and_a_queue_with_waiting_runs_at_least_one(load: QueueLoad, slots: int) -> None:
    demanded = workers_for(load, slots)
    assert 0 <= demanded <= MOST
    if load.queued:
        assert demanded >= 1
    if not load.queued and not load.running and not load.service_rate:
        assert demanded == 0


@given(loads, st.integers(1, 1_000), st.integers(0, 1_000_000))
def test_more_waiting_runs_never_need_fewer_workers(load: QueueLoad, slots: int, more: int) -> None:
    heavier = QueueLoad(
        **{**{name: getattr(load, name) for name in load.__struct_fields__}, "queued": load.queued + more}
    )
    assert workers_for(heavier, slots) >= workers_for(load, slots)


@given(loads, st.integers(1, 500))
def test_more_slots_per_worker_never_need_more_workers(load: QueueLoad, slots: int) -> None:
    assert workers_for(load, 2 * slots) <= workers_for(load, slots)


@given(bounds, demands)
def test_the_number_of_workers_stays_in_its_bounds_and_at_most_doubles(
    limits: Bounds, demanded: list[tuple[int, int]]
) -> None:
    scale, now = Scale(workers=limits.least), 0
    for demand, pause in demanded:
        now += pause
        after = rescale(scale, demand, limits, now)
        assert limits.least <= after.workers <= limits.most
        assert after.workers <= max(2 * scale.workers, 1, limits.least)
        scale = after


@given(bounds, demands)
def test_workers_are_removed_only_after_a_calm_period(limits: Bounds, demanded: list[tuple[int, int]]) -> None:
    scale, now = Scale(workers=limits.most), 0
    enough_until = now
    for demand, pause in demanded:
        now += pause
        after = rescale(scale, demand, limits, now)
        if after.workers < scale.workers:
            assert now - enough_until >= CALM
        if demand >= scale.workers or after.workers < scale.workers:
            enough_until = now
        scale = after


@given(bounds, st.integers(0, 60), st.integers(0, 40))
def test_a_constant_load_converges_to_the_workers_it_needs(limits: Bounds, demand: int, start: int) -> None:
    scale = Scale(workers=start)
    for step in range(20):
        scale = rescale(scale, demand, limits, step * CALM)
    assert scale.workers == min(max(demand, limits.least), limits.most)


def test_a_fluctuating_load_does_not_change_the_number_of_workers() -> None:
    limits, scale = Bounds(1, 16), Scale(workers=8)
    for step in range(100):
        scale = rescale(scale, 8 if step % 5 == 0 else 2, limits, step * 10 * SECOND)
        assert scale.workers == 8


def test_two_schedulers_are_the_minimum_and_load_or_lag_adds_more() -> None:
    assert schedulers_for(0, 0, 0) == LEAST_SCHEDULERS
    assert schedulers_for(22_000, 0, 2) == 5
    assert schedulers_for(10, 2 * SECOND, 3) == 4
