"""Admits new runs and jobs: checks what the caller may submit, and counts it against the tenant's quotas."""

from collections.abc import Sequence

import msgspec

from mainspring.core.model.access.access import Principal, Quotas
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.reserved import FAN_IN, FAN_OUT, NOTIFICATION, WEBHOOK, WORKFLOW
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.job import NewJob
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.core.runtime.cached import Cached
from mainspring.core.submit.task_catalog import TaskCatalog
from mainspring.core.worker.builtin.tasks import BuiltinTasks
from mainspring.http.api_store import ApiStore
from mainspring.http.limits import CountedQuota, TokenBuckets
from mainspring.http.live_workers import LiveWorkers
from mainspring.http.plans.fan_out import read_fan_out
from mainspring.http.plans.workflow import name_node, read_plan
from mainspring.http.problems import RequestError

#: A new quota takes effect after this time.
_CACHED: Micros = 2 * SECOND
_NO_QUOTAS = Quotas()


class Allowance(msgspec.Struct, frozen=True):
    """How many of the requested runs or jobs may be created, counted from the first, and why the rest may not."""

    count: int
    reason: RequestError | None = None

    def check(self) -> None:
        """Raise the reason if none may be created."""
        if not self.count and self.reason is not None:
            raise self.reason


class Admission:
    """Checks and counts what callers submit."""

    def __init__(
        self,
        store: ApiStore,
        clock: Clock,
        tasks: BuiltinTasks,
        catalog: TaskCatalog,
        workers: LiveWorkers,
    ) -> None:
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._catalog = catalog
        self._workers = workers
        self._quotas = Cached(self._read_quotas, clock, _CACHED)
        self._submits: dict[str, TokenBuckets] = {}
        self._queued = CountedQuota(self._count_queued, clock)
        self._recurring = CountedQuota(store.count_jobs, clock)

    def check_queue(self, principal: Principal, queue: str) -> None:
        """Raise ``Refused`` if the caller is restricted to other queues."""
        if not principal.reaches([queue]):
            raise RequestError(403, "Forbidden", f"this key does not reach queue {queue!r}")

    async def _check_task(self, tenant: str, task: str, payload: bytes) -> None:
        """Refuse a built-in task that could never run.

        A task that is disabled here may still be offered by a worker.
        """
        if task not in BuiltinTasks.ALL:
            return
        if task in self._tasks.names or not await self._workers.know_task(tenant, task):
            self._tasks.check(task, payload, tenant)

    async def read_quotas(self, tenant: str) -> Quotas:
        return (await self._quotas.get()).get(tenant, _NO_QUOTAS)

    async def _read_quotas(self) -> dict[str, Quotas]:
        return {item.name: item.quotas for item in await self._store.tenants()}

    async def has_tenant(self, name: str) -> bool:
        """Return whether the tenant exists: it was created, has a key, or ever had a run or a job."""
        if name in await self._quotas.get():
            return True
        # It may have been created a moment ago, here or by another process.
        self._quotas.forget()
        return name in await self._quotas.get()

    async def admit_run(self, principal: Principal, run: NewRun) -> None:
        """Admit one run. Raises an error if it cannot run here, or if the key or the quotas do not allow it."""
        parents = () if run.after is None else run.after.parents
        await self.check(principal, run.tenant, run.queue, run.task, run.payload, parents)
        (await self.admit_runs(run.tenant, 1)).check()

    async def admit_job(self, principal: Principal, job: NewJob) -> None:
        """Admit one recurring job.

        Raises an error if it cannot run here, or if the key or the quotas do not allow it.
        """
        await self.check(principal, job.tenant, job.spec.queue, job.spec.task, job.payload)
        (await self.admit_jobs(job.tenant, 1)).check()

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
        self.check_queue(principal, queue)
        if by_store:
            await self._check_task(tenant, task, payload)
        if by_schema:
            await self._catalog.check(task, payload)
        if task == WORKFLOW:
            await self._check_nodes(principal, tenant, payload, by_store)
        elif task == FAN_OUT:
            await self._check_members(principal, tenant, payload, parents, by_store)
        elif task == FAN_IN:
            raise Invalid("task", f"{FAN_IN!r} is reserved for fan-outs", f"a job of the task {FAN_OUT!r}")
        elif task == WEBHOOK:
            # The webhook would be signed as if the event had happened.
            raise Invalid("task", f"{WEBHOOK!r} is reserved for webhooks", "a job of the task 'http'")
        elif task == NOTIFICATION:
            raise Invalid("task", f"{NOTIFICATION!r} is reserved for alerts", "a job of the task 'http'")
        quotas = await self.read_quotas(tenant) if by_store else _NO_QUOTAS
        if quotas.payload_bytes is not None and len(payload) > quotas.payload_bytes:
            raise Invalid("payload", f"is {len(payload)} bytes", f"the quota is {quotas.payload_bytes}")

    async def check_calendars(self, tenant: str, names: Sequence[str]) -> None:
        """Refuse unknown calendars here: in a batch the store would refuse all jobs because of one."""
        known = {calendar.name for calendar in await self._store.calendars(tenant)} if names else set()
        for name in names:
            if name not in known:
                raise Invalid(
                    "calendars", f"{name!r} is not a calendar", f"there are {', '.join(sorted(known)) or 'none'}"
                )

    async def _check_nodes(self, principal: Principal, tenant: str, payload: bytes, by_store: bool) -> None:
        """Refuse a workflow with a node that its author may not submit."""
        for node in read_plan(payload, tenant, await self._catalog.entries())[1]:
            try:
                run = node.run
                await self.check(principal, tenant, run.queue, run.task, run.payload, None, by_store=by_store)
            except Invalid as error:
                raise name_node(node.name, error) from None

    async def _check_members(
        self, principal: Principal, tenant: str, payload: bytes, parents: Sequence[str] | None, by_store: bool
    ) -> None:
        """Refuse a fan-out with a member that its author may not submit."""
        plan = read_fan_out(payload, tenant)
        member = plan.template
        queue = plan.queue(await self._catalog.find(member.task))
        self.check_queue(principal, queue)
        if parents is not None:
            plan.check_each(parents)
        for field, sample in plan.samples():
            try:
                await self.check(principal, tenant, queue, member.task, sample, by_store=by_store)
            except Invalid as error:
                name = "payload.task" if error.field == "task" else field + error.field.removeprefix("payload")
                raise Invalid(name, error.reason, error.hint) from None

    async def admit_runs(self, tenant: str, wanted: int) -> Allowance:
        """Return how many of the wanted runs may be created now, and count them as submitted."""
        quotas = await self.read_quotas(tenant)
        if quotas.queued is None or not wanted:
            return self._admit_submits(tenant, quotas, wanted)
        left = await self._queued.count_left(tenant, quotas.queued, wanted)
        why = RequestError(429, "Quota reached", f"the tenant may have {quotas.queued} queued runs", retry_after=5)
        admitted = self._admit_submits(tenant, quotas, wanted, left, why)
        self._queued.add(tenant, admitted.count)
        return admitted

    async def admit_jobs(self, tenant: str, wanted: int) -> Allowance:
        """Return how many of the wanted recurring jobs may be created now, and count them as submitted."""
        quotas = await self.read_quotas(tenant)
        if quotas.jobs is None or not wanted:
            return self._admit_submits(tenant, quotas, wanted)
        left = await self._recurring.count_left(tenant, quotas.jobs, wanted)
        why = RequestError(429, "Quota reached", f"the tenant may have {quotas.jobs} recurring jobs", retry_after=60)
        admitted = self._admit_submits(tenant, quotas, wanted, left, why)
        self._recurring.add(tenant, admitted.count)
        return admitted

    async def _count_queued(self, tenant: str, at_most: int) -> int:
        return await self._store.count_runs(RunFilter(tenant=tenant, states=frozenset({RunState.QUEUED})), at_most)

    def _admit_submits(
        self, tenant: str, quotas: Quotas, wanted: int, left: int | None = None, why: RequestError | None = None
    ) -> Allowance:
        """Apply the quota of submits per minute to what another quota has left."""
        count = wanted if left is None else min(wanted, left)
        most = quotas.submits_per_minute
        if most is None or not count:
            return Allowance(count, why if count < wanted else None)
        bucket = self._submits.get(tenant)
        if bucket is None or bucket.rate != most / 60:
            bucket = self._submits[tenant] = TokenBuckets(self._clock, most / 60, most)
        taken = bucket.take_up_to(tenant, count) if most else 0
        if taken < count:
            wait = bucket.wait(tenant) if most else 60
            why = RequestError(429, "Quota reached", f"the tenant may submit {most} jobs a minute", retry_after=wait)
        return Allowance(taken, why if taken < wanted else None)
