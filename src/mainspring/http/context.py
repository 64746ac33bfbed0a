"""The shared context of the API's handlers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from mainspring.core.logs.run_logs import RunLogs
from mainspring.core.model.access.access import DEFAULT_TENANT, Principal, Role
from mainspring.core.model.access.networks import Network, find_client_address
from mainspring.core.model.alerts.notification_rules import NotificationRules
from mainspring.core.model.base.errors import Invalid, StoreDamaged, StoreUnavailable
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.model.cluster.diagnosis import Finding
from mainspring.core.model.runs.names import check_tenant
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.replay import again, replay_id
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.forecast import Planned
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.health import System
from mainspring.core.ports.storage.answers import HeartbeatAnswer
from mainspring.core.ports.storage.catalog import Reads
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.batcher import Batcher
from mainspring.core.runtime.cached import Cached
from mainspring.core.runtime.log import get_logger
from mainspring.core.scheduler.closed_times import ClosedTimes
from mainspring.core.submit.jobs import Jobs
from mainspring.core.submit.task_catalog import TaskCatalog
from mainspring.core.worker.builtin.tasks import BuiltinTasks
from mainspring.http.admission import Admission
from mainspring.http.api_store import ApiStore
from mainspring.http.auth.authenticator import Authenticator, SignOuts
from mainspring.http.limits import CapacityLimit, TokenBuckets
from mainspring.http.live_workers import LiveWorkers
from mainspring.http.metrics import Metrics
from mainspring.http.result_cache import ResultCache
from mainspring.http.schemas.forecast import ForecastOut
from mainspring.http.schemas.workflows import WorkflowOut
from mainspring.http.streams.hub import Hub
from mainspring.http.streams.sse import Stream
from mainspring.http.streams.tail import LogReader, LogTail
from mainspring.http.streams.waiting import Lines
from mainspring.http.submit_buffer import SubmitBuffer

if TYPE_CHECKING:
    from mainspring.core.runtime.tracing.spans import Tracing

#: How long findings are cached.
_REMEMBERED: Micros = 2 * SECOND
#: Bytes of the bodies of all active requests: twice the largest batch. Decoded bodies take several times as much
#: memory.
MOST_BYTES = 128 * 1024 * 1024
#: Streams of server-sent events, and claims that wait for work.
MOST_STREAMS = 1_000
MOST_POLLS = 4_000
#: The share of one principal, if there are principals: the largest batch, and a quarter of the others.
_BYTES_EACH = MOST_BYTES // 2
_STREAMS_EACH = MOST_STREAMS // 4
_POLLS_EACH = MOST_POLLS // 4
#: A probe is answered within this time, even if the store does not answer.
_PROBE_SECONDS = 2
_GUESSES_A_SECOND = 5
_GUESSES_AT_ONCE = 50


class Api:
    #: The principal of operations that need no authentication.
    anonymous = Principal(name="nobody", role=Role.VIEWER, tenant="")

    def __init__(
        self,
        store: ApiStore,
        jobs: Jobs,
        wakeups: Wakeups,
        clock: Clock,
        auth: Authenticator,
        buckets: TokenBuckets,
        hub: Hub,
        metrics: Metrics,
        health: Callable[[], Awaitable[Mapping[str, object]]],
        tasks: BuiltinTasks,
        proxies: Sequence[Network] = (),
        production: bool = False,
        submit_buffer: SubmitBuffer | None = None,
        system: System | None = None,
        notifications: NotificationRules | None = None,
        run_logs: RunLogs | None = None,
        tracing: "Tracing | None" = None,
    ) -> None:
        self.store = store
        #: Accepts jobs while the store is unavailable.
        self.submit_buffer = submit_buffer
        self.jobs = jobs
        self.wakeups = wakeups
        self.clock = clock
        self.auth = auth
        self.sign_outs = SignOuts(store, clock)
        self.buckets = buckets
        self.hub = hub
        self.logs = LogReader(store, run_logs)
        self.tail = LogTail(store, clock, self.logs)
        #: The tasks that workers have declared.
        self.catalog = TaskCatalog(store, clock)
        self.closed_times = ClosedTimes(store, get_logger("mainspring.api"))
        self.workers = LiveWorkers(store, clock)
        self.admission = Admission(store, clock, tasks, self.catalog, self.workers)
        self.metrics = metrics
        #: Records requests as spans; None: tracing is off.
        self.tracing = tracing
        self.health = health
        self._proxies = proxies
        #: This is a production system: operations that endanger it need an explicit confirmation.
        self.production = production
        self.system = system
        #: The alert rules, as far as this process knows them.
        self.notifications = notifications or NotificationRules()
        #: The health checks open connections of their own, so their result is cached for all callers.
        self.findings = Cached(self._examine, clock, _REMEMBERED)
        #: Limits the rate of wrong credentials by address.
        self.wrong_credentials = TokenBuckets(clock, _GUESSES_A_SECOND, _GUESSES_AT_ONCE)
        #: This process is about to stop and should receive no more requests.
        self.leaving = False
        #: The OpenAPI document, and the page rendered from it.
        self.openapi = b""
        self.docs = b""
        # Without authentication all callers are one principal, so there are no shares.
        shared = auth.required
        self.bodies = CapacityLimit("bytes of requests", MOST_BYTES, _BYTES_EACH if shared else None)
        self.streams = CapacityLimit("streams", MOST_STREAMS, _STREAMS_EACH if shared else None)
        self.polls = CapacityLimit("waiting claims", MOST_POLLS, _POLLS_EACH if shared else None)
        self.lines = Lines()
        #: Lease renewals of waiting workers are sent to the store in batches.
        self.leases: Batcher[tuple[SessionId, Micros], HeartbeatAnswer] = Batcher(store.renew_leases)
        self.workflows: ResultCache[WorkflowOut] = ResultCache(clock)
        #: Recent results of forecasts.
        self.forecasts: ResultCache[ForecastOut] = ResultCache(clock)
        self.planned: ResultCache[tuple[list[Planned], bool]] = ResultCache(clock)

    def choose_listed(self, principal: Principal, asked: str | None) -> str | None:
        """Return the tenant whose objects are listed. A caller sees nothing of another tenant."""
        if principal.tenant is None:
            return asked
        # No tenant has this name: names do not begin with a space.
        return principal.tenant if asked in (None, principal.tenant) else " "

    async def choose_written(self, principal: Principal, asked: str | msgspec.UnsetType | None) -> str | None:
        """Return the tenant whose data a write changes; None: the data of every tenant.

        Every write that can name a tenant calls this. Raises ``Invalid`` for a tenant that is not the caller's, or
        that does not exist.
        """
        tenant = principal.choose_tenant(None if isinstance(asked, msgspec.UnsetType) else asked)
        if tenant is None or tenant == principal.tenant:
            return tenant
        check_tenant("tenant", tenant)
        if not await self.has_tenant(tenant):
            hint = f"check its spelling, or create it: mainspring tenants create {tenant}"
            raise Invalid("tenant", f"there is no tenant {tenant!r}", hint)
        return tenant

    async def has_tenant(self, name: str) -> bool:
        """Return whether the tenant exists. While jobs are buffered, the check is left to their later processing."""
        try:
            return await self.admission.has_tenant(name)
        except StoreUnavailable:
            if self.submit_buffer is None:
                raise
            return True

    async def choose_owner(self, principal: Principal, asked: str | msgspec.UnsetType | None) -> str:
        """Return the tenant that owns a new object. Raises ``Invalid`` like ``choose_written``."""
        return await self.choose_written(principal, asked) or DEFAULT_TENANT

    def prepare_stop(self) -> None:
        """Prepare to stop: report it to probes, and end all streams and waiting requests."""
        self.leaving = True
        self.hub.let_go()
        self.tail.let_go()

    async def check_readiness(self) -> tuple[bool, Mapping[str, object]]:
        """Return whether requests should be sent here, and the health of the process with its problems.

        This is public.
        """
        found = dict(await self.health())
        problems = ["this process is about to stop"] if self.leaving else []
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                now = await self.store.now()
        except StoreDamaged as error:
            problems.append(str(error))
        except (StoreUnavailable, TimeoutError):
            # Do not repeat the driver's message: it names hosts and users.
            problems.append("the store does not answer")
        else:
            found["clockOffsetMs"] = round((self.clock.now() - now) / 1_000, 1)
        if problems:
            found.update(status="unavailable", problems=problems)
        return not problems, found

    def open_stream(self, listener: Principal, source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Return a stream of events for one listener. Raises ``Refused`` if there are too many streams."""
        return Stream(source, self.streams, listener)

    def seen_by(self, principal: Principal) -> Reads:
        """Return the store limited to what the caller may read.

        Everything that is shown to users is read through it.
        """
        return self.store.seen_by(principal.tenant)

    def listed_by(self, principal: Principal) -> Reads:
        """Return the store for lists, which may be a few seconds old. Never base a decision on it."""
        return self.store.listed_by(principal.tenant)

    def count_wrong_credentials(self, peer: str, forwarded_for: str | None) -> None:
        """Count a request with missing or wrong credentials against the limit of its address."""
        self.wrong_credentials.take(find_client_address(peer, forwarded_for, self._proxies))

    async def _examine(self) -> list[Finding]:
        return [] if self.system is None else await self.system.examine()

    def build_replay(self, run: RunView, payload: bytes | None, author: str, *, number: int | None = None) -> NewRun:
        """Build a run that repeats another one and names it.

        With a number, only one run is created for that number.
        """
        run_id = self.jobs.new_run_id_beside(run.id) if number is None else replay_id(run, number)
        return again(run, payload, author, run_id)

    async def read_scheduler_lag(self) -> Micros:
        """Return how long the oldest run that should be queued has been due; 0 if there is none."""
        now = await self.store.now()
        first = await self.store.upcoming(list(range(self.store.shards)), now, 1)
        return max(now - first[0][1], 0) if first else 0
