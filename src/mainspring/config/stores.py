"""Builds the store in the settings, and its wake-up notifications."""

import os
import random
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from mainspring.config.sections.addresses import hide_secrets, read_store_servers
from mainspring.config.settings import Settings
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import RunId
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.health import PoolUse
from mainspring.core.ports.storage.clocks import Clocks
from mainspring.core.ports.storage.coordination import EpochCoordinator
from mainspring.core.ports.storage.run_logs import LogShelf
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.runtime.metrics.run_metrics import RunMetrics
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.core.submit.jobs import Jobs
from mainspring.http.api_store import ApiStore

if TYPE_CHECKING:
    from mainspring.core.runtime.tracing.spans import Tracing
    from mainspring.stores.sharded import ShardedStore


MEMORY = "memory:"
POSTGRES = ("postgresql://", "postgres://")


#: Text that is not meant as a file name: something:// and the schemes of databases.
_ADDRESS = re.compile(r"[^/]*://|(sqlite|file|postgres|postgresql):", re.IGNORECASE)


class RuntimeStore(ApiStore, EpochCoordinator, Clocks, LogShelf, Protocol):
    """A store that also assigns shards to schedulers."""


@runtime_checkable
class Pooled(Protocol):
    """A store with a pool of connections."""

    def pool(self) -> PoolUse | None: ...


def make_store(
    settings: Settings, clock: Clock, wakeups: Wakeups | None = None, connections: int | None = None
) -> RuntimeStore:
    if settings.store == MEMORY:
        from mainspring.stores.memory import MemoryStore

        return MemoryStore(clock, settings.shards, wakeups)
    if servers := read_store_servers(settings.store):
        return _make_sharded(settings, clock, servers, wakeups, connections)
    if settings.store.startswith(POSTGRES):
        try:
            from mainspring.stores.postgres import PostgresStore
            from mainspring.stores.postgres.wakeups import PostgresWakeups
        except ModuleNotFoundError as error:
            raise explain_missing("PostgreSQL", "postgres", error) from error
        return PostgresStore(
            settings.store,
            schema=settings.schema,
            shards=settings.shards,
            connections=connections or settings.connections,
            migrate=connections is None,
            wakeups=wakeups if isinstance(wakeups, PostgresWakeups) else None,
            transactions=settings.worker.transactions,
            replica=(settings.replica, settings.replica_lag) if settings.replica else None,
        )
    from mainspring.stores.sqlite import SqliteStore

    return SqliteStore(parse_path(settings.store), clock, settings.shards)


def _make_sharded(
    settings: Settings, clock: Clock, servers: Sequence[str], wakeups: Wakeups | None, connections: int | None
) -> "ShardedStore":
    try:
        from mainspring.stores.postgres import PostgresStore
        from mainspring.stores.sharded import ShardedStore
        from mainspring.stores.sharded.wakeups import ShardedWakeups
    except ModuleNotFoundError as error:
        raise explain_missing("PostgreSQL", "postgres", error) from error

    def make(address: str, number: int) -> PostgresStore:
        return PostgresStore(
            address,
            schema=settings.schema,
            shards=settings.shards,
            connections=connections or settings.connections,
            migrate=connections is None,
            wakeups=wakeups.parts[number] if isinstance(wakeups, ShardedWakeups) else None,
            one_of_several=True,
        )

    return ShardedStore([(address, hide_secrets(address)) for address in servers], clock, make)


@asynccontextmanager
async def open_sharded(settings: Settings) -> AsyncIterator["ShardedStore"]:
    """Yield the opened sharded store, for operations on its servers."""
    servers = read_store_servers(settings.store)
    if not servers:
        raise Invalid("store", "is on one server", "a list of them, as in docs/deploy/sharding.md")
    store = _make_sharded(settings, SystemClock(), servers, None, None)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def read_retention(settings: Settings) -> Retention:
    kept = settings.retention
    return Retention(
        succeeded=kept.succeeded,
        unsuccessful=kept.unsuccessful,
        ledger=kept.ledger,
        short=kept.short,
        long=kept.long,
        audit=kept.audit,
    )


def list_stores(store: RuntimeStore) -> list[RuntimeStore]:
    """Return the store of each server. Without sharding it is the store itself."""
    found = getattr(store, "stores", None)
    return [store] if found is None else [part for _, part in found]


def make_jobs(
    store: RuntimeStore,
    wakeups: Wakeups,
    clock: Clock,
    random: random.Random,
    after_cancel: Callable[[Jobs, Collection[RunId]], Awaitable[None]] | None = None,
    metrics: RunMetrics | None = None,
    tracing: "Tracing | None" = None,
) -> Jobs:
    """Build the submitter of jobs. In a sharded store it chooses the placement group of every id."""
    return Jobs(
        store,
        wakeups,
        clock,
        random,
        shards=store.shards,
        after_cancel=after_cancel,
        placement_groups=getattr(store, "place_count", 0),
        group_by=getattr(store, "find_server", None),
        metrics=metrics,
        tracing=tracing,
    )


def make_wakeups(settings: Settings, clock: Clock) -> Wakeups:
    if settings.store == MEMORY:
        return LocalWakeups()
    if servers := read_store_servers(settings.store):
        try:
            from mainspring.stores.sharded.wakeups import ShardedWakeups
        except ModuleNotFoundError as error:
            raise explain_missing("PostgreSQL", "postgres", error) from error
        return ShardedWakeups(servers, clock, settings.schema)
    if settings.store.startswith(POSTGRES):
        try:
            from mainspring.stores.postgres.wakeups import PostgresWakeups
        except ModuleNotFoundError as error:
            raise explain_missing("PostgreSQL", "postgres", error) from error
        return PostgresWakeups(settings.store, clock, settings.schema)
    from mainspring.stores.sqlite.wakeups import SqliteWakeups

    return SqliteWakeups(parse_path(settings.store), clock)


def parse_path(store: str) -> Path:
    """Return the path of an SQLite file. Raises ``Invalid`` for text that looks like a mistyped address."""
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


def explain_missing(what: str, extra: str, error: ModuleNotFoundError, field: str = "store") -> Invalid:
    return Invalid(field, f"{what} needs the package {error.name}", f"pip install 'mainspring[{extra}]'")


def build_label() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
