"""Metrics of the fleet and of the store: cached, absent while the store is down, and limited to a tenant."""

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mainspring.config.health import make_health
from mainspring.config.runtime import Runtime
from mainspring.config.settings import Settings
from mainspring.core.maintenance.fleet import Fleet
from mainspring.core.maintenance.housekeeper import Housekeeper
from mainspring.core.maintenance.monitor import Monitor
from mainspring.core.maintenance.store_metrics import StoreVitals
from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND
from mainspring.core.model.cluster.hints import HintCodec
from mainspring.core.model.runs.completion import Completion
from mainspring.core.model.runs.run import HeldRun, Outcome, RunState
from mainspring.core.model.schedules.slo import Slo
from mainspring.core.ports.health import Examination, Vitals
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import Pause, SessionView
from mainspring.core.ports.storage.reads import QueueBacklog
from mainspring.core.ports.storage.slos import SloResult
from mainspring.core.runtime.brokers import Brokers, GuardedBroker
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.runtime.metrics.declared import ALL
from mainspring.core.runtime.metrics.exposition import Exposition
from mainspring.core.runtime.metrics.metric import Scope
from mainspring.core.runtime.metrics.run_metrics import RunMetrics
from mainspring.core.store import Demand
from mainspring.stores.memory import MemoryStore
from mainspring.testing.virtual_time import get_virtual_loop
from tests.support.builders import a_job, a_limit, a_run, a_spec, a_worker
from tests.support.clock import ManualClock
from tests.support.memory_dispatch import MemoryDispatch
from tests.support.virtual import in_virtual_time

SHARDS = 4
NAMES = 20


class CountingStore(MemoryStore):
    asked = 0
    away = False
    hangs = False
    #: Counting queued runs waits for this event, if it is set.
    counted: asyncio.Event | None = None
    counts = 0

    async def sessions(self, kind: Literal["worker", "scheduler"]) -> list[SessionView]:
        if self.away:
            raise StoreUnavailable("away")
        if self.hangs:
            await asyncio.Event().wait()
        self.asked += 1
        return await super().sessions(kind)

    async def depths(self, tenant: str | None = None) -> list[QueueBacklog]:
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
        self.metrics = RunMetrics(NAMES, tenants=True)
        guarded = GuardedBroker(MemoryDispatch(self.clock, HintCodec(b"key")), self.clock)
        self.fleet = Fleet(
            self.store,
            self.clock,
            shards=SHARDS,
            every=10 * SECOND,
            most_names=NAMES,
            brokers=lambda: Brokers([], {"*": guarded}, ""),
        )
        self.monitor = Monitor(self.fleet)
        self.monitor.add(self.metrics.export)

    async def render(self, tenant: str | None = None) -> str:
        return (await self.monitor.render(tenant)).decode()


@pytest.fixture
def watched() -> Watched:
    return Watched()


async def test_repeated_scrapes_read_the_store_once_per_interval(watched: Watched) -> None:
    await watched.store.open_session(a_worker())
    for _ in range(5):
        assert "mainspring_live_workers 1.0" in await watched.render()
    assert watched.store.asked == 2
    watched.clock.advance(10 * SECOND)
    await watched.render()
    assert watched.store.asked == 4


async def test_an_unavailable_store_exposes_no_stale_metrics(watched: Watched) -> None:
    assert f"mainspring_shards {SHARDS}.0" in await watched.render()
    watched.store.away = True
    watched.clock.advance(10 * SECOND)
    page = await watched.render()
    assert "mainspring_store_up 0.0" in page
    assert "mainspring_shards" not in page
    watched.store.away = False
    assert "mainspring_store_up 1.0" in await watched.render()


async def test_metrics_of_a_tenant_contain_no_task_and_no_queue_of_others(watched: Watched) -> None:
    runs = [a_run(task="secret-task", queue="of-a", tenant="a"), a_run(queue="of-b", tenant="b")]
    await watched.store.submit(runs)
    watched.metrics.submitted(runs)
    all_tenants, one_tenant = await watched.render(), await watched.render("b")
    assert 'mainspring_queued_runs{queue="of-a"} 1.0' in all_tenants
    assert "secret-task" in all_tenants
    assert 'mainspring_queued_runs{queue="of-b"} 1.0' in one_tenant
    assert "of-a" not in one_tenant
    assert "secret-task" not in one_tenant


@in_virtual_time
async def test_a_store_that_hangs_is_reported_as_down_within_one_time_limit() -> None:
    watched = Watched()
    watched.store.hangs = True
    vitals = StoreVitals(HangingHealth(), watched.clock, 0)
    page = await Monitor(Fleet(watched.store, watched.clock, shards=SHARDS), vitals).render()
    assert b"mainspring_store_up 0.0" in page
    assert get_virtual_loop().elapsed == 5 * SECOND


@in_virtual_time
async def test_queue_metrics_are_served_from_cache_for_a_minute_while_counting_takes_too_long(
    watched: Watched,
) -> None:
    await watched.store.submit([a_run(queue="mail")])
    one = 'mainspring_queued_runs{queue="mail"} 1.0'
    assert one in await watched.render()
    watched.store.counted = asyncio.Event()
    await watched.store.submit([a_run(queue="mail")])
    for _ in range(3):
        watched.clock.advance(10 * SECOND)
        page = await watched.render()
        assert "mainspring_store_up 1.0" in page
        assert one in page
    # All scrapes share one count.
    assert watched.store.counts == 2
    watched.clock.advance(MINUTE)
    page = await watched.render()
    assert "mainspring_store_up 1.0" in page
    assert "mainspring_queues_counted 0.0" in page
    assert "mainspring_queued_runs{" not in page
    watched.store.counted.set()
    watched.clock.advance(10 * SECOND)
    for _ in range(2):
        page = await watched.render()
        watched.clock.advance(10 * SECOND)
    assert 'mainspring_queued_runs{queue="mail"} 2.0' in page


@in_virtual_time
async def test_closing_the_monitor_cancels_its_reads(watched: Watched) -> None:
    watched.store.counted = asyncio.Event()
    await watched.render()
    await watched.monitor.close()
    assert len(asyncio.all_tasks()) == 1


async def test_the_paused_metric_respects_pauses_of_a_queue_and_of_a_tenant(watched: Watched) -> None:
    await watched.store.submit([a_run(queue=queue, tenant="b") for queue in ("mail", "video", "bulk")])
    await watched.store.pause(Pause(tenant=None, queue="mail"), Author("ada"))
    await watched.store.pause(Pause(tenant="b", queue="video"), Author("ada"))
    all_tenants, one_tenant = await watched.render(), await watched.render("b")
    paused = {queue: f'mainspring_queue_paused{{queue="{queue}"}} 1.0' for queue in ("mail", "video", "bulk")}
    assert [queue for queue, line in paused.items() if line in all_tenants] == ["mail"]
    assert [queue for queue, line in paused.items() if line in one_tenant] == ["mail", "video"]


@pytest.mark.parametrize("how", ["limit", "key", "pause"])
async def test_runs_held_back_by_a_limit_key_or_pause_count_neither_as_lag_nor_as_late(
    watched: Watched, how: str
) -> None:
    store, clock = watched.store, watched.clock
    worker = await store.open_session(a_worker(ttl=HOUR))
    more = {"limit": {"limits": (a_limit(),)}, "key": {"key": "k"}, "pause": {}}[how]
    await store.submit([a_run(queue="mail", **more) for _ in range(3)])  # type: ignore[arg-type]
    for number in range(3):
        if how == "pause":
            await store.pause(Pause(tenant=None, queue="mail"), Author("ada"))
            clock.advance(11 * SECOND)
            assert 'mainspring_queue_lag_seconds{queue="mail"} 0.0' in await watched.render()
            await store.resume(None, "mail", Author("ada"))
        clock.advance(2 * SECOND)
        held = await store.claim(worker, number, [Demand("mail", 1)])
        watched.metrics.claimed(held)
        clock.advance(11 * SECOND)
        lag = {"limit": 0, "key": 0, "pause": 13}[how] if number < 2 else 0
        assert f'mainspring_queue_lag_seconds{{queue="mail"}} {lag}.0' in await watched.render()
        await store.complete([_end(run, Outcome.SUCCESS, RunState.SUCCEEDED) for run in held])
    assert 'mainspring_start_lateness_seconds_bucket{le="2.5",queue="mail"} 3.0' in await watched.render()


async def test_labels_with_user_defined_names_have_a_bounded_number_of_values(watched: Watched) -> None:
    numbers = range(NAMES + 50)
    runs = [a_run(task=f"task-{n}", queue=f"queue-{n}", tenant=f"tenant-{n}") for n in numbers]
    await watched.store.submit(runs)
    watched.metrics.submitted(runs)
    worker = await watched.store.open_session(a_worker())
    held = await watched.store.claim(worker, 1, [Demand(f"queue-{n}", 1) for n in numbers])
    watched.metrics.claimed(held)
    watched.metrics.completed([(Attempt(run), _end(run, Outcome.SUCCESS, RunState.SUCCEEDED)) for run in held])
    watched.metrics.reaped("lost", [(run, _end(run, Outcome.LOST, RunState.QUEUED)) for run in held])
    values = defaultdict[tuple[str, str], set[str]](set)
    for family in text_string_to_metric_families(await watched.render()):
        for sample in family.samples:
            for label, value in sample.labels.items():
                values[family.name, label].add(value)
    assert {name: len(found) for name, found in values.items() if len(found) > NAMES + 1} == {}
    # A worker has one label value for each queue in its settings.
    named = [
        (metric.name.removesuffix("_total"), label)
        for metric in ALL
        for label in metric.labels
        if label in ("task", "tenant", "queue") and metric.scope is not Scope.WORKER
    ]
    assert [name for name in named if "other" not in values[name]] == []


class Attempt(NamedTuple):
    held: HeldRun
    came_at: int = 0
    ended_at: int = SECOND


def _end(run: HeldRun, outcome: Outcome, state: RunState) -> Completion:
    return Completion(run=run.id, fence=run.fence, outcome=outcome, state=state)


async def test_queues_with_workers_and_the_deepest_queues_keep_their_own_label(watched: Watched) -> None:
    served = [f"served-{n}" for n in range(5)]
    await watched.store.open_session(msgspec.structs.replace(a_worker(ttl=MINUTE), queues=tuple(served)))
    deep = [f"deep-{n}" for n in range(NAMES - 5)]
    await watched.store.submit([a_run(queue=queue) for queue in (*served, *deep, *deep)])
    await watched.store.submit([a_run(queue="other"), a_run(queue="shallow")])
    watched.clock.advance(30 * SECOND)
    await watched.store.submit([a_run(queue=f"late-{n}") for n in range(8)])
    await watched.store.pause(Pause(tenant=None, queue="shallow"), Author("ada"))
    page = await watched.render()
    for queue in served:
        assert f'mainspring_queue_workers{{queue="{queue}"}} 1.0' in page
    for queue in deep:
        assert f'mainspring_queued_runs{{queue="{queue}"}} 2.0' in page
    assert 'mainspring_queued_runs{queue="other"} 10.0' in page
    assert 'mainspring_queue_lag_seconds{queue="other"} 30.0' in page
    assert 'mainspring_queue_paused{queue="other"} 0.0' in page
    assert 'mainspring_queue_workers{queue="other"} 0.0' in page
    assert 'queue="shallow"' not in page


async def test_the_label_other_shows_no_workers_if_one_of_its_queues_has_none(watched: Watched) -> None:
    queues = [f"served-{n:02}" for n in range(NAMES + 1)]
    await watched.store.open_session(msgspec.structs.replace(a_worker(ttl=MINUTE), queues=tuple(queues)))
    await watched.store.submit([a_run(queue=queue) for queue in queues])
    assert 'mainspring_queue_workers{queue="other"} 1.0' in await watched.render()
    await watched.store.submit([a_run(queue="forgotten")])
    watched.clock.advance(10 * SECOND)
    assert 'mainspring_queue_workers{queue="other"} 0.0' in await watched.render()


async def test_metrics_of_a_tenant_contain_no_sink_of_others(watched: Watched) -> None:
    await watched.store.attach_reader("events:webhook:acme-billing")
    assert 'mainspring_events_lag_seconds{sink="webhook:acme-billing"}' in await watched.render()
    assert "acme-billing" not in await watched.render("b")


async def test_a_run_cancelled_before_it_starts_is_counted_by_its_task(watched: Watched) -> None:
    run = a_run(task="mail")
    await watched.store.submit([run])
    await watched.store.cancel([run.id])
    housekeeper = Housekeeper(watched.store, LocalWakeups(), watched.clock, watched.metrics)
    for _ in range(2):
        await housekeeper.tick()
    assert 'mainspring_ended_runs_total{state="cancelled",task="mail"} 1.0' in await watched.render()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "mainspring.db")
    database: str = request.getfixturevalue("postgres_database")
    return database


async def test_store_metrics_contain_waiting_runs_missed_objectives_and_sizes(store: str) -> None:
    kind = "postgres" if store.startswith("postgresql") else "sqlite"
    settings = Settings(store=store)
    runtime = Runtime(settings)
    await runtime.open()
    try:
        job = a_job(a_spec(slo=Slo(succeed_every=HOUR)))
        await runtime.store.put_jobs([job])
        [due] = await runtime.store.slos_due(10)
        limited = [a_run(limits=(a_limit(),)) for _ in range(3)]
        keyed = [a_run(key="k") for _ in range(4)]
        await runtime.store.submit([*limited, *keyed, a_run(after=[limited[0]]), a_run(delay=HOUR)])
        [vitals] = await make_health(settings).vitals()
        assert (vitals.scheduled, vitals.blocked) == (1, 2 + 3 + 1)
        assert (vitals.missed_objectives, vitals.dead_letters, vitals.staging_lag) == (0, 0, 0)
        now = await runtime.store.now()
        missed = SloResult(
            job=due.job.id,
            rev=due.rev,
            state=type(due.state)(judged=now, watched_since=now, quiet_since=now),
            next_check=now + HOUR,
        )
        assert await runtime.store.save_slos([missed]) == 1
        vitals_metrics = StoreVitals(make_health(settings), runtime.clock, 0)
        monitor = Monitor(None, vitals_metrics)
        page = (await monitor.render()).decode()
    finally:
        await runtime.close()
    assert "mainspring_missed_objectives 1.0" in page
    assert "mainspring_scheduled_runs 1.0" in page
    assert "mainspring_blocked_runs 6.0" in page
    assert 'mainspring_store_size_bytes{server="0"}' in page
    assert ('mainspring_store_dead_rows{server="0",table="run"}' in page) == (kind == "postgres")
    assert ("mainspring_store_disk_free_bytes" in page) == (kind == "sqlite")


async def test_a_missing_store_yields_no_store_metrics_and_no_error(tmp_path: Path) -> None:
    vitals = StoreVitals(make_health(Settings(store=str(tmp_path / "none.db"))), ManualClock(), 0)
    exposition = Exposition()
    await vitals.export(exposition)
    assert list(exposition.families()) == []
