"""The SLO keeper on the memory store, in virtual time."""

from random import Random

import msgspec
import pytest

from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND, Instant
from mainspring.core.model.runs.completion import complete_failure, complete_success
from mainspring.core.model.schedules.calendar import CalendarSpec, Covers, Freeze, WhenClosed
from mainspring.core.model.schedules.job import JobSpec, JobState
from mainspring.core.model.schedules.schedule import compute_due
from mainspring.core.model.schedules.slo import MISSED, RECOVERED, Slo
from mainspring.core.ports.storage.access import Author
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.store import Demand
from mainspring.features.slo.service import SloKeeper
from mainspring.testing.virtual_time import START, VirtualClock
from tests.support.builders import a_job, a_spec, a_worker, every
from tests.support.scheduler_node import Node, RemoteStore, declared, ledger_of
from tests.support.virtual import in_virtual_time


async def read_events(store: RemoteStore) -> list[tuple[str, Instant]]:
    batches = [batch for batch in await store.events("test", 10_000) if batch.kind.startswith("job.")]
    return [(batch.kind, batch.at) for batch in batches for _ in batch.runs]


async def run_all(store: RemoteStore, number: int) -> None:
    """Claim and complete all queued runs."""
    worker = await store.open_session(a_worker(ttl=1_000 * HOUR))
    held = await store.claim(worker, number, [Demand("default", 100)])
    await store.complete([complete_success(run, None) for run in held])


@in_virtual_time
async def test_a_missed_objective_is_reported_once_even_if_no_scheduler_runs() -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    await store.attach_reader("test")
    slo = Slo(start_within=10 * SECOND, succeed_every=3 * MINUTE)
    (job,) = await declared(store, [a_job(a_spec(schedule=every(MINUTE), slo=slo))])
    # No scheduler is alive, only the SLO keeper.
    keeper = SloKeeper(store, LocalWakeups(), clock)
    await keeper.start()
    await clock.sleep(HOUR + 30 * SECOND)
    events = await read_events(store)
    assert [kind for kind, _ in events] == [MISSED, MISSED]
    first = START - START % MINUTE + MINUTE
    for (_, at), expected in zip(events, (first + 10 * SECOND, START + 3 * MINUTE), strict=True):
        assert 0 < at - expected < 5 * SECOND
    async with Node(store):
        await clock.sleep(SECOND)
        await run_all(store, 1)
        await clock.sleep(20 * SECOND)
        # It has succeeded again, but the next tick must also start in time.
        assert [kind for kind, _ in await read_events(store)] == [MISSED, MISSED, RECOVERED]
        await clock.sleep(MINUTE - clock.now() % MINUTE + SECOND)
        await run_all(store, 2)
        await clock.sleep(20 * SECOND)
    await keeper.stop()
    assert [kind for kind, _ in await read_events(store)] == [MISSED, MISSED, RECOVERED, RECOVERED]
    state = (await store.slo_states([job.id]))[job.id]
    assert (state.late_since, state.quiet_since) == (None, None)


@in_virtual_time
async def test_a_tick_skipped_by_a_new_freeze_is_no_missed_objective() -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    await store.attach_reader("test")
    spec = a_spec(schedule=every(MINUTE), slo=Slo(start_within=30 * SECOND))
    (job,) = await declared(store, [a_job(spec)])
    keeper = SloKeeper(store, LocalWakeups(), clock)
    await keeper.start()
    async with Node(store):
        first = START - START % MINUTE + MINUTE
        # The tick is planned already when the freeze begins, a second before it.
        await clock.sleep(first - clock.now() - SECOND)
        freeze = Freeze(start=first - SECOND, end=first + 10 * MINUTE)
        calendar = CalendarSpec(freezes=(freeze,), covers=Covers(everything=True))
        await store.put_calendar("default", "freeze", calendar, Author("ada"))
        await clock.sleep(10 * MINUTE)
        await clock.sleep(2 * SECOND)
        ledger = await ledger_of(store, job.id)
        assert {entry.reason for entry in ledger[:10]} == {"calendar: freeze, version 1"}
        assert [entry.decision for entry in ledger] == ["skipped"] * 10 + ["run"]
        await run_all(store, 1)
        await clock.sleep(45 * SECOND)
    await keeper.stop()
    assert await read_events(store) == []


@in_virtual_time
async def test_a_tick_skipped_by_a_pause_is_no_missed_objective() -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    await store.attach_reader("test")
    (job,) = await declared(store, [a_job(a_spec(schedule=every(MINUTE), slo=Slo(start_within=30 * SECOND)))])
    keeper = SloKeeper(store, LocalWakeups(), clock)
    await keeper.start()
    async with Node(store):
        await clock.sleep(MINUTE - clock.now() % MINUTE - 10 * SECOND)
        # The keeper does not check during the pause.
        await store.set_jobs_state([job.id], JobState.PAUSED, Author("ada", why="the bank is closed"))
        await clock.sleep(20 * SECOND)
        await store.set_jobs_state([job.id], JobState.SCHEDULED)
        await clock.sleep(30 * SECOND)
    await keeper.stop()
    assert [entry.reason for entry in await ledger_of(store, job.id)] == ["paused: the bank is closed"]
    assert await read_events(store) == []


@pytest.mark.parametrize("why_later", ["a calendar", "its jitter"])
@in_virtual_time
async def test_a_run_that_started_on_time_and_is_retried_is_no_missed_objective(why_later: str) -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    await store.attach_reader("test")
    first = START - START % MINUTE + MINUTE
    if why_later == "a calendar":
        span = Freeze(start=first - SECOND, end=first + 20 * SECOND)
        await store.put_calendar("default", "office", CalendarSpec(freezes=(span,)), Author("ada"))
        spec = add_calendar(a_spec(schedule=every(MINUTE), slo=Slo(start_within=5 * SECOND)), WhenClosed.AFTER)
    else:
        spec = a_spec(schedule=every(MINUTE, jitter=30 * SECOND), slo=Slo(start_within=SECOND))
    new = a_job(spec)
    while spec.schedule.jitter and compute_due(spec.schedule, first, new.id) <= first + 2 * SECOND:
        # The jitter is drawn from the id.
        new = a_job(spec)
    (job,) = await declared(store, [new])
    keeper = SloKeeper(store, LocalWakeups(), clock)
    await keeper.start()
    worker = await store.open_session(a_worker(ttl=1_000 * HOUR))
    async with Node(store):
        await clock.sleep(first + SECOND - clock.now())
        [entry] = await ledger_of(store, job.id)
        assert entry.run_id is not None
        [run] = await store.runs([entry.run_id])
        assert run is not None
        assert run.due > first + 2 * SECOND
        await clock.sleep(run.due - clock.now() + SECOND // 2)
        for number in (1, 2):
            [held] = await store.claim(worker, number, [Demand("default", 1)])
            again = complete_failure(held, "not this time", Random(1), now=clock.now())
            await store.complete([msgspec.structs.replace(again, delay=0)])
            await clock.sleep(SECOND // 10)
        await clock.sleep(first + 55 * SECOND - clock.now())
    await keeper.stop()
    assert await read_events(store) == []


@in_virtual_time
async def test_a_late_start_is_a_missed_objective_although_a_retry_follows() -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    await store.attach_reader("test")
    await declared(store, [a_job(a_spec(schedule=every(MINUTE), slo=Slo(start_within=5 * SECOND)))])
    worker = await store.open_session(a_worker(ttl=1_000 * HOUR))
    async with Node(store):
        await clock.sleep(MINUTE - clock.now() % MINUTE + 20 * SECOND)
        [held] = await store.claim(worker, 1, [Demand("default", 1)])
        again = complete_failure(held, "not this time", Random(1), now=clock.now())
        await store.complete([msgspec.structs.replace(again, delay=HOUR)])
        # No keeper has checked so far.
        keeper = SloKeeper(store, LocalWakeups(), clock)
        await keeper.start()
        await clock.sleep(5 * SECOND)
        await keeper.stop()
    assert [kind for kind, _ in await read_events(store)] == [MISSED]


@in_virtual_time
async def test_a_tick_in_a_closed_period_fires_before_it_if_the_job_says_so() -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    first = START - START % MINUTE + 2 * MINUTE
    span = Freeze(start=first - 5 * SECOND, end=first + 90 * SECOND)
    await store.put_calendar("default", "office", CalendarSpec(freezes=(span,)), Author("ada"))
    spec = a_spec(schedule=every(MINUTE, start=first))
    (job,) = await declared(store, [a_job(add_calendar(spec, WhenClosed.BEFORE))])
    async with Node(store):
        await clock.sleep(first + 3 * MINUTE - clock.now())
    ledger = await ledger_of(store, job.id)
    assert [entry.scheduled_at for entry in ledger][:3] == [first, first + MINUTE, first + 2 * MINUTE]
    runs = await store.runs([entry.run_id for entry in ledger[:3] if entry.run_id is not None])
    made = [run.created_at for run in runs if run is not None]
    last = span.start - SECOND
    assert [0 <= at - due < 100_000 for at, due in zip(made, (last, last, first + 2 * MINUTE), strict=True)] == [
        True,
        True,
        True,
    ]


def add_calendar(spec: JobSpec, rule: WhenClosed) -> JobSpec:
    return msgspec.structs.replace(spec, calendars=("office",), when_closed=rule)


@in_virtual_time
async def test_the_last_tick_of_a_schedule_is_judged_and_its_miss_is_closed() -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    await store.attach_reader("test")
    first = START - START % MINUTE + MINUTE
    schedule = msgspec.structs.replace(every(MINUTE), end=first + 2 * MINUTE)
    (job,) = await declared(store, [a_job(a_spec(schedule=schedule, slo=Slo(start_within=10 * SECOND)))])
    keeper = SloKeeper(store, LocalWakeups(), clock)
    await keeper.start()
    async with Node(store):
        await clock.sleep(first - clock.now() + SECOND)
        await run_all(store, 1)
        # The second tick starts in time, the last one does not: no worker claims its run.
        await clock.sleep(MINUTE)
        await run_all(store, 2)
        await clock.sleep(MINUTE)
        assert (await store.jobs([job.id]))[0].state is JobState.FINISHED  # type: ignore[union-attr]
        assert await read_events(store) == []
        await clock.sleep(30 * SECOND)
    await keeper.stop()
    assert [kind for kind, _ in await read_events(store)] == [MISSED, RECOVERED]
    assert await store.slo_states([job.id]) == {}


@in_virtual_time
async def test_an_open_miss_of_a_cancelled_job_is_closed() -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    await store.attach_reader("test")
    slo = Slo(start_within=10 * SECOND, succeed_every=MINUTE)
    (job,) = await declared(store, [a_job(a_spec(schedule=every(HOUR), slo=slo))])
    keeper = SloKeeper(store, LocalWakeups(), clock)
    await keeper.start()
    await clock.sleep(2 * HOUR)
    assert [kind for kind, _ in await read_events(store)] == [MISSED, MISSED]
    await store.set_jobs_state([job.id], JobState.CANCELLED, Author("ada"))
    await clock.sleep(20 * SECOND)
    await keeper.stop()
    assert [kind for kind, _ in await read_events(store)] == [MISSED, MISSED, RECOVERED, RECOVERED]


@in_virtual_time
async def test_no_success_is_expected_after_the_end_of_a_schedule() -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    await store.attach_reader("test")
    first = START - START % MINUTE + MINUTE
    schedule = msgspec.structs.replace(every(MINUTE), end=first)
    (job,) = await declared(store, [a_job(a_spec(schedule=schedule, slo=Slo(succeed_every=10 * MINUTE)))])
    keeper = SloKeeper(store, LocalWakeups(), clock)
    await keeper.start()
    async with Node(store):
        await clock.sleep(30 * MINUTE)
    await keeper.stop()
    assert await read_events(store) == []
    assert await store.slo_states([job.id]) == {}
