"""Settings → adapters → services. The only module that knows concrete adapters."""

import asyncio
import os
import random
import re
import socket
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import msgspec

from mainspring.adapters.clock.system import SystemClock
from mainspring.adapters.store.memory import MemoryStore
from mainspring.adapters.wakeups.local import LocalWakeups
from mainspring.api.health import HealthServer, address_of
from mainspring.control.housekeeper import Housekeeper
from mainspring.control.jobs import Jobs
from mainspring.control.reaper import Reaper
from mainspring.control.retention import RetentionKeeper
from mainspring.control.scheduler.scheduler import Scheduler
from mainspring.control.shards import ShardKeeper
from mainspring.domain.errors import Invalid, StoreUnavailable
from mainspring.domain.instant import SECOND
from mainspring.ports.clock import Clock
from mainspring.ports.coordination import Coordinator
from mainspring.ports.store import Retention, Store, Workforce
from mainspring.ports.wakeups import Wakeups
from mainspring.runtime.service import Service
from mainspring.runtime.supervisor import Supervisor
from mainspring.settings import Settings, without_secrets
from mainspring.worker.handler import HandlerSource
from mainspring.worker.pulse import Pulse
from mainspring.worker.settings import ChildSettings, WorkerSettings
from mainspring.worker.worker import Worker

#: How many runs of a queue a worker runs at once where nobody said.
DEFAULT_SLOTS = 100
#: What nobody calls a file: something:// and the schemes of databases.
_ADDRESS = re.compile(r"[^/]*://|(sqlite|file|postgres|postgresql):", re.IGNORECASE)


class EngineStore(Store, Coordinator, Protocol):
    """Every store here also says who owns which shard."""


class Application(HandlerSource, Protocol):
    """What a worker runs."""

    def queues(self) -> Collection[str]:
        """The queues that its tasks are submitted to."""
        ...

    def adopt(self, settings: bytes) -> None:
        """In a child process: these are the settings of the worker, as JSON."""
        ...


class Role(StrEnum):
    SCHEDULER = "scheduler"
    WORKER = "worker"
    HTTP = "http"


class Engine:
    """The open adapters of one process: what submitting needs, and what services are made of."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.wakeups = _make_wakeups(settings, self.clock)
        self.store = _make_store(settings, self.clock, self.wakeups)
        self.random = random.Random()
        self._jobs: Jobs | None = None
        self._opening: asyncio.Lock = asyncio.Lock()

    @property
    def jobs(self) -> Jobs:
        if self._jobs is None:
            raise StoreUnavailable("the engine is not open")
        return self._jobs

    async def open(self) -> None:
        """Idempotent."""
        if self._jobs is not None:
            return
        async with self._opening:
            if self._jobs is None:
                await self.store.open()
                try:
                    await self.wakeups.open()
                except BaseException:
                    await self.store.close()
                    raise
                self._jobs = Jobs(self.store, self.wakeups, self.clock, self.random, shards=self.store.shards)

    async def close(self) -> None:
        jobs, self._jobs = self._jobs, None
        if jobs is not None:
            await self.wakeups.close()
            await self.store.close()

    def workforce(self) -> "Callable[[], AbstractAsyncContextManager[Workforce]] | None":
        """How the heartbeat's thread gets a store of its own; none where the store lives in this very loop."""
        if isinstance(self.store, MemoryStore):
            return None

        @asynccontextmanager
        async def opened() -> AsyncIterator[Workforce]:
            store = _make_store(self.settings, self.clock, connections=1)
            await store.open()
            try:
                yield store
            finally:
                await store.close()

        return opened


class Node:
    """The services of one process, by its roles."""

    def __init__(
        self, settings: Settings, roles: set[Role], application: Application | None = None, path: str | None = None
    ) -> None:
        self.engine = Engine(settings)
        self._settings = settings
        self._roles = roles
        self._application = application
        self._path = path
        self._keeper: ShardKeeper | None = None
        self._worker: Worker | None = None
        self._supervisor = Supervisor()

    async def start(self) -> None:
        await self.engine.open()
        services: list[Service] = []
        if Role.SCHEDULER in self._roles:
            services += self._scheduler_services()
        if Role.WORKER in self._roles and self._application is not None:
            worker = self._worker_service(self._application)
            services += [worker, Pulse(worker, self.engine.wakeups, self.engine.clock)]
        if Role.HTTP in self._roles:
            services.append(HealthServer(self._settings.host, self._settings.port, self.health, self.engine.clock))
        self._supervisor = Supervisor(*services)
        await self._supervisor.start()

    async def stop(self) -> None:
        """Leave in good order: a worker lets its runs finish within the grace period."""
        await self._supervisor.stop()

    def stop_now(self) -> None:
        """Leave at once: what runs is given back."""
        if self._worker is not None:
            self._worker.stop_now()

    async def recycled(self) -> None:
        """Returns when the worker has left because of its number of runs or its memory. What it ran took its time."""
        while self._worker is None or not self._worker.wants_recycling:
            await self.engine.clock.sleep(SECOND)
        await self._worker.left()

    async def health(self) -> Mapping[str, object]:
        """How this process is: what ``/healthz`` says."""
        problems = []
        try:
            async with asyncio.timeout(2):
                now = await self.engine.store.now()
            skew = now - self.engine.clock.now()
        except (StoreUnavailable, TimeoutError) as error:
            problems.append(f"store: {error or 'no answer'}")
            skew = 0
        found: dict[str, object] = {
            "status": "unavailable" if problems else "ok",
            "roles": sorted(role.value for role in self._roles),
            "clock_offset_ms": round(skew / 1_000, 1),
        }
        if self._keeper is not None:
            found["shards"] = len(self._keeper.owned())
        if self._worker is not None:
            found["running"] = self._worker.running
        if problems:
            found["problems"] = problems
        return found

    def banner(self) -> str:
        """What was started, in a line or two."""
        roles = ", ".join(sorted(role.value for role in self._roles))
        lines = [f"mainspring: {roles} on {without_secrets(self._settings.store)}"]
        if self._application is not None and Role.WORKER in self._roles:
            queues = ", ".join(f"{name}:{slots}" for name, slots in self._queues(self._application).items())
            lines.append(f"  {len(self._application.handlers())} tasks, queues {queues}")
        if Role.HTTP in self._roles:
            address = address_of(self._settings.host, self._settings.port)
            lines.append(f"  http://{address}/healthz (no authentication: loopback only)")
        return "\n".join(lines)

    def _scheduler_services(self) -> list[Service]:
        engine = self.engine
        self._keeper = ShardKeeper(
            engine.store,
            engine.store.shards,
            engine.wakeups,
            engine.clock,
            name=self._settings.scheduler.name or _label(),
            ttl=self._settings.scheduler.lease,
        )
        kept = self._settings.retention
        retention = Retention(succeeded=kept.succeeded, unsuccessful=kept.unsuccessful, ledger=kept.ledger)
        return [
            self._keeper,
            Scheduler(engine.store, self._keeper, engine.wakeups, engine.clock),
            Reaper(engine.store, engine.wakeups, engine.clock, engine.random),
            Housekeeper(engine.store, engine.wakeups, engine.clock),
            RetentionKeeper(engine.store, engine.wakeups, engine.clock, engine.random, retention),
        ]

    def _worker_service(self, application: Application) -> Worker:
        section = self._settings.worker
        settings = WorkerSettings(
            name=section.name or _label(),
            queues=self._queues(application),
            grace=section.grace,
            recycle_after_runs=section.recycle_after_runs or None,
            recycle_memory_bytes=section.recycle_memory or None,
            children=ChildSettings(
                children=section.children,
                threads_per_child=section.threads_per_child,
                recycle_after_runs=section.recycle_child_after_runs or None,
                recycle_memory_bytes=section.recycle_child_memory or None,
                adopts=msgspec.json.encode(self.engine.settings),
            ),
        )
        engine = self.engine
        self._worker = Worker(
            engine.store,
            engine.wakeups,
            engine.clock,
            application,
            settings,
            source=self._path,
            open_workforce=engine.workforce(),
            jitter=engine.random,
        )
        return self._worker

    def _queues(self, application: Application) -> dict[str, int]:
        """The queues that were asked for, or every one that the application uses."""
        return dict(self._settings.worker.queues) or dict.fromkeys(sorted(application.queues()), DEFAULT_SLOTS)


async def migrate(settings: Settings) -> None:
    """Bring the store's schema up to date, as every process does when it starts."""
    store = _make_store(settings, SystemClock())
    await store.open()
    await store.close()


def _make_store(
    settings: Settings, clock: Clock, wakeups: Wakeups | None = None, connections: int | None = None
) -> EngineStore:
    if settings.store == "memory:":
        return MemoryStore(clock, settings.shards)
    if settings.store.startswith(("postgresql://", "postgres://")):
        try:
            from mainspring.adapters.store.postgres import PostgresStore
            from mainspring.adapters.wakeups.postgres import PostgresWakeups
        except ModuleNotFoundError as error:
            raise _missing("PostgreSQL", "postgres", error) from error
        return PostgresStore(
            settings.store,
            schema=settings.schema,
            shards=settings.shards,
            connections=connections or settings.connections,
            migrate=connections is None,
            wakeups=wakeups if isinstance(wakeups, PostgresWakeups) else None,
        )
    from mainspring.adapters.store.sqlite import SqliteStore

    return SqliteStore(path_of(settings.store), clock, settings.shards)


def _make_wakeups(settings: Settings, clock: Clock) -> Wakeups:
    if settings.store == "memory:":
        return LocalWakeups()
    if settings.store.startswith(("postgresql://", "postgres://")):
        try:
            from mainspring.adapters.wakeups.postgres import PostgresWakeups
        except ModuleNotFoundError as error:
            raise _missing("PostgreSQL", "postgres", error) from error
        return PostgresWakeups(settings.store, clock, settings.schema)
    from mainspring.adapters.wakeups.sqlite import SqliteWakeups

    return SqliteWakeups(path_of(settings.store), clock)


def path_of(store: str) -> Path:
    """The file that is meant; refuses what is rather a mistyped address."""
    path = store.removeprefix("sqlite:///")
    if path in ("memory", ":memory:"):
        raise Invalid("store", f"{path} is not a store", "memory: for nothing lasting, ./memory for a file")
    if mistyped := _ADDRESS.match(path):
        raise Invalid("store", f"{mistyped[0]} is not a store", "a path, sqlite:///path, postgresql://… or memory:")
    if "\0" in path:
        raise Invalid("store", "a path cannot hold a zero byte")
    try:
        return Path(path or "mainspring.db").expanduser()
    except RuntimeError as error:
        raise Invalid("store", f"{path}: {error}") from error


def _missing(what: str, extra: str, error: ModuleNotFoundError) -> Invalid:
    return Invalid("store", f"{what} needs the package {error.name}", f"pip install 'mainspring[{extra}]'")


def _label() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
