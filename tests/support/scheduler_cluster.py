"""Real schedulers on PostgreSQL, and crons whose ticks are counted in the ledger."""

import asyncio
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import msgspec

from mainspring.core.model.base.instant import HOUR
from mainspring.core.model.schedules.catch_up import CatchUp
from mainspring.core.model.schedules.job import JobSpec, NewJob
from mainspring.core.model.schedules.schedule import CronSchedule
from mainspring.stores.postgres import PostgresStore
from tests.support.databases import create_database, drop_database, with_database
from tests.support.load import a_moment, make_jobs
from tests.support.processes import START_SECONDS, Processes
from tests.support.waiting import eventually

CRONS = 50
SECOND = 1_000_000


class RunMetrics(msgspec.Struct, kw_only=True):
    """Measurements of one repetition."""

    #: Seconds until other schedulers owned every shard of the one that ended.
    moved: float
    #: The largest delay of a tick around that time, in seconds.
    latest: float


class Ticks(msgspec.Struct, frozen=True, kw_only=True):
    expected: int
    missing: int
    doubled: int
    skipped: int
    latest: float


class Cluster:
    """Schedulers on one database, and crons that tick every second. Without a worker, runs stay queued."""

    def __init__(self, dsn: str, coordination: str, processes: Processes, connection: asyncpg.Connection) -> None:
        self.connection = connection
        self._dsn = dsn
        self._coordination = coordination
        self._processes = processes
        self.schedulers: dict[str, subprocess.Popen[bytes]] = {}
        self._declared = 0

    def start(self) -> str:
        name = f"scheduler-{uuid.uuid4().hex[:8]}"
        self.schedulers[name] = self._processes.start("scheduler", "--name", name, "--coordination", self._coordination)
        return name

    def logs(self) -> str:
        return self._processes.logs()

    def start_worker(self) -> None:
        self._processes.start("worker", "tests.support.load_tasks:app", "--queue", "load:50")

    async def until_fires(self) -> float:
        """Wait until the ledger has a later tick than now; how many seconds that took."""
        newest = await self._newest_tick()

        async def fires() -> bool:
            return await self._newest_tick() > newest

        return await self.until(fires)

    async def stands_still(self) -> bool:
        """Whether the ledger has no tick of the last four seconds."""
        return await self._newest_tick() < await self._now() - 4 * SECOND

    async def _newest_tick(self) -> int:
        newest: int | None = await self.connection.fetchval("SELECT max(scheduled_at) FROM mainspring.ledger")
        return newest or 0

    async def declare(self, crons: int = CRONS) -> None:
        store = PostgresStore(self._dsn)
        await store.open()
        try:
            jobs = make_jobs(store)
            schedule = CronSchedule(expression="* * * * * *")
            await jobs.put_jobs(
                [
                    NewJob(
                        id=jobs.new_job_id("default", f"cron-{number}"),
                        spec=JobSpec(
                            name=f"cron-{number}", task="nothing", schedule=schedule, catch_up=CatchUp(grace=HOUR)
                        ),
                        payload=b"{}",
                    )
                    for number in range(crons)
                ]
            )
        finally:
            await store.close()
        self._declared = await self._now()

    async def until_balanced(self) -> None:
        """Wait until every scheduler, and no other, owns shards, and no shard is without an owner."""

        async def balanced() -> bool:
            owners = await self.connection.fetch(
                "SELECT s.name, count(*) AS shards FROM mainspring.shard h JOIN mainspring.session s ON s.id = h.owner "
                "WHERE s.live GROUP BY s.name"
            )
            counted = {row["name"]: row["shards"] for row in owners}
            return counted.keys() == self.schedulers.keys() and sum(counted.values()) == 100

        await self.until(balanced)

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> float:
        """Wait for a condition; how many seconds that took."""
        begun = time.monotonic()
        await eventually(condition, self._processes.logs, deadline=START_SECONDS)
        return time.monotonic() - begun

    async def end(self, name: str, fault: str, frozen_for: float = 4.0) -> RunMetrics:
        """End one scheduler, wait until others own its shards, and start another one or let it continue."""
        process = self.schedulers[name]
        member = await self.connection.fetchval(
            "SELECT id FROM mainspring.session WHERE live AND name = $1 ORDER BY id DESC", name
        )
        begun = await self._now()
        process.send_signal({"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "leave": signal.SIGTERM}[fault])

        async def moved() -> bool:
            return not await self.connection.fetchval(
                "SELECT EXISTS (SELECT FROM mainspring.shard h LEFT JOIN mainspring.session s ON s.id = h.owner "
                "WHERE h.owner = $1 OR s.live IS NOT TRUE)",
                member,
            )

        took = await self.until(moved)
        if fault == "stop":
            await asyncio.sleep(max(0.0, frozen_for - took))
            process.send_signal(signal.SIGCONT)
        else:
            await asyncio.to_thread(process.wait)
            del self.schedulers[name]
            self.start()
        await self.until_balanced()
        return RunMetrics(moved=took, latest=(await self.ticks(since=begun - 2 * SECOND)).latest)

    async def work(self, runs: int) -> float:
        """Submit runs and wait until a worker has completed them; how many seconds that took."""
        store = PostgresStore(self._dsn)
        await store.open()
        try:
            jobs = make_jobs(store)
            await jobs.submit_many([a_moment(jobs, 1) for _ in range(runs)])
        finally:
            await store.close()

        async def ended() -> bool:
            done: int = await self.connection.fetchval("SELECT count(*) FROM mainspring.history WHERE state = 5")
            return done >= runs

        return await self.until(ended)

    async def ticks(self, since: int | None = None) -> Ticks:
        """Count the ticks of every second until now in the ledger, as soon as every cron has ticked after that."""
        first = (since or self._declared) // SECOND + 2
        last = max(await self._now() // SECOND, first)

        async def ticked() -> bool:
            return not await self.connection.fetchval(
                "SELECT EXISTS (SELECT FROM mainspring.job j WHERE NOT EXISTS "
                "(SELECT FROM mainspring.ledger l WHERE l.job_id = j.id AND l.scheduled_at > $1))",
                last * SECOND,
            )

        await self.until(ticked)
        rows = await self.connection.fetch(
            "SELECT l.job_id, l.scheduled_at, l.decision, r.id, r.created_at "
            "FROM mainspring.ledger l LEFT JOIN mainspring.run r ON r.job_id = l.job_id "
            "AND r.scheduled_at = l.scheduled_at WHERE l.scheduled_at BETWEEN $1 AND $2",
            first * SECOND,
            last * SECOND,
        )
        jobs = await self.connection.fetchval("SELECT count(*) FROM mainspring.job")
        recorded = {(row["job_id"], row["scheduled_at"]) for row in rows}
        late = [row["created_at"] - row["scheduled_at"] for row in rows if row["id"] is not None]
        expected = jobs * max(0, last - first + 1)
        return Ticks(
            expected=expected,
            missing=expected - len(recorded),
            doubled=len(rows) - len(recorded),
            skipped=sum(row["decision"] != 1 for row in rows),
            latest=max(late, default=0) / SECOND,
        )

    async def _now(self) -> int:
        now: int = await self.connection.fetchval("SELECT mainspring.now_us()")
        return now


@asynccontextmanager
async def cluster(postgres: str, coordination: str, schedulers: int = 3, crons: int = CRONS) -> AsyncIterator[Cluster]:
    """Start schedulers, and wait until each owns shards and the crons tick."""
    name = f"failover_{uuid.uuid4().hex}"
    await create_database(postgres, name)
    dsn = with_database(postgres, name)
    with tempfile.TemporaryDirectory() as folder:
        async with Processes(dsn, Path(folder)) as processes:
            store = PostgresStore(dsn)
            await store.open()
            await store.close()
            connection = await asyncpg.connect(dsn)
            try:
                found = Cluster(dsn, coordination, processes, connection)
                for _ in range(schedulers):
                    found.start()
                await found.until_balanced()
                await found.declare(crons)
                await found.until_fires()
                yield found
            finally:
                await connection.close()
    await drop_database(postgres, name)
