"""What the handlers of the API work with."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from mainspring.api.auth import Authenticator
from mainspring.api.hub import Hub
from mainspring.api.limits import Buckets, Room
from mainspring.api.metrics import Metrics
from mainspring.api.problems import Refused
from mainspring.api.proxies import Network, address_of
from mainspring.api.sse import Stream
from mainspring.control.jobs import Jobs
from mainspring.domain.access import Principal, Quotas, Role
from mainspring.domain.errors import Invalid, StoreUnavailable
from mainspring.domain.explain import Facts
from mainspring.domain.ids import JobId, RunId, SessionId, derived_id, shard_of
from mainspring.domain.instant import MINUTE, SECOND, Micros
from mainspring.domain.job import JobState
from mainspring.domain.run import JobRef, NewRun, RunState, RunView
from mainspring.ports.access import Access
from mainspring.ports.catalog import Catalog, JobFilter, Pause, Reads, Reports, RunFilter, SessionView
from mainspring.ports.clock import Clock
from mainspring.ports.operations import Operations
from mainspring.ports.store import Store
from mainspring.ports.wakeups import Wakeups
from mainspring.worker.builtin.tasks import BuiltinTasks

T = TypeVar("T")

#: What changes rarely is asked for this often: a new quota holds after this long.
_REMEMBERED: Micros = 2 * SECOND
#: Bytes of the bodies of all requests that are under way: the largest batch, and half as much besides. What is made of
#: them takes several times as much memory.
MOST_BYTES = 96 * 1024 * 1024
#: Streams of server-sent events, and claims that wait for work.
MOST_STREAMS = 1_000
MOST_POLLS = 1_000
#: A probe is answered within this time, also when the store does not answer.
_PROBE_SECONDS = 2
_RATE_OVER: Micros = 5 * MINUTE
_GUESSES_A_SECOND = 5
_GUESSES_AT_ONCE = 50


class ApiStore(Store, Catalog, Operations, Access, Reports, Protocol):
    """All that the API asks of a store."""


class Admitted(msgspec.Struct, frozen=True):
    """How many of those that were asked for may be made, the first ones; and why not the others."""

    count: int
    why_not_more: Refused | None = None

    def insist(self) -> None:
        """At least one, or none of it is done."""
        if not self.count and self.why_not_more is not None:
            raise self.why_not_more


class Remembered(Generic[T]):
    """Something of the store, as of a moment ago. However many ask at once, the store is asked once.

    What could not be read is not remembered: whoever asked is told, and the next one asks anew.
    """

    def __init__(self, read: Callable[[], Awaitable[T]], clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._value: T | None = None
        self._read_at: Micros | None = None
        self._reading = asyncio.Lock()

    async def get(self) -> T:
        value = self._fresh()
        if value is not None:
            return value
        async with self._reading:
            value = self._fresh()
            if value is None:
                began = self._clock.monotonic()
                value = self._value = await self._read()
                self._read_at = began
            return value

    def forget(self) -> None:
        self._read_at = None

    def _fresh(self) -> T | None:
        if self._read_at is None or self._clock.monotonic() - self._read_at > _REMEMBERED:
            return None
        return self._value


class Api:
    #: Who asks where nobody need say who they are.
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
    ) -> None:
        self.store = store
        self.jobs = jobs
        self.wakeups = wakeups
        self.clock = clock
        self.auth = auth
        self.buckets = buckets
        self.hub = hub
        self.metrics = metrics
        self.health = health
        self._tasks = tasks
        self._proxies = proxies
        #: Who gives wrong credentials is slowed down by address.
        self.strangers = Buckets(clock, _GUESSES_A_SECOND, _GUESSES_AT_ONCE)
        #: This process is about to stop: it should be sent nothing more.
        self.leaving = False
        #: The document of this API, and the page made of it.
        self.openapi = b""
        self.docs = b""
        self.bodies = Room("bytes of requests", MOST_BYTES)
        self.streams = Room("streams", MOST_STREAMS)
        self.polls = Room("waiting claims", MOST_POLLS)
        self._workers = Remembered(lambda: store.sessions("worker"), clock)
        self._known_tasks = Remembered(self._read_tasks, clock)
        self._quotas = Remembered(self._read_quotas, clock)
        self._submits: dict[str, Buckets] = {}

    def scope(self, principal: Principal, asked: str | None) -> str | None:
        """The tenant whose things are listed. Of another's there is nothing to be seen."""
        if principal.tenant is None:
            return asked
        # No tenant has this name: names do not begin with a space.
        return principal.tenant if asked in (None, principal.tenant) else " "

    def leave(self) -> None:
        """The process is about to stop: say so to probes, end what streams and what waits."""
        self.leaving = True
        self.hub.let_go()

    async def readiness(self) -> tuple[bool, Mapping[str, object]]:
        """Whether requests should be sent here; how the process is, and what is wrong. Anybody may see this."""
        found = dict(await self.health())
        problems = ["this process is about to stop"] if self.leaving else []
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                now = await self.store.now()
        except (StoreUnavailable, TimeoutError):
            # Not in the words of the driver: they name hosts and users.
            problems.append("the store does not answer")
        else:
            found["clock_offset_ms"] = round((now - self.clock.now()) / 1_000, 1)
        if problems:
            found.update(status="unavailable", problems=problems)
        return not problems, found

    def stream(self, source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """A stream of events for one listener. Refused when there are too many."""
        return Stream(source, self.streams)

    def seen_by(self, principal: Principal) -> Reads:
        """The store as the caller may look at it: whatever is read for people is read here."""
        return self.store.seen_by(principal.tenant)

    async def workers(self) -> list[SessionView]:
        """Live workers, as of a moment ago."""
        return await self._workers.get()

    async def session(self, session: SessionId) -> SessionView | None:
        """A worker by its id. What is asked of it does not change while it lives; whether it does, the store says."""
        found = await self._worker(session)
        if found is None:
            # It may have registered just now, perhaps elsewhere.
            self._workers.forget()
            found = await self._worker(session)
        return found

    async def _worker(self, session: SessionId) -> SessionView | None:
        return next((worker for worker in await self._workers.get() if worker.id == session), None)

    def refuse_guessing(self, peer: str, forwarded_for: str | None) -> None:
        """Somebody gave wrong credentials, or none."""
        self.strangers.take(address_of(peer, forwarded_for, self._proxies))

    async def check_task(self, task: str, payload: bytes) -> None:
        """Refuse a built-in task that is off here, or could never run. A worker that offers the task knows better."""
        if task not in await self._known_tasks.get():
            self._tasks.check(task, payload)

    async def warnings(self, task: str) -> list[str]:
        """What the caller should know about a job that was accepted."""
        if task in await self._known_tasks.get():
            return []
        return [f"no live worker knows task {task!r}; it waits until one does"]

    async def quotas(self, tenant: str) -> Quotas:
        return (await self._quotas.get()).get(tenant, _NO_QUOTAS)

    async def _read_tasks(self) -> frozenset[str]:
        return frozenset(task for worker in await self.workers() for task in worker.tasks)

    async def _read_quotas(self) -> dict[str, Quotas]:
        return {item.name: item.quotas for item in await self.store.tenants()}

    async def admit(self, principal: Principal, tenant: str, queue: str, payload: bytes) -> None:
        """One run, or refuse it for what the caller's key or the tenant's quotas do not allow."""
        self.check(principal, await self.quotas(tenant), queue, payload)
        (await self.room_for_runs(tenant, 1)).insist()

    async def admit_job(self, principal: Principal, tenant: str, queue: str, payload: bytes) -> None:
        """One recurring job, or refuse it likewise."""
        self.check(principal, await self.quotas(tenant), queue, payload)
        (await self.room_for_jobs(tenant, 1)).insist()

    def check(self, principal: Principal, quotas: Quotas, queue: str, payload: bytes) -> None:
        """What can be said of a job without counting any."""
        if principal.queues and queue not in principal.queues:
            raise Refused(403, "Forbidden", f"this key does not reach queue {queue!r}")
        if quotas.payload_bytes is not None and len(payload) > quotas.payload_bytes:
            raise Invalid("payload", f"is {len(payload)} bytes", f"the quota is {quotas.payload_bytes}")

    async def room_for_runs(self, tenant: str, wanted: int) -> Admitted:
        """How many of so many runs may be made now. These count as submitted."""
        quotas = await self.quotas(tenant)
        if quotas.queued is None or not wanted:
            return self._submitted(tenant, quotas, wanted)
        queued = RunFilter(tenant=tenant, states=frozenset({RunState.QUEUED}))
        left = quotas.queued - await self.store.count_runs(queued, quotas.queued)
        why = Refused(429, "Quota reached", f"the tenant may have {quotas.queued} queued runs", retry_after=5)
        return self._submitted(tenant, quotas, wanted, left, why)

    async def room_for_jobs(self, tenant: str, wanted: int) -> Admitted:
        """The same for recurring jobs."""
        quotas = await self.quotas(tenant)
        if quotas.jobs is None or not wanted:
            return self._submitted(tenant, quotas, wanted)
        left = quotas.jobs - await self._count_jobs(tenant, quotas.jobs)
        why = Refused(429, "Quota reached", f"the tenant may have {quotas.jobs} recurring jobs", retry_after=60)
        return self._submitted(tenant, quotas, wanted, left, why)

    async def _count_jobs(self, tenant: str, at_most: int) -> int:
        wanted = JobFilter(tenant=tenant, states=frozenset({JobState.SCHEDULED, JobState.PAUSED}))
        count, after = 0, None
        while count < at_most:
            page = await self.store.list_jobs(wanted, after, min(at_most - count, 1_000))
            count += len(page.items)
            if page.after is None:
                break
            after = JobId(page.after)
        return count

    def _submitted(
        self, tenant: str, quotas: Quotas, wanted: int, left: int | None = None, why: Refused | None = None
    ) -> Admitted:
        """What is left of another quota, less what was submitted within the last minute."""
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
        """The same once more, as a run that names the old one. With a number it is made only once for it."""
        run_id = (
            self.jobs.new_run_id(run.policy.ordering_key)
            if number is None
            else RunId(derived_id(run.finished_at or run.created_at, shard_of(run.id), run.id, "replay", number))
        )
        return NewRun(
            id=run_id,
            task=run.task,
            payload=b"null" if payload is None else payload,
            queue=run.queue,
            tenant=run.tenant,
            priority=run.priority,
            policy=run.policy,
            replay_of=run.id,
            about=run.about,
            job=None if run.job_id is None else JobRef(id=run.job_id, version=run.job_version or 1),
            author=author,
        )

    async def facts_about(self, run: RunView) -> Facts:
        """What an explanation needs. Only of a run that waits."""
        now = await self.store.now()
        if run.state is RunState.SCHEDULED:
            return Facts(now=now, scheduled_by_somebody=bool(await self.store.sessions("scheduler")))
        if run.state is not RunState.QUEUED:
            return Facts(now=now)
        workers = [worker for worker in await self.workers() if run.queue in worker.queues and not worker.draining]
        minutes = await self.store.minutes(None, now - _RATE_OVER, now)
        ended = sum(m.succeeded + m.failed + m.cancelled for m in minutes if m.queue == run.queue)
        return Facts(
            now=now,
            workers=len(workers),
            workers_knowing_task=sum(run.task in worker.tasks for worker in workers),
            paused=paused(await self.store.pauses(), run.tenant, run.queue),
            ahead=await self.store.ahead_of(run.id),
            rate=ended * SECOND / _RATE_OVER,
        )


def paused(pauses: Sequence[Pause], tenant: str, queue: str) -> str | None:
    """Why runs of this tenant and queue are not claimed; None: they are."""
    for pause in pauses:
        if pause.tenant in (None, tenant) and pause.queue in (None, queue):
            return pause.why
    return None


_NO_QUOTAS = Quotas()
