"""The backend protocol of an application, and its implementation on a store."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from mainspring.config.runtime import Runtime
from mainspring.core.model.base.errors import Conflict, NotFound
from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import Instant, check_ahead, explain_past
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import JobState
from mainspring.core.model.workflows.workflow import Node, wired
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.answers import SubmitResult
from mainspring.core.ports.storage.catalog import Pause
from mainspring.core.ports.wakeups import queue_topic
from mainspring.features.broadcasts.service import build_copies
from mainspring.sdk.calls.options import PreparedCall

#: The options that callers set for runs whose tasks are declared elsewhere. The task catalog has the other options.
Given: TypeAlias = Mapping[RunId, Collection[str]]


class Backend(Protocol):
    clock: Clock

    def new_run_ids(self, ordering_keys: Sequence[str], tenant: str, placement: str = "") -> list[RunId]:
        """Return ids for a submit. An API may answer with other ids."""
        ...

    async def submit(self, runs: Sequence[NewRun], given: Given) -> list[SubmitResult]:
        """Submit runs and return when they are committed. Submitting the same ids again creates no second runs."""
        ...

    async def broadcast(self, run: NewRun, given: Given) -> list[SubmitResult]:
        """Submit one run for every live worker that knows the task. The same id again creates no second runs."""
        ...

    async def submit_workflow(self, name: str, nodes: Sequence[Node], tenant: str) -> tuple[RunId, list[SubmitResult]]:
        """Submit all nodes or none. Returns the id of the workflow, and the result of each node."""
        ...

    async def parents(self, run: RunId) -> list[RunView]:
        """Return the parents of a run, in the order in which they were named."""
        ...

    async def runs(self, runs: Sequence[RunId]) -> list[RunView | None]: ...

    async def cancel(self, runs: Collection[RunId]) -> dict[RunId, RunState]:
        """Ask runs to stop. Returns the new states of the runs that exist."""
        ...

    async def pause_job(self, name: str, author: Author, until: Instant | None) -> None:
        """Pause the recurring job with this name in the author's tenant.

        Raises ``NotFound`` if there is none, ``Conflict`` if it has ended, and ``Invalid`` if ``until`` is in the
        past. The other methods below raise the same errors.
        """
        ...

    async def resume_job(self, name: str, author: Author) -> None: ...

    async def pause_queue(self, queue: str, author: Author, until: Instant | None) -> None:
        """Pause a queue for the author's tenant."""
        ...

    async def resume_queue(self, queue: str, author: Author) -> None: ...


def make_run_ids(backend: Backend, calls: Sequence[PreparedCall[Any]], tenant: str) -> list[RunId]:
    """Return ids for calls, in order. Ids of the same tenant and placement are created together."""
    if len(calls) == 1:
        options = calls[0].options
        return backend.new_run_ids([options.policy.ordering_key], options.tenant or tenant, options.placement)
    groups: dict[tuple[str, str], list[int]] = {}
    for number, call in enumerate(calls):
        groups.setdefault((call.options.tenant or tenant, call.options.placement), []).append(number)
    ids: dict[int, RunId] = {}
    for (whose, placement), numbers in groups.items():
        keys = [calls[number].options.policy.ordering_key for number in numbers]
        ids |= zip(numbers, backend.new_run_ids(keys, whose, placement), strict=True)
    return [ids[number] for number in range(len(calls))]


async def check_times(runtime: Runtime, runs: Sequence[NewRun]) -> None:
    """Refuse due times in the past, as the API does.

    A run with an idempotency key that was used before is accepted, because its time may have passed since the first
    submit.
    """
    for run in runs:
        if run.at is None or (past := explain_past(run.at, runtime.clock.now(), "at")) is None:
            continue
        key = run.idempotency
        if key is None or not await runtime.store.used_keys(run.tenant, [key.key]):
            raise past


class StoreBackend:
    """Uses a store directly, through an open runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self.clock = runtime.clock
        self._runtime = runtime

    def new_run_ids(self, ordering_keys: Sequence[str], tenant: str, placement: str = "") -> list[RunId]:
        return self._runtime.jobs.new_run_ids(ordering_keys, tenant=tenant, placement=placement)

    async def submit(self, runs: Sequence[NewRun], given: Given) -> list[SubmitResult]:
        if given:
            runs = await self._runtime.catalog.fill_in(runs, given)
        await check_times(self._runtime, runs)
        if len(runs) == 1:
            # Concurrent single submits share a commit.
            return [await self._runtime.jobs.submit(runs[0])]
        return await self._runtime.jobs.submit_many(runs)

    async def broadcast(self, run: NewRun, given: Given) -> list[SubmitResult]:
        [run] = await self._runtime.catalog.fill_in([run], given)
        await check_times(self._runtime, [run])
        copies = build_copies(run, await self._runtime.store.sessions("worker"))
        return await self._runtime.jobs.submit_many(copies)

    async def submit_workflow(self, name: str, nodes: Sequence[Node], tenant: str) -> tuple[RunId, list[SubmitResult]]:
        jobs = self._runtime.jobs
        await check_times(self._runtime, [node.run for node in nodes])
        workflow, *ids = jobs.new_run_ids(["", *(node.run.policy.ordering_key for node in nodes)], tenant=tenant)
        return workflow, await jobs.submit_whole(wired(workflow, name, nodes, ids))

    async def parents(self, run: RunId) -> list[RunView]:
        return await self._runtime.store.parents(run)

    async def runs(self, runs: Sequence[RunId]) -> list[RunView | None]:
        return await self._runtime.store.runs(runs)

    async def cancel(self, runs: Collection[RunId]) -> dict[RunId, RunState]:
        return await self._runtime.jobs.cancel_runs(runs)

    async def pause_job(self, name: str, author: Author, until: Instant | None) -> None:
        await self._check_end(until)
        job = await self._named(name, author)
        states = await self._runtime.jobs.pause([job], author, resume_at=until)
        _check_state(name, states.get(job), JobState.PAUSED)

    async def resume_job(self, name: str, author: Author) -> None:
        job = await self._named(name, author)
        _check_state(name, (await self._runtime.jobs.resume([job], author)).get(job), JobState.SCHEDULED)

    async def pause_queue(self, queue: str, author: Author, until: Instant | None) -> None:
        await self._check_end(until)
        await self._runtime.store.pause(Pause(tenant=author.tenant, queue=queue, until=until), author)

    async def resume_queue(self, queue: str, author: Author) -> None:
        await self._runtime.store.resume(author.tenant, queue, author)
        self._runtime.wakeups.notify([queue_topic(queue)])

    async def _named(self, name: str, author: Author) -> JobId:
        job = await self._runtime.store.job_named(author.tenant or "", name)
        if job is None:
            raise explain_no_job(name)
        return job

    async def _check_end(self, until: Instant | None) -> None:
        if until is not None:
            check_ahead(until, await self._runtime.store.now(), "until")


def explain_no_job(name: str) -> NotFound:
    return NotFound(f"there is no recurring job {name!r:.60}")


def _check_state(name: str, state: JobState | None, wanted: JobState) -> None:
    if state is None:
        raise explain_no_job(name)
    if state is not wanted:
        raise Conflict(f"the job is {state.value}")
