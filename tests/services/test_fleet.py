"""Figures of the fleet and of the store: read once for many, missing when the store is away, and a tenant's own."""

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mainspring.adapters.dispatch.memory import MemoryDispatch
from mainspring.adapters.store.memory import MemoryStore
from mainspring.adapters.wakeups.local import LocalWakeups
from mainspring.bootstrap.engine import Engine
from mainspring.bootstrap.health import make_health
from mainspring.control.fleet import Fleet
from mainspring.control.housekeeper import Housekeeper
from mainspring.control.monitor import Monitor
from mainspring.control.vitals import StoreVitals
from mainspring.domain.errors import StoreUnavailable
from mainspring.domain.hints import Sealer
from mainspring.domain.instant import HOUR, MINUTE, SECOND
from mainspring.domain.run import HeldRun, Outcome, RunState, Settlement
from mainspring.domain.slo import Slo
from mainspring.ports.access import Author
from mainspring.ports.catalog import Pause, SessionView
from mainspring.ports.health import Examination, Vitals
from mainspring.ports.slos import SloSettled
from mainspring.ports.store import Depth, Want
from mainspring.runtime.engines import Engines, GuardedEngine
from mainspring.runtime.metrics.book import Book
from mainspring.runtime.metrics.declared import ALL, Whose
from mainspring.runtime.metrics.figures import Figures
from mainspring.settings import Settings
from tests.support.builders import a_job, a_limit, a_run, a_spec, a_worker
from tests.support.clock import ManualClock

SHARDS = 4
NAMES = 20


class CountingStore(MemoryStore):
    asked = 0
    away = False
    hangs = False
    #: Whoever counts what is queued waits for it; none: nobody has to wait.
    counted: asyncio.Event | None = None
    counts = 0

    async def sessions(self, kind: Literal["worker", "scheduler"]) -> list[SessionView]:
        if self.away:
            raise StoreUnavailable("away")
        if self.hangs:
            await asyncio.Event().wait()
        self.asked += 1
        return await super().sessions(kind)

    async def depths(self, tenant: str | None = None) -> list[Depth]:
        self.counts += 1
        if self.counted is not None:
            await self.counted.wait()
        return await super().depths(tenant)


class HangingHealth:
    async def examine(self) -> Examination:
        raise NotImplementedError

    async def vitals(self) -> list[Vitals]:
        await asyncio.Event().wait()
        raise AssertionError


class Watched:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = CountingStore(self.clock, SHARDS)
        self.figures = Figures(NAMES, tenants=True)
        guarded = GuardedEngine(MemoryDispatch(self.clock, Sealer(b"key")), self.clock)
        self.fleet = Fleet(
            self.store,
            self.clock,
            shards=SHARDS,
            every=10 * SECOND,
            most_names=NAMES,
            engines=lambda: Engines([], {"*": guarded}, ""),
        )
        self.monitor = Monitor(self.fleet)
        self.monitor.add(self.figures.tell)

    async def told(self, tenant: str | None = None) -> str:
        return (await self.monitor.render(tenant)).decode()


@pytest.fixture
def watched() -> Watched:
    return Watched()


async def test_however_often_somebody_asks_the_store_is_asked_once_in_a_while(watched: Watched) -> None:
    await watched.store.open_session(a_worker())
    for _ in range(5):
        assert "mainspring_live_workers 1.0" in await watched.told()
    assert watched.store.asked == 2
    watched.clock.advance(10 * SECOND)
    await watched.told()
    assert watched.store.asked == 4


async def test_while_the_store_is_away_nothing_old_is_told_as_new(watched: Watched) -> None:
    assert f"mainspring_shards {SHARDS}.0" in await watched.told()
    watched.store.away = True
    watched.clock.advance(10 * SECOND)
    told = await watched.told()
    assert "mainspring_store_up 0.0" in told
    assert "mainspring_shards" not in told
    watched.store.away = False
    assert "mainspring_store_up 1.0" in await watched.told()


async def test_who_is_bound_to_a_tenant_sees_no_task_and_no_queue_of_others(watched: Watched) -> None:
    runs = [a_run(task="secret-task", queue="of-a", tenant="a"), a_run(queue="of-b", tenant="b")]
    await watched.store.submit(runs)
    watched.figures.submitted(runs)
    everybody, bound = await watched.told(), await watched.told("b")
    assert 'mainspring_queued_runs{queue="of-a"} 1.0' in everybody
    assert "secret-task" in everybody
    assert 'mainspring_queued_runs{queue="of-b"} 1.0' in bound
    assert "of-a" not in bound
    assert "secret-task" not in bound


async def test_a_store_that_hangs_is_told_as_away_in_one_time_to_wait(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("fleet", "vitals"):
        monkeypatch.setattr(f"mainspring.control.{module}._PATIENCE_SECONDS", 0.4)
    fleet = Fleet(watched.store, watched.clock, shards=SHARDS)
    watched.store.hangs = True
    async with asyncio.timeout(0.75):
        told = await Monitor(fleet, StoreVitals(HangingHealth(), watched.clock, 0)).render()
    assert b"mainspring_store_up 0.0" in told


async def test_a_store_with_too_much_to_count_is_up_and_its_queues_are_told_as_they_were(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.control.fleet._PATIENCE_SECONDS", 0.05)
    await watched.store.submit([a_run(queue="mail")])
    one = 'mainspring_queued_runs{queue="mail"} 1.0'
    assert one in await watched.told()
    watched.store.counted = asyncio.Event()
    await watched.store.submit([a_run(queue="mail")])
    for _ in range(3):
        watched.clock.advance(10 * SECOND)
        told = await watched.told()
        assert "mainspring_store_up 1.0" in told
        assert one in told
    # One count goes on, however many ask.
    assert watched.store.counts == 2
    watched.clock.advance(MINUTE)
    told = await watched.told()
    assert "mainspring_store_up 1.0" in told
    assert "mainspring_queues_counted 0.0" in told
    assert "mainspring_queued_runs{" not in told
    watched.store.counted.set()
    watched.clock.advance(10 * SECOND)
    for _ in range(2):
        told = await watched.told()
        watched.clock.advance(10 * SECOND)
    assert 'mainspring_queued_runs{queue="mail"} 2.0' in told


async def test_nothing_is_read_after_the_end(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.control.fleet._PATIENCE_SECONDS", 0.05)
    watched.store.counted = asyncio.Event()
    await watched.told()
    await watched.monitor.close()
    assert len(asyncio.all_tasks()) == 1


async def test_a_queue_that_is_paused_is_told_as_such(watched: Watched) -> None:
    await watched.store.submit([a_run(queue=queue, tenant="b") for queue in ("mail", "video", "bulk")])
    await watched.store.pause(Pause(tenant=None, queue="mail"), Author("ada"))
    await watched.store.pause(Pause(tenant="b", queue="video"), Author("ada"))
    everybody, bound = await watched.told(), await watched.told("b")
    paused = {queue: f'mainspring_queue_paused{{queue="{queue}"}} 1.0' for queue in ("mail", "video", "bulk")}
    assert [queue for queue, line in paused.items() if line in everybody] == ["mail"]
    assert [queue for queue, line in paused.items() if line in bound] == ["mail", "video"]


@pytest.mark.parametrize("how", ["limit", "key", "pause"])
async def test_to_be_held_back_on_purpose_is_neither_lag_nor_lateness(watched: Watched, how: str) -> None:
    store, clock = watched.store, watched.clock
    worker = await store.open_session(a_worker(ttl=HOUR))
    more = {"limit": {"limits": (a_limit(),)}, "key": {"key": "k"}, "pause": {}}[how]
    await store.submit([a_run(queue="mail", **more) for _ in range(3)])  # type: ignore[arg-type]
    for number in range(3):
        if how == "pause":
            await store.pause(Pause(tenant=None, queue="mail"), Author("ada"))
            clock.advance(11 * SECOND)
            assert 'mainspring_queue_lag_seconds{queue="mail"} 0.0' in await watched.told()
            await store.resume(None, "mail", Author("ada"))
        clock.advance(2 * SECOND)
        held = await store.claim(worker, number, [Want("mail", 1)])
        watched.figures.claimed(held)
        clock.advance(11 * SECOND)
        lag = {"limit": 0, "key": 0, "pause": 13}[how] if number < 2 else 0
        assert f'mainspring_queue_lag_seconds{{queue="mail"}} {lag}.0' in await watched.told()
        await store.settle([_end(run, Outcome.SUCCESS, RunState.SUCCEEDED) for run in held])
    assert 'mainspring_start_lateness_seconds_bucket{le="2.5",queue="mail"} 3.0' in await watched.told()


async def test_names_of_all_kinds_have_a_bound(watched: Watched) -> None:
    numbers = range(NAMES + 50)
    runs = [a_run(task=f"task-{n}", queue=f"queue-{n}", tenant=f"tenant-{n}") for n in numbers]
    await watched.store.submit(runs)
    watched.figures.submitted(runs)
    worker = await watched.store.open_session(a_worker())
    held = await watched.store.claim(worker, 1, [Want(f"queue-{n}", 1) for n in numbers])
    watched.figures.claimed(held)
    watched.figures.settled([(Attempt(run), _end(run, Outcome.SUCCESS, RunState.SUCCEEDED)) for run in held])
    watched.figures.reaped("lost", [(run, _end(run, Outcome.LOST, RunState.QUEUED)) for run in held])
    values = defaultdict[tuple[str, str], set[str]](set)
    for family in text_string_to_metric_families(await watched.told()):
        for sample in family.samples:
            for label, value in sample.labels.items():
                values[family.name, label].add(value)
    assert {name: len(found) for name, found in values.items() if len(found) > NAMES + 1} == {}
    # Those of a worker are the queues that it was told to serve.
    named = [
        (metric.name.removesuffix("_total"), label)
        for metric in ALL
        for label in metric.labels
        if label in ("task", "tenant", "queue") and metric.whose is not Whose.WORKER
    ]
    assert [name for name in named if "other" not in values[name]] == []


class Attempt(NamedTuple):
    held: HeldRun
    came_at: int = 0
    ended_at: int = SECOND


def _end(run: HeldRun, outcome: Outcome, state: RunState) -> Settlement:
    return Settlement(run=run.id, fence=run.fence, outcome=outcome, state=state)


async def test_queues_with_workers_and_the_deepest_are_told_apart(watched: Watched) -> None:
    served = [f"served-{n}" for n in range(5)]
    await watched.store.open_session(msgspec.structs.replace(a_worker(ttl=MINUTE), queues=tuple(served)))
    deep = [f"deep-{n}" for n in range(NAMES - 5)]
    await watched.store.submit([a_run(queue=queue) for queue in (*served, *deep, *deep)])
    await watched.store.submit([a_run(queue="other"), a_run(queue="shallow")])
    watched.clock.advance(30 * SECOND)
    await watched.store.submit([a_run(queue=f"late-{n}") for n in range(8)])
    await watched.store.pause(Pause(tenant=None, queue="shallow"), Author("ada"))
    told = await watched.told()
    for queue in served:
        assert f'mainspring_queue_workers{{queue="{queue}"}} 1.0' in told
    for queue in deep:
        assert f'mainspring_queued_runs{{queue="{queue}"}} 2.0' in told
    assert 'mainspring_queued_runs{queue="other"} 10.0' in told
    assert 'mainspring_queue_lag_seconds{queue="other"} 30.0' in told
    assert 'mainspring_queue_paused{queue="other"} 0.0' in told
    assert 'mainspring_queue_workers{queue="other"} 0.0' in told
    assert 'queue="shallow"' not in told


async def test_workers_of_one_queue_do_not_hide_another_that_has_none(watched: Watched) -> None:
    queues = [f"served-{n:02}" for n in range(NAMES + 1)]
    await watched.store.open_session(msgspec.structs.replace(a_worker(ttl=MINUTE), queues=tuple(queues)))
    await watched.store.submit([a_run(queue=queue) for queue in queues])
    assert 'mainspring_queue_workers{queue="other"} 1.0' in await watched.told()
    await watched.store.submit([a_run(queue="forgotten")])
    watched.clock.advance(10 * SECOND)
    assert 'mainspring_queue_workers{queue="other"} 0.0' in await watched.told()


async def test_who_is_bound_to_a_tenant_sees_no_sink_of_others(watched: Watched) -> None:
    await watched.store.attach_reader("events:webhook:acme-billing")
    assert 'mainspring_events_lag_seconds{sink="webhook:acme-billing"}' in await watched.told()
    assert "acme-billing" not in await watched.told("b")


async def test_what_is_cancelled_before_it_starts_is_counted_by_its_task(watched: Watched) -> None:
    run = a_run(task="mail")
    await watched.store.submit([run])
    await watched.store.cancel([run.id])
    housekeeper = Housekeeper(watched.store, LocalWakeups(), watched.clock, watched.figures)
    for _ in range(2):
        await housekeeper.tick()
    assert 'mainspring_ended_runs_total{state="cancelled",task="mail"} 1.0' in await watched.told()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "mainspring.db")
    database: str = request.getfixturevalue("postgres_database")
    return database


async def test_a_store_tells_what_is_overdue_missed_and_how_large_it_is(store: str) -> None:
    kind = "postgres" if store.startswith("postgresql") else "sqlite"
    settings = Settings(store=store)
    engine = Engine(settings)
    await engine.open()
    try:
        job = a_job(a_spec(slo=Slo(succeed_every=HOUR)))
        await engine.store.put_jobs([job])
        [due] = await engine.store.slos_due(10)
        limited = [a_run(limits=(a_limit(),)) for _ in range(3)]
        keyed = [a_run(key="k") for _ in range(4)]
        await engine.store.submit([*limited, *keyed, a_run(after=[limited[0]]), a_run(delay=HOUR)])
        [vitals] = await make_health(settings).vitals()
        assert (vitals.scheduled, vitals.blocked) == (1, 2 + 3 + 1)
        assert (vitals.missed_objectives, vitals.dead_letters, vitals.staging_lag) == (0, 0, 0)
        now = await engine.store.now()
        missed = SloSettled(
            job=due.job.id,
            rev=due.rev,
            state=type(due.state)(judged=now, watched_since=now, quiet_since=now),
            next_check=now + HOUR,
        )
        assert await engine.store.settle_slos([missed]) == 1
        book_of = StoreVitals(make_health(settings), engine.clock, 0)
        monitor = Monitor(None, book_of)
        told = (await monitor.render()).decode()
    finally:
        await engine.close()
    assert "mainspring_missed_objectives 1.0" in told
    assert "mainspring_scheduled_runs 1.0" in told
    assert "mainspring_blocked_runs 6.0" in told
    assert 'mainspring_store_size_bytes{server="0"}' in told
    assert ('mainspring_store_dead_rows{server="0",table="run"}' in told) == (kind == "postgres")
    assert ("mainspring_store_disk_free_bytes" in told) == (kind == "sqlite")


async def test_a_store_that_is_not_there_is_no_reason_to_tell_nothing(tmp_path: Path) -> None:
    vitals = StoreVitals(make_health(Settings(store=str(tmp_path / "none.db"))), ManualClock(), 0)
    book = Book()
    await vitals.tell(book)
    assert list(book.families()) == []
