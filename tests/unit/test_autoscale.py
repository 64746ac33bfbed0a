"""How many workers the load asks for."""

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.autoscale import (
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
from mainspring.domain.instant import HOUR, MINUTE, SECOND

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
wishes = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 2 * MINUTE)), max_size=30)


def test_a_steady_load_needs_as_many_slots_as_arrive_while_one_takes() -> None:
    load = QueueLoad(queue="q", running=80, service_rate=40.0, took=2 * SECOND)
    assert workers_for(load, 10) == 10


def test_a_backlog_needs_more_for_a_while() -> None:
    steady = QueueLoad(queue="q", running=40, service_rate=40.0, took=SECOND)
    piled_up = QueueLoad(queue="q", running=40, queued=4_000, lag=2 * MINUTE, service_rate=40.0, took=SECOND)
    assert workers_for(steady, 10) == 5
    assert workers_for(piled_up, 10) == 55


def test_the_rate_of_arrivals_is_what_has_come_within_the_lag() -> None:
    assert QueueLoad(queue="q", queued=600, lag=MINUTE, service_rate=3.0).arrival_rate == 10.0
    assert QueueLoad(queue="q", service_rate=3.0).arrival_rate == 3.0


def test_where_nothing_has_ended_yet_one_more_is_tried_at_a_time() -> None:
    assert workers_for(QueueLoad(queue="q", queued=1_000, workers=3), 100) == 4
    assert workers_for(QueueLoad(queue="q", running=150), 100) == 2


def pods(load: QueueLoad, slots: int) -> int:
    """As a HorizontalPodAutoscaler finds it that is told of slots."""
    return ceil(round(slots_for(load) / slots, 6))


def test_one_run_asks_for_one_worker_however_few_slots_it_has() -> None:
    assert pods(QueueLoad(queue="q", running=1, took=HOUR), 2) == 1
    for took in (None, SECOND):
        assert pods(QueueLoad(queue="q", running=1, took=took), 2) == 1
        assert pods(QueueLoad(queue="q", queued=1, took=took), 2) == 1


def test_where_nothing_has_ended_yet_slots_grow_by_a_quarter_while_they_are_full() -> None:
    assert [pods(QueueLoad(queue="q", queued=1_000, running=held, workers=9), 2) for held in (0, 2, 4, 8)] == [
        1,
        2,
        3,
        5,
    ]
    assert pods(QueueLoad(queue="q", running=8, workers=4), 2) == 4


@given(loads, st.integers(1, 1_000))
def test_who_divides_slots_finds_as_many_workers(load: QueueLoad, slots: int) -> None:
    if load.took is not None:
        assert min(MOST, pods(load, slots)) == workers_for(load, slots)
    assert (slots_for(load) >= 1) >= bool(load.queued)


@given(loads, st.integers(1, 1_000))
def test_an_idle_queue_needs_nobody_and_a_busy_one_somebody(load: QueueLoad, slots: int) -> None:
    wanted = workers_for(load, slots)
    assert 0 <= wanted <= MOST
    if load.queued:
        assert wanted >= 1
    if not load.queued and not load.running and not load.service_rate:
        assert wanted == 0


@given(loads, st.integers(1, 1_000), st.integers(0, 1_000_000))
def test_more_that_waits_never_asks_for_fewer(load: QueueLoad, slots: int, more: int) -> None:
    heavier = QueueLoad(
        **{**{name: getattr(load, name) for name in load.__struct_fields__}, "queued": load.queued + more}
    )
    assert workers_for(heavier, slots) >= workers_for(load, slots)


@given(loads, st.integers(1, 500))
def test_more_slots_a_worker_never_ask_for_more_workers(load: QueueLoad, slots: int) -> None:
    assert workers_for(load, 2 * slots) <= workers_for(load, slots)


@given(bounds, wishes)
def test_the_number_keeps_its_bounds_and_grows_no_faster_than_twice(of: Bounds, wanted: list[tuple[int, int]]) -> None:
    scale, now = Scale(workers=of.least), 0
    for wish, pause in wanted:
        now += pause
        after = rescale(scale, wish, of, now)
        assert of.least <= after.workers <= of.most
        assert after.workers <= max(2 * scale.workers, 1, of.least)
        scale = after


@given(bounds, wishes)
def test_nobody_goes_before_it_was_calm(of: Bounds, wanted: list[tuple[int, int]]) -> None:
    scale, now = Scale(workers=of.most), 0
    enough_until = now
    for wish, pause in wanted:
        now += pause
        after = rescale(scale, wish, of, now)
        if after.workers < scale.workers:
            assert now - enough_until >= CALM
        if wish >= scale.workers or after.workers < scale.workers:
            enough_until = now
        scale = after


@given(bounds, st.integers(0, 60), st.integers(0, 40))
def test_a_load_that_stays_comes_to_rest_at_what_it_asks_for(of: Bounds, wish: int, start: int) -> None:
    scale = Scale(workers=start)
    for step in range(20):
        scale = rescale(scale, wish, of, step * CALM)
    assert scale.workers == min(max(wish, of.least), of.most)


def test_a_load_that_goes_up_and_down_starts_and_stops_nothing() -> None:
    of, scale = Bounds(1, 16), Scale(workers=8)
    for step in range(100):
        scale = rescale(scale, 8 if step % 5 == 0 else 2, of, step * 10 * SECOND)
        assert scale.workers == 8


def test_there_are_two_schedulers_for_safety_and_more_for_speed_or_when_they_are_behind() -> None:
    assert schedulers_for(0, 0, 0) == LEAST_SCHEDULERS
    assert schedulers_for(22_000, 0, 2) == 5
    assert schedulers_for(10, 2 * SECOND, 3) == 4
