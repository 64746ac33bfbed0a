"""Real schedulers on PostgreSQL, and crons whose ticks are counted by what the ledger says."""

import asyncio
import random
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

from mainspring.adapters.clock.system import SystemClock
from mainspring.adapters.store.postgres import PostgresStore
from mainspring.adapters.wakeups.local import LocalWakeups
from mainspring.control.jobs import Jobs
from mainspring.domain.job import JobSpec, NewJob
from mainspring.domain.run import NewRun
from mainspring.domain.schedule import CronSchedule
from tests.conftest import create_database, drop_database, with_database
from tests.support.processes import Processes

CRONS = 50
SECOND = 1_000_000
#: Longer than a busy machine takes to start a process or to hand shards over.
PATIENCE = 60.0


class Figures(msgspec.Struct, kw_only=True):
    """What happened in one repetition."""

    #: Seconds until every shard of the victim was another's; of a planned end: until it had ended.
    moved: float
    #: Seconds that the latest tick around that was late by, before its run was made.
    latest: float


class Ticks(msgspec.Struct, frozen=True, kw_only=True):
    expected: int
    missing: int
    doubled: int
    skipped: int
    latest: float


class Cluster:
    """Some schedulers on one database, and crons that tick every second. No worker: runs stay where they are made."""

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

    async def fires(self) -> bool:
        """Whether a tick of the last two seconds has been recorded."""
        newest = await self.connection.fetchval("SELECT max(scheduled_at) FROM mainspring.ledger")
        return bool(newest is not None and newest > await self._now() - 2 * SECOND)

    async def declare(self, crons: int = CRONS) -> None:
        store = PostgresStore(self._dsn)
        await store.open()
        try:
            jobs = Jobs(store, LocalWakeups(), SystemClock(), random.Random(), shards=store.shards)
            schedule = CronSchedule(expression="* * * * * *")
            await jobs.put_jobs(
                [
                    NewJob(
                        id=jobs.new_job_id("default", f"cron-{number}"),
                        spec=JobSpec(name=f"cron-{number}", task="nothing", schedule=schedule),
                        payload=b"{}",
                    )
                    for number in range(crons)
                ]
            )
        finally:
            await store.close()
        self._declared = await self._now()

    async def settled(self) -> None:
        """Every scheduler has its part of the shards, and nobody else has one."""

        async def shared() -> bool:
            owners = await self.connection.fetch(
                "SELECT s.name, count(*) AS shards FROM mainspring.shard h JOIN mainspring.session s ON s.id = h.owner "
                "WHERE s.live GROUP BY s.name"
            )
            counted = {row["name"]: row["shards"] for row in owners}
            return counted.keys() == self.schedulers.keys() and sum(counted.values()) == 100

        await self.until(shared)

    async def until(self, true: Callable[[], Awaitable[bool]], pause: float = 0.02) -> float:
        begun = time.monotonic()
        while not await true():
            assert time.monotonic() - begun < PATIENCE, self._processes.logs()
            await asyncio.sleep(pause)
        return time.monotonic() - begun

    async def end(self, name: str, fault: str, frozen_for: float = 4.0) -> Figures:
        """Let one die or leave, see its shards served by others, and bring the number back."""
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

        took = await self.until(moved, 0.005)
        if fault == "stop":
            await asyncio.sleep(max(0.0, frozen_for - took))
            process.send_signal(signal.SIGCONT)
        else:
            await asyncio.to_thread(process.wait)
            del self.schedulers[name]
            self.start()
        await self.settled()
        await asyncio.sleep(1.5)
        return Figures(moved=took, latest=(await self.ticks(since=begun - 2 * SECOND)).latest)

    async def work(self, runs: int) -> float:
        """Seconds until a worker has done so many runs that are submitted now."""
        store = PostgresStore(self._dsn)
        await store.open()
        try:
            jobs = Jobs(store, LocalWakeups(), SystemClock(), random.Random(), shards=store.shards)
            await jobs.submit_many(
                [
                    NewRun(id=jobs.new_run_id(), task="moment", payload=b'{"milliseconds":1}', queue="load")
                    for _ in range(runs)
                ]
            )
        finally:
            await store.close()

        async def ended() -> bool:
            done: int = await self.connection.fetchval("SELECT count(*) FROM mainspring.history WHERE state = 5")
            return done >= runs

        return await self.until(ended)

    async def ticks(self, since: int | None = None) -> Ticks:
        """What the ledger says about every second since then, but for the newest, which are still on their way."""
        first = (since or self._declared) // SECOND + 2
        last = await self._now() // SECOND - 2
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
    """So many schedulers, each with its part of the shards, and crons that have begun to tick."""
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
                await found.settled()
                await found.declare(crons)
                await asyncio.sleep(2)
                yield found
            finally:
                await connection.close()
    await drop_database(postgres, name)
