"""The runtime: the open store, brokers and other clients of one process."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import cached_property
from importlib import metadata
from typing import TYPE_CHECKING

from mainspring.config.servers.blobs import make_run_logs
from mainspring.config.settings import Settings
from mainspring.config.stores import MEMORY, Pooled, explain_missing, list_stores, make_jobs, make_store, make_wakeups
from mainspring.core.logs.run_logs import RunLogs
from mainspring.core.model.base.errors import BrokerUnavailable, StoreUnavailable
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant, Micros
from mainspring.core.model.runs.reserved import FAN_OUT
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.health import PoolUse
from mainspring.core.ports.status_cache import StatusCache
from mainspring.core.runtime.metrics.run_metrics import RunMetrics
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.core.store import Workforce
from mainspring.core.submit.jobs import Jobs
from mainspring.core.submit.task_catalog import TaskCatalog
from mainspring.integrations.redis.address import parse_redis

if TYPE_CHECKING:
    from mainspring.core.runtime.tracing.spans import Tracing


#: How many seconds a cancel waits for the status cache, which notifies workers faster than the store.
_FLAGGED_WITHIN = 0.25


def system_clock() -> Clock:
    """Return this machine's clock, for code without a runtime."""
    return SystemClock()


def system_time() -> Instant:
    """Return this machine's time, for commands without a store."""
    return system_clock().now()


class Runtime:
    """The open store and brokers of one process. Clients submit through them, and services are built on them."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.wakeups = make_wakeups(settings, self.clock)
        self.store = make_store(settings, self.clock, self.wakeups)
        self.random = random.Random()
        section = settings.metrics
        #: The metrics of runs in this process; None: metrics are off.
        self.metrics = RunMetrics(section.max_names, tenants=section.tenants) if section.enabled else None
        #: Records submits, attempts and requests as spans; None: tracing is off.
        self.tracing = make_tracing(settings)
        #: The status cache for other programs; None: off.
        self.status_cache = make_status_cache(settings)
        self._jobs: Jobs | None = None
        self._opening: asyncio.Lock = asyncio.Lock()

    @property
    def jobs(self) -> Jobs:
        if self._jobs is None:
            raise StoreUnavailable("the runtime is not open")
        return self._jobs

    @cached_property
    def run_logs(self) -> RunLogs | None:
        """The log storage outside the store. It is created on use, because workers and clients do not need it."""
        # A store in memory has a new identity after every start.
        return make_run_logs(self.settings, None if self.settings.store == MEMORY else self.store.identity)

    @cached_property
    def catalog(self) -> TaskCatalog:
        """The tasks that workers have declared, for programs that submit them by name."""
        return TaskCatalog(self.store, self.clock)

    async def open(self) -> None:
        """Open the store and the brokers. Calling it again has no effect."""
        if self._jobs is not None:
            return
        async with self._opening:
            if self._jobs is None:
                await self.store.open()
                try:
                    await self.wakeups.open()
                    if self.status_cache is not None:
                        await self.status_cache.open(await self.store.identity())
                except BaseException:
                    await self.store.close()
                    raise
                self._jobs = make_jobs(
                    self.store, self.wakeups, self.clock, self.random, self._cancelled, self.metrics, self.tracing
                )

    async def close(self) -> None:
        jobs, self._jobs = self._jobs, None
        if jobs is not None:
            if self.status_cache is not None:
                await self.status_cache.close()
            if (logs := self.__dict__.pop("run_logs", None)) is not None:
                await logs.blobs.close()
            if (catalog := self.__dict__.pop("catalog", None)) is not None:
                await catalog.close()
            await self.wakeups.close()
            await self.store.close()
            if self.tracing is not None:
                await asyncio.to_thread(self.tracing.flush)

    async def _cancelled(self, jobs: Jobs, runs: Collection[RunId]) -> None:
        if self.status_cache is not None:
            # The cancel is stored already. The status cache only speeds it up, so failures and delays are ignored.
            with suppress(BrokerUnavailable, TimeoutError):
                async with asyncio.timeout(_FLAGGED_WITHIN):
                    await self.status_cache.flag(runs)
        await self._cancel_members(jobs, runs)

    async def _cancel_members(self, jobs: Jobs, runs: Collection[RunId]) -> None:
        """Cancel the members of fan-outs. The clean-up run may otherwise wait for a slot that a member occupies."""
        views = await self.store.runs(list(runs))
        roots = [view.id for view in views if view is not None and view.task == FAN_OUT]
        if roots:
            from mainspring.features.fan_out.task import cancel_members

            await cancel_members(roots, jobs, self.store)

    def replica_staleness(self) -> Micros | None:
        """Return how far the replica was behind at the last list, or None if there is no replica."""
        replica = getattr(self.store, "replica", None)
        return None if replica is None else replica.staleness

    def pools(self) -> list[PoolUse]:
        """Return the usage of connection pools, one entry per server. Stores without connections have none."""
        found = [part.pool() for part in list_stores(self.store) if isinstance(part, Pooled)]
        return [use for use in found if use is not None]

    def workforce(self) -> "Callable[[], AbstractAsyncContextManager[Workforce]] | None":
        """Return a factory for the separate store of the heartbeat thread.

        None for a store in memory, which lives in one loop.
        """
        if self.settings.store == MEMORY:
            return None

        @asynccontextmanager
        async def opened() -> AsyncIterator[Workforce]:
            store = make_store(self.settings, self.clock, connections=1)
            await store.open()
            try:
                yield store
            finally:
                await store.close()

        return opened


def make_tracing(settings: Settings) -> "Tracing | None":
    """Build the recorder of traces, or None if tracing is off."""
    section = settings.tracing
    if not section.enabled:
        return None
    try:
        from mainspring.core.runtime.tracing.spans import get_tracing
    except ModuleNotFoundError as error:
        raise explain_missing("OpenTelemetry", "otel", error, "tracing.enabled") from error
    return get_tracing(section.endpoint, section.ratio, section.service, metadata.version("mainspring"))


def make_status_cache(settings: Settings) -> StatusCache | None:
    """Build the status cache, or None if it is off."""
    if not settings.dispatch.status_cache:
        return None
    try:
        from mainspring.integrations.redis.status_cache import RedisStatusCache
    except ModuleNotFoundError as error:
        raise explain_missing("Redis", "redis", error) from error
    return RedisStatusCache(parse_redis(settings.dispatch.status_cache, "dispatch.status_cache"))
