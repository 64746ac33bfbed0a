"""A scheduler process in virtual time, and a store in memory behind a simulated network."""

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence

from mainspring.core.cluster.shards import ShardKeeper
from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.ids import JobId, SessionId
from mainspring.core.model.base.instant import MILLISECOND, Instant, Micros
from mainspring.core.model.schedules.job import Fire, Job, LedgerEntry, NewJob
from mainspring.core.model.schedules.schedule import CronSchedule
from mainspring.core.ports.storage.answers import FireResult, StageResult
from mainspring.core.ports.storage.coordination import Membership
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.scheduler.scheduler import Scheduler
from mainspring.stores.memory import MemoryStore
from mainspring.testing.virtual_time import START, VirtualClock

SHARDS = 8
#: The largest delay of a tick that the agenda knew: the way to the store, and one query that is under way.
PROMPT: Micros = 6 * MILLISECOND


class RemoteStore(MemoryStore):
    """A store in memory behind a network, where a request and an answer take 1 ms each. Counts its calls."""

    def __init__(self, clock: VirtualClock, latency: Micros = MILLISECOND) -> None:
        super().__init__(clock, SHARDS)
        self.clock = clock
        self.latency = latency
        self.away = False
        self.calls: Counter[str] = Counter()

    async def travel(self, call: str) -> None:
        self.calls[call] += 1
        await self.clock.sleep(self.latency)
        if self.away:
            raise StoreUnavailable("the network is down")

    async def stage(self, owner: SessionId, shards: Sequence[int], limit: int) -> StageResult:
        await self.travel("stage")
        staged = await super().stage(owner, shards, limit)
        await self.clock.sleep(self.latency)
        return staged

    async def upcoming(self, shards: Sequence[int], until: Instant, limit: int) -> list[tuple[int, Instant]]:
        await self.travel("upcoming")
        upcoming = await super().upcoming(shards, until, limit)
        await self.clock.sleep(self.latency)
        return upcoming

    async def due_jobs(self, shards: Sequence[int], until: Instant, limit: int) -> list[Job]:
        await self.travel("due_jobs")
        jobs = await super().due_jobs(shards, until, limit)
        await self.clock.sleep(self.latency)
        return jobs

    async def fire(self, owner: SessionId, fires: Sequence[Fire]) -> list[FireResult]:
        await self.travel("fire")
        fired = await super().fire(owner, fires)
        # Some ten microseconds for each fire, as in a database.
        await self.clock.sleep(self.latency + 40 * len(fires))
        return fired

    async def renew(self, member: SessionId, ttl: Micros) -> Membership:
        await self.travel("renew")
        membership = await super().renew(member, ttl)
        await self.clock.sleep(self.latency)
        return membership

    async def take(self, member: SessionId, shards: Collection[int]) -> dict[int, int]:
        await self.travel("take")
        return await super().take(member, shards)


class Node:
    """One scheduler process."""

    def __init__(
        self, store: RemoteStore, wakeups: LocalWakeups | None = None, *, use_wheel: bool = True, skew: Micros = 0
    ) -> None:
        self.clock = VirtualClock(skew=skew)
        self.wakeups = LocalWakeups() if wakeups is None else wakeups
        self.keeper = ShardKeeper(store, store.shards, self.wakeups, self.clock)
        self.scheduler = Scheduler(store, self.keeper, self.wakeups, self.clock, use_wheel=use_wheel)

    async def __aenter__(self) -> "Node":
        self._others = asyncio.all_tasks()
        await self.keeper.start()
        await self.scheduler.start()
        self._tasks = asyncio.all_tasks() - self._others
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._tasks:
            await self.scheduler.stop()
            await self.keeper.stop()

    def kill(self) -> None:
        """End without any cleanup, as by SIGKILL."""
        for task in self._tasks:
            task.cancel()
        self._tasks = set()


async def declared(store: MemoryStore, jobs: Sequence[NewJob]) -> list[Job]:
    return [put.job for put in await store.put_jobs(jobs)]


async def queued_at(store: MemoryStore) -> list[Instant]:
    """The times when delayed runs were queued, one for each run, since the last call."""
    batches = await store.events("test", 1_000_000)
    if batches:
        await store.acknowledge("test", batches[-1].position)
    return [batch.at for batch in batches if batch.kind == "run.queued" for _ in batch.runs]


async def ledger_of(store: MemoryStore, job: JobId) -> list[LedgerEntry]:
    return await store.ledger(job, 0, 2 * START, 1_000_000)


async def lateness_of_ticks(store: MemoryStore, job: JobId) -> list[Micros]:
    entries = [entry for entry in await ledger_of(store, job) if entry.run_id is not None]
    runs = await store.runs([entry.run_id for entry in entries if entry.run_id is not None])
    return [run.created_at - entry.scheduled_at for run, entry in zip(runs, entries, strict=True) if run is not None]


def every_second() -> CronSchedule:
    return CronSchedule(expression="* * * * * *")
