"""The API on every store, called over ASGI: everything except the socket is real."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest

from mainspring.config.resources import RESOURCES
from mainspring.core.logs.run_logs import RunLogs
from mainspring.core.maintenance.fleet import Fleet
from mainspring.core.maintenance.monitor import Monitor
from mainspring.core.model.access.access import Role
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.access import Author
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.core.submit.jobs import Jobs
from mainspring.core.worker.builtin.tasks import BuiltinTasks
from mainspring.http import context, health_operations
from mainspring.http.api_store import ApiStore
from mainspring.http.app import make_app
from mainspring.http.auth.authenticator import Authenticator, make_key
from mainspring.http.context import Api
from mainspring.http.limits import TokenBuckets
from mainspring.http.metrics import Metrics
from mainspring.http.server import HttpServer
from mainspring.http.streams.hub import Hub
from mainspring.stores.memory import MemoryStore
from tests.support.builders import SHARDS
from tests.support.databases import create_database, drop_database, migrated_template, remove_time_limits, with_database
from tests.support.kept_connections import KeptConnections
from tests.support.kept_sqlite import KeptSqlite
from tests.support.processes import free_port
from tests.support.store_harness import PostgresHarness

#: Run a test on the store in memory only, where the store makes no difference.
memory_only = pytest.mark.parametrize("store_kind", ["memory"], indirect=True)


@pytest.fixture(scope="session", autouse=True)
def _slow_requests_succeed() -> Iterator[None]:
    """Raise the time limits of requests: a busy machine must not turn an answer into a 503."""
    with pytest.MonkeyPatch.context() as patch:
        for resource in RESOURCES:
            for operation in resource.operations:
                if operation.within is not None:
                    patch.setattr(operation, "within", operation.within + 120)
        patch.setattr(context, "_PROBE_SECONDS", 120)
        patch.setattr(health_operations, "_GLANCE_SECONDS", 120)
        yield


class Service:
    """An API on a store, and clients for it."""

    def __init__(
        self,
        *,
        auth: bool,
        scripts: Path | None = None,
        store: ApiStore | None = None,
        run_logs: RunLogs | None = None,
        clock: Clock | None = None,
    ) -> None:
        """The store is one in memory by default. In virtual time pass a ``VirtualClock``."""
        self.clock: Clock = SystemClock() if clock is None else clock
        self.store = MemoryStore(self.clock, SHARDS) if store is None else store
        self.wakeups = LocalWakeups()
        self.jobs = Jobs(self.store, self.wakeups, self.clock, Random(1), shards=SHARDS)
        self.api = Api(
            self.store,
            self.jobs,
            self.wakeups,
            self.clock,
            Authenticator(self.store, self.clock, required=auth),
            TokenBuckets(self.clock, 0, 1),
            Hub(self.store, self.clock, "test"),
            Metrics(Monitor(Fleet(self.store, self.clock, shards=SHARDS))),
            self._health,
            BuiltinTasks(scripts=scripts),
            run_logs=run_logs,
        )
        self.app: Any = make_app(self.api, RESOURCES)

    async def _health(self) -> Mapping[str, object]:
        return {"status": "ok", "roles": ["http"]}

    def client(self, key: str | None = None) -> httpx2.AsyncClient:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        transport = httpx2.ASGITransport(app=self.app)
        return httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)

    async def key(self, role: Role, tenant: str | None, queues: tuple[str, ...] = ()) -> str:
        key, text = make_key(name=f"{role.value} of {tenant}", role=role, tenant=tenant, author="test", queues=queues)
        await self.store.put_key(key, Author("test", tenant))
        return text


@pytest.fixture(scope="session")
def api_database(postgres_dsn: str) -> Iterator[str]:
    """One database with the schema, shared by all tests of this process."""
    name = f"api_{uuid.uuid4().hex}"
    dsn = with_database(postgres_dsn, name)

    async def make() -> None:
        await create_database(postgres_dsn, name, await migrated_template(postgres_dsn, SHARDS))
        await PostgresHarness.prepare(dsn)

    try:
        asyncio.run(make())
        yield dsn
    finally:
        asyncio.run(drop_database(postgres_dsn, name))


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store_kind(request: pytest.FixtureRequest) -> str:
    """Every test that uses a store runs on each of these, unless it chooses one."""
    kind: str = request.param
    if kind == "postgres":
        # Not in the async fixture ``store``: creating the database runs an event loop of its own.
        request.getfixturevalue("api_database")
    return kind


@pytest.fixture(autouse=True)
def _calls_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stalled server makes calls of stores slow; it does not make them fail."""
    remove_time_limits(monkeypatch)


@pytest.fixture
async def store(
    store_kind: str, request: pytest.FixtureRequest, kept_sqlite: KeptSqlite, kept_connections: KeptConnections
) -> AsyncIterator[ApiStore]:
    """An empty store."""
    match store_kind:
        case "memory":
            yield MemoryStore(SystemClock(), SHARDS)
        case "sqlite":
            on_disk = await kept_sqlite.open_store(SystemClock())
            yield on_disk
            kept_sqlite.take_back(on_disk)
        case _:
            harness = PostgresHarness(request.getfixturevalue("api_database"), kept_connections)
            await harness.open()
            yield harness.store
            await harness.close()


@pytest.fixture
async def service(store: ApiStore) -> Service:
    """An API without authentication: every caller is the local admin."""
    return Service(auth=False, store=store)


@pytest.fixture
async def guarded(store: ApiStore) -> Service:
    """An API that requires API keys."""
    return Service(auth=True, store=store)


@pytest.fixture
async def client(service: Service) -> AsyncIterator[httpx2.AsyncClient]:
    async with service.client() as found:
        yield found


@pytest.fixture
async def served(guarded: Service) -> AsyncIterator[tuple[Service, str]]:
    """An API that requires API keys, on a real socket."""
    port = free_port()
    server = HttpServer("127.0.0.1", port, guarded.app, guarded.clock)
    await server.start()
    yield guarded, f"http://127.0.0.1:{port}"
    await server.stop()


def pytest_collection_finish(session: pytest.Session) -> None:
    names = [item.nodeid for item in session.items]
    assert len(set(names)) == len(names), "two tests have the same name: only one of them would run"
