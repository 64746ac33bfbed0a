"""The shared context of the API's handlers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from mainspring.core.logs.run_logs import RunLogs
from mainspring.core.model.access.access import DEFAULT_TENANT, Principal, Quotas, Role
from mainspring.core.model.access.networks import Network, address_of
from mainspring.core.model.alerts.notification_rules import NotificationRules
from mainspring.core.model.base.errors import Conflict, Invalid, StoreDamaged, StoreUnavailable
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import MINUTE, SECOND, Micros
from mainspring.core.model.cluster.diagnosis import Finding
from mainspring.core.model.runs.names import check_tenant
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.obstacles import Obstacles
from mainspring.core.model.runs.replay import again, replay_id
from mainspring.core.model.runs.reserved import FAN_IN, FAN_OUT, NOTIFICATION, WEBHOOK, WORKFLOW
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.forecast import Planned
from mainspring.core.model.schedules.job import Job, JobSpec, NewJob
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.events_out import EventFacts
from mainspring.core.ports.health import System
from mainspring.core.ports.storage.access import Access
from mainspring.core.ports.storage.catalog import Catalog, Reads, Reports, RunFilter, SessionView
from mainspring.core.ports.storage.dead_letters import DeadLetters
from mainspring.core.ports.storage.explaining import Explaining
from mainspring.core.ports.storage.leases import Leases
from mainspring.core.ports.storage.notifications import NotificationStore
from mainspring.core.ports.storage.operations import Operations
from mainspring.core.ports.storage.usage import Budgeting
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.batcher import Batcher
from mainspring.core.runtime.cached import Remembered
from mainspring.core.runtime.log import get_logger
from mainspring.core.scheduler.closed_times import ClosedTimes
from mainspring.core.store import HeartbeatAnswer, Store
from mainspring.core.submit.jobs import Jobs
from mainspring.core.submit.task_catalog import TaskCatalog
from mainspring.core.worker.builtin.tasks import BuiltinTasks
from mainspring.http.acceptance import Acceptance
from mainspring.http.auth.authenticator import Authenticator, SignOuts
from mainspring.http.limits import Buckets, Counted, Room
from mainspring.http.metrics import Metrics
from mainspring.http.plans.fan_out import read_fan_out
from mainspring.http.plans.workflow import inside, read_plan
from mainspring.http.problems import Refused
from mainspring.http.reading_cache import Readings
from mainspring.http.schemas.forecast import ForecastOut
from mainspring.http.schemas.workflows import WorkflowOut
from mainspring.http.streams.hub import Hub
from mainspring.http.streams.sse import Stream
from mainspring.http.streams.tail import LogReader, LogTail
from mainspring.http.streams.waiting import Lines

if TYPE_CHECKING:
    from mainspring.core.runtime.tracing.spans import Tracing

#: How long slowly changing data is cached. A new quota takes effect after this time.
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
#: The largest number of warnings in one answer about many jobs.
MOST_WARNINGS = 20
_MOST_LOGGED = 1_000
_GUESSES_A_SECOND = 5
_GUESSES_AT_ONCE = 50


class ApiStore(
    Store,
    Catalog,
    Explaining,
    Budgeting,
    Operations,
    Access,
    Reports,
    DeadLetters,
    Leases,
    EventFacts,
    NotificationStore,
    Protocol,
):
    """The parts of the store that the API uses."""


class Admitted(msgspec.Struct, frozen=True):
    """How many of the requested runs or jobs may be created, counted from the first, and why the rest may not."""

    count: int
    why_not_more: Refused | None = None

    def insist(self) -> None:
        """Raise the reason if none may be created."""
        if not self.count and self.why_not_more is not None:
            raise self.why_not_more


class Api:
    #: The principal of operations that need no authentication.
    nobody = Principal(name="nobody", role=Role.VIEWER, tenant="")

    def __init__(
        self,
        store: ApiStore,
        jobs: Jobs,
        wakeups: Wakeups,
        clock: Clock,
        auth: Authenticator,
        buckets: Buckets,
        hub: Hub,
        metrics: Metrics,
        health: Callable[[], Awaitable[Mapping[str, object]]],
        tasks: BuiltinTasks,
        proxies: Sequence[Network] = (),
        production: bool = False,
        acceptance: Acceptance | None = None,
        system: System | None = None,
        notifications: NotificationRules | None = None,
        run_logs: RunLogs | None = None,
        tracing: "Tracing | None" = None,
    ) -> None:
        self.store = store
        #: Accepts jobs while the store is unavailable.
        self.acceptance = acceptance
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
        self.metrics = metrics
        #: Records requests as spans; None: tracing is off.
        self.tracing = tracing
        self.health = health
        self._tasks = tasks
        self._proxies = proxies
        #: This is a production system: operations that endanger it need an explicit confirmation.
        self.production = production
        self.system = system
        #: The alert rules, as far as this process knows them.
        self.notifications = notifications or NotificationRules()
        #: The health checks open connections of their own, so their result is cached for all callers.
        self.findings = Remembered(self._examine, clock, _REMEMBERED)
        #: Limits the rate of wrong credentials by address.
        self.strangers = Buckets(clock, _GUESSES_A_SECOND, _GUESSES_AT_ONCE)
        #: This process is about to stop and should receive no more requests.
        self.leaving = False
        #: The OpenAPI document, and the page rendered from it.
        self.openapi = b""
        self.docs = b""
        # Without authentication all callers are one principal, so there are no shares.
        shared = auth.required
        self.bodies = Room("bytes of requests", MOST_BYTES, _BYTES_EACH if shared else None)
        self.streams = Room("streams", MOST_STREAMS, _STREAMS_EACH if shared else None)
        self.polls = Room("waiting claims", MOST_POLLS, _POLLS_EACH if shared else None)
        self.lines = Lines()
        #: Lease renewals of waiting workers are sent to the store in batches.
        self.leases: Batcher[tuple[SessionId, Micros], HeartbeatAnswer] = Batcher(store.renew_leases)
        self._workers = Remembered(lambda: store.sessions("worker"), clock, _REMEMBERED)
        self._known_tasks = Remembered(self._read_tasks, clock, _REMEMBERED)
        #: When each warning about jobs was last logged.
        self._warned: dict[str, Micros] = {}
        self._log = get_logger("mainspring.api")
        self._obstacles = Remembered(self._read_obstacles, clock, _REMEMBERED)
        self._quotas = Remembered(self._read_quotas, clock, _REMEMBERED)
        self._submits: dict[str, Buckets] = {}
        self.workflows: Readings[WorkflowOut] = Readings(clock)
        #: Recent results of forecasts.
        self.forecasts: Readings[ForecastOut] = Readings(clock)
        self.planned: Readings[tuple[list[Planned], bool]] = Readings(clock)
        self._queued = Counted(self._count_queued, clock)
        self._recurring = Counted(store.count_jobs, clock)

    def scope(self, principal: Principal, asked: str | None) -> str | None:
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
        if not await self.is_tenant(tenant):
            hint = f"check its spelling, or create it: mainspring tenants set {tenant}"
            raise Invalid("tenant", f"there is no tenant {tenant!r}", hint)
        return tenant

    async def is_tenant(self, name: str) -> bool:
        """Return whether the tenant exists: it was created, has a key, or ever had a run or a job."""
        try:
            if name in await self._quotas.get():
                return True
            # It may have been created a moment ago, here or by another process.
            self._quotas.forget()
            return name in await self._quotas.get()
        except StoreUnavailable:
            if self.acceptance is None:
                raise
            # A job that is accepted meanwhile is checked when the store is back.
            return True

    async def choose_owner(self, principal: Principal, asked: str | msgspec.UnsetType | None) -> str:
        """Return the tenant that owns a new object. Raises ``Invalid`` like ``choose_written``."""
        return await self.choose_written(principal, asked) or DEFAULT_TENANT

    def leave(self) -> None:
        """Prepare to stop: report it to probes, and end all streams and waiting requests."""
        self.leaving = True
        self.hub.let_go()
        self.tail.let_go()

    async def readiness(self) -> tuple[bool, Mapping[str, object]]:
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

    def stream(self, listener: Principal, source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
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

    async def workers(self, tenant: str | None) -> list[SessionView]:
        """Return the live workers that take runs of a tenant, or of every tenant. The list may be two seconds old."""
        return [worker for worker in await self._workers.get() if tenant is None or worker.serves in ("", tenant)]

    def worker_came(self) -> None:
        """Drop the cached workers, so that a worker that registers here is visible here at once."""
        self._workers.forget()
        self._obstacles.forget()

    async def session(self, session: SessionId) -> SessionView | None:
        """Return a worker's session, even if it has expired.

        The fields that are used here never change. Whether the worker is alive is decided by the store.
        """
        known = next((worker for worker in await self._workers.get() if worker.id == session), None)
        return known or await self.store.session(session)

    def refuse_guessing(self, peer: str, forwarded_for: str | None) -> None:
        """Count a request with missing or wrong credentials against the limit of its address."""
        self.strangers.take(address_of(peer, forwarded_for, self._proxies))

    def reach(self, principal: Principal, queue: str) -> None:
        """Raise ``Refused`` if the caller is restricted to other queues."""
        if not principal.reaches([queue]):
            raise Refused(403, "Forbidden", f"this key does not reach queue {queue!r}")

    async def _check_task(self, tenant: str, task: str, payload: bytes) -> None:
        """Refuse a built-in task that could never run.

        A task that is disabled here may still be offered by a worker.
        """
        if task in self._tasks.names or not await self._is_known(tenant, task):
            self._tasks.check(task, payload, tenant)

    async def _is_known(self, tenant: str, task: str) -> bool:
        """Return whether a live worker that takes runs of the tenant knows the task."""
        known = await self._known_tasks.get()
        return task in known.get("", ()) or task in known.get(tenant, ())

    async def warnings(self, job: NewRun | RunView | NewJob | Job) -> list[str]:
        """Describe what keeps an accepted job from running now, based on the known live workers."""
        obstacles = await self._obstacles.get()
        if isinstance(job, (NewRun, RunView)):
            return list(obstacles.find(job.tenant, job.queue, job.task, job.policy.requires))
        return list(obstacles.find_for_schedule(job.tenant, job.spec))

    async def schedule_warnings(self, tenant: str, specs: Iterable[JobSpec]) -> list[str]:
        """Describe what keeps schedules from running now, each reason once."""
        return (await self._obstacles.get()).describe(tenant, specs)[:MOST_WARNINGS]

    async def warn(self, job: NewRun | NewJob) -> list[str]:
        """Return the warnings about a job that is being accepted, and log each warning at most once a minute."""
        found = await self.warnings(job)
        now = self.clock.monotonic()
        for warning in found:
            if now - self._warned.get(warning, -MINUTE) >= MINUTE:
                if len(self._warned) >= _MOST_LOGGED:
                    self._warned.clear()
                self._warned[warning] = now
                self._log.warning("job accepted that cannot run now", job=job.id, tenant=job.tenant, why=warning)
        return found

    async def insist(self, job: NewRun | NewJob) -> None:
        """Refuse a job that no live worker can run, because the caller asked for ``strict``."""
        found = await self.warnings(job)
        if found:
            raise Conflict(f"{'; '.join(found)} (refused, because strict was asked for)")

    async def quotas(self, tenant: str) -> Quotas:
        return (await self._quotas.get()).get(tenant, _NO_QUOTAS)

    async def _read_tasks(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for worker in await self._workers.get():
            found.setdefault(worker.serves, set()).update(worker.tasks)
        return found

    async def _read_obstacles(self) -> Obstacles:
        return Obstacles(await self._workers.get())

    async def _examine(self) -> list[Finding]:
        return [] if self.system is None else await self.system.examine()

    async def _read_quotas(self) -> dict[str, Quotas]:
        return {item.name: item.quotas for item in await self.store.tenants()}

    async def admit(self, principal: Principal, run: NewRun) -> None:
        """Admit one run. Raises an error if it cannot run here, or if the key or the quotas do not allow it."""
        parents = () if run.after is None else run.after.parents
        await self.check(principal, run.tenant, run.queue, run.task, run.payload, parents)
        (await self.room_for_runs(run.tenant, 1)).insist()

    async def admit_job(self, principal: Principal, job: NewJob) -> None:
        """Admit one recurring job.

        Raises an error if it cannot run here, or if the key or the quotas do not allow it.
        """
        await self.check(principal, job.tenant, job.spec.queue, job.spec.task, job.payload)
        (await self.room_for_jobs(job.tenant, 1)).insist()

    async def check(
        self,
        principal: Principal,
        tenant: str,
        queue: str,
        task: str,
        payload: bytes,
        parents: Sequence[str] | None = (),
        *,
        by_store: bool = True,
        by_schema: bool = True,
    ) -> None:
        """Check something new or changed without counting it against quotas.

        - ``parents``: the runs it depends on; None: the caller has checked them.
        - ``by_store``: False if the store is unavailable and must not be used.
        - ``by_schema``: False if the payload is unchanged, because the task may have changed its arguments since.
        """
        self.reach(principal, queue)
        if by_store:
            await self._check_task(tenant, task, payload)
        if by_schema:
            await self.catalog.check(task, payload)
        if task == WORKFLOW:
            await self._check_nodes(principal, tenant, payload, by_store)
        elif task == FAN_OUT:
            await self._check_members(principal, tenant, payload, parents, by_store)
        elif task == FAN_IN:
            raise Invalid("task", f"{FAN_IN!r} is made by fan-outs", f"a job of the task {FAN_OUT!r}")
        elif task == WEBHOOK:
            # The webhook would be signed as if the event had happened.
            raise Invalid("task", f"{WEBHOOK!r} tells webhooks what happened", "a job of the task 'http'")
        elif task == NOTIFICATION:
            raise Invalid("task", f"{NOTIFICATION!r} tells people of problems", "a job of the task 'http'")
        quotas = await self.quotas(tenant) if by_store else _NO_QUOTAS
        if quotas.payload_bytes is not None and len(payload) > quotas.payload_bytes:
            raise Invalid("payload", f"is {len(payload)} bytes", f"the quota is {quotas.payload_bytes}")

    async def check_calendars(self, tenant: str, names: Sequence[str]) -> None:
        """Refuse unknown calendars here: in a batch the store would refuse all jobs because of one."""
        known = {calendar.name for calendar in await self.store.calendars(tenant)} if names else set()
        for name in names:
            if name not in known:
                raise Invalid(
                    "calendars", f"{name!r} is not a calendar", f"there are {', '.join(sorted(known)) or 'none'}"
                )

    async def _check_nodes(self, principal: Principal, tenant: str, payload: bytes, by_store: bool) -> None:
        """Refuse a workflow with a node that its author may not submit."""
        for node in read_plan(payload, tenant, await self.catalog.entries())[1]:
            try:
                run = node.run
                await self.check(principal, tenant, run.queue, run.task, run.payload, None, by_store=by_store)
            except Invalid as error:
                raise inside(node.name, error) from None

    async def _check_members(
        self, principal: Principal, tenant: str, payload: bytes, parents: Sequence[str] | None, by_store: bool
    ) -> None:
        """Refuse a fan-out with a member that its author may not submit."""
        plan = read_fan_out(payload, tenant)
        member = plan.template
        queue = plan.queue(await self.catalog.find(member.task))
        self.reach(principal, queue)
        if parents is not None:
            plan.check_each(parents)
        for field, sample in plan.samples():
            try:
                await self.check(principal, tenant, queue, member.task, sample, by_store=by_store)
            except Invalid as error:
                name = "payload.task" if error.field == "task" else field + error.field.removeprefix("payload")
                raise Invalid(name, error.reason, error.hint) from None

    async def room_for_runs(self, tenant: str, wanted: int) -> Admitted:
        """Return how many of the wanted runs may be created now, and count them as submitted."""
        quotas = await self.quotas(tenant)
        if quotas.queued is None or not wanted:
            return self._submitted(tenant, quotas, wanted)
        left = await self._queued.left(tenant, quotas.queued, wanted)
        why = Refused(429, "Quota reached", f"the tenant may have {quotas.queued} queued runs", retry_after=5)
        admitted = self._submitted(tenant, quotas, wanted, left, why)
        self._queued.add(tenant, admitted.count)
        return admitted

    async def room_for_jobs(self, tenant: str, wanted: int) -> Admitted:
        """Return how many of the wanted recurring jobs may be created now, and count them as submitted."""
        quotas = await self.quotas(tenant)
        if quotas.jobs is None or not wanted:
            return self._submitted(tenant, quotas, wanted)
        left = await self._recurring.left(tenant, quotas.jobs, wanted)
        why = Refused(429, "Quota reached", f"the tenant may have {quotas.jobs} recurring jobs", retry_after=60)
        admitted = self._submitted(tenant, quotas, wanted, left, why)
        self._recurring.add(tenant, admitted.count)
        return admitted

    async def _count_queued(self, tenant: str, at_most: int) -> int:
        return await self.store.count_runs(RunFilter(tenant=tenant, states=frozenset({RunState.QUEUED})), at_most)

    def _submitted(
        self, tenant: str, quotas: Quotas, wanted: int, left: int | None = None, why: Refused | None = None
    ) -> Admitted:
        """Apply the quota of submits per minute to what another quota has left."""
        count = wanted if left is None else min(wanted, left)
        most = quotas.submits_per_minute
        if most is None or not count:
            return Admitted(count, why if count < wanted else None)
        bucket = self._submits.get(tenant)
        if bucket is None or bucket.rate != most / 60:
            bucket = self._submits[tenant] = Buckets(self.clock, most / 60, most)
        taken = bucket.take_some(tenant, count) if most else 0
        if taken < count:
            wait = bucket.wait(tenant) if most else 60
            why = Refused(429, "Quota reached", f"the tenant may submit {most} jobs a minute", retry_after=wait)
        return Admitted(taken, why if taken < wanted else None)

    def replay_of(self, run: RunView, payload: bytes | None, author: str, *, number: int | None = None) -> NewRun:
        """Build a run that repeats another one and names it.

        With a number, only one run is created for that number.
        """
        run_id = self.jobs.new_run_id_beside(run.id) if number is None else replay_id(run, number)
        return again(run, payload, author, run_id)

    async def scheduler_lag(self) -> Micros:
        """Return how long the oldest run that should be queued has been due; 0 if there is none."""
        now = await self.store.now()
        first = await self.store.upcoming(list(range(self.store.shards)), now, 1)
        return max(now - first[0][1], 0) if first else 0


_NO_QUOTAS = Quotas()
