"""Budgets on the memory store, in virtual time."""

from random import Random

import msgspec

from mainspring.core.model.base.instant import DAY, SECOND
from mainspring.core.model.limits.budget import Budget, BudgetStatus
from mainspring.core.model.runs.completion import complete_success
from mainspring.core.model.runs.new_run import JobRef
from mainspring.core.model.runs.usage import AttemptCost
from mainspring.core.model.schedules.job import JobState
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import Pause
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.store import Demand
from mainspring.features.usage.service import BudgetKeeper, release_work
from mainspring.stores.memory import MemoryStore
from mainspring.testing.virtual_time import VirtualClock
from tests.support.builders import a_job, a_run, a_spec, a_worker, every
from tests.support.virtual import in_virtual_time

ME = Author("me")


class World:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore(self.clock, 4)
        self.wakeups = LocalWakeups()
        # Two, as in a cluster of two schedulers.
        self.keepers = [BudgetKeeper(self.store, self.wakeups, self.clock, Random(seed)) for seed in (1, 2)]
        self.claims = 0

    async def put(self, **more: object) -> None:
        fields: dict[str, object] = {"tenant": "default", "name": "b", "unit": "tokens", "limit": 10.0, "period": "day"}
        await self.store.put_budget(msgspec.convert({**fields, **more}, Budget), ME)

    async def spend(self, tokens: float, job: JobRef | None = None) -> None:
        await self.store.submit([run := a_run(queue="work", job=job)])
        session = await self.store.open_session(a_worker(ttl=DAY))
        [held] = await self.store.claim(session, 1, [Demand("work", 1)])
        assert held.id == run.id
        spent = AttemptCost(units={"tokens": tokens})
        await self.store.complete([msgspec.structs.replace(complete_success(held, None), spent=spent)])

    async def look(self) -> BudgetStatus:
        for keeper in self.keepers:
            await keeper.tick()
        [status] = await self.store.budgets(None)
        return status

    async def read_events(self) -> list[str]:
        return [batch.kind for batch in await self.store.events("r", 100) if batch.kind.startswith("budget")]


@in_virtual_time
async def test_a_budget_emits_one_warning_and_one_exceeded_event_per_period() -> None:
    world = World()
    await world.store.attach_reader("r")
    await world.put()
    assert (await world.look()).state == "ok"
    await world.spend(8)
    assert (await world.look()).state == "warned"
    await world.spend(5)
    status = await world.look()
    assert (status.state, status.spent, status.held) == ("over", 13, False)
    await world.look()
    assert await world.read_events() == ["budget.warned", "budget.exceeded"]
    await world.clock.sleep(DAY)
    assert (await world.look()).state == "ok"


@in_virtual_time
async def test_an_exceeded_budget_pauses_its_tenant_until_the_period_ends() -> None:
    world = World()
    await world.put(then="pause")
    await world.spend(10)
    assert (await world.look()).held
    [pause] = await world.store.pauses()
    assert (pause.tenant, pause.queue, pause.author) == ("default", None, "budget:b")
    assert pause.why == "over budget 'b': 10 tokens a day"
    await world.clock.sleep(DAY)
    assert not (await world.look()).held
    assert await world.store.pauses() == []


@in_virtual_time
async def test_a_budget_leaves_a_pause_by_another_author_in_place() -> None:
    world = World()
    await world.put(then="pause")
    await world.spend(10)
    await world.store.pause(Pause(tenant="default", queue=None), ME)
    assert (await world.look()).held
    await world.put(then="warn")
    assert not (await world.look()).held
    assert [pause.author for pause in await world.store.pauses()] == ["me"]


@in_virtual_time
async def test_an_exceeded_budget_pauses_its_job_until_it_is_released() -> None:
    world = World()
    [put] = await world.store.put_jobs([a_job(a_spec(name="nightly", schedule=every(DAY)))])
    await world.put(of="job", target="nightly", then="pause")
    await world.spend(3)
    assert (await world.look()).spent == 0
    await world.spend(10, JobRef(id=put.job.id, version=1))
    assert (await world.look()).held

    async def state() -> JobState:
        [job] = await world.store.jobs([put.job.id])
        assert job is not None
        return job.state

    assert await state() is JobState.PAUSED
    # A keeper that died before it paused the job is replaced by one that pauses it.
    await world.store.set_jobs_state([put.job.id], JobState.SCHEDULED)
    status = await world.look()
    assert await state() is JobState.PAUSED
    await release_work(world.store, world.wakeups, status)
    assert await state() is JobState.SCHEDULED


@in_virtual_time
async def test_an_exceeded_budget_lowers_the_priority_of_queued_runs() -> None:
    world = World()
    await world.put(then="lower")
    await world.spend(10)
    await world.store.submit([urgent := a_run(priority=1)])
    await world.look()
    [view] = await world.store.runs([urgent.id])
    assert view is not None
    assert view.priority == 10
    await world.clock.sleep(DAY + SECOND)
    await world.look()
    await world.store.submit([tomorrow := a_run(priority=1)])
    await world.look()
    [view] = await world.store.runs([tomorrow.id])
    assert view is not None
    assert view.priority == 1
