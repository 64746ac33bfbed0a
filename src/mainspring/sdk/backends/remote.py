"""The backend that submits through the HTTP API."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import TypeVar
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Raw

from mainspring.core.model.base.errors import Conflict, Invalid, NotFound, StoreUnavailable
from mainspring.core.model.base.ids import IdMaker, JobId, RunId
from mainspring.core.model.base.instant import Instant, format_duration, isoformat, parse_instant
from mainspring.core.model.cluster.labels import split_labels
from mainspring.core.model.runs.new_run import About, NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import Progress, RunView
from mainspring.core.model.tasks.task_entry import DECLARED
from mainspring.core.model.workflows.dependencies import DependencyRule
from mainspring.core.model.workflows.workflow import Node
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.answers import SubmitResult
from mainspring.features.broadcasts.operations import BroadcastOut
from mainspring.features.jobs.operations.batches import LARGEST_BATCH, BatchItem, BatchOut
from mainspring.http.rendering.jobs import render_policy
from mainspring.http.schemas.common import Page
from mainspring.http.schemas.job_answers import JobOut
from mainspring.http.schemas.jobs import BroadcastIn, JobFields, JobIn
from mainspring.http.schemas.limits import render_unique
from mainspring.http.schemas.runs import RunOut
from mainspring.http.schemas.workflows import NodeIn, WorkflowIn, WorkflowMade
from mainspring.sdk.backends.client import ApiClient
from mainspring.sdk.backends.embedded import Given, explain_no_job

Fields = TypeVar("Fields", JobIn, BroadcastIn)


class Cancelled(msgspec.Struct):
    status: str


#: Options of a call that have other names in the API.
_OPTIONS = {"scheduleTime": "at", "maxRetries": "retries", "orderingKey": "ordering_key", "startWithin": "start_within"}


class RemoteBackend:
    """Implements the backend with the HTTP API. Belongs to one event loop."""

    def __init__(self, client: ApiClient) -> None:
        self.clock = client.clock
        self._client = client
        self._ids = IdMaker(Random())

    async def close(self) -> None:
        await self._client.close()

    def new_run_ids(self, ordering_keys: Sequence[str], tenant: str, placement: str = "") -> list[RunId]:
        """Return idempotency keys for repeated requests. The API assigns the ids of the runs."""
        return [self._ids.run(self.clock.now(), 0) for _ in ordering_keys]

    async def submit(self, runs: Sequence[NewRun], given: Given) -> list[SubmitResult]:
        try:
            return await self._submit(runs, given)
        except Invalid as error:
            raise Invalid(_OPTIONS.get(error.field, error.field), error.reason, error.hint) from None

    async def _submit(self, runs: Sequence[NewRun], given: Given) -> list[SubmitResult]:
        for run in runs:
            run.check()
        references = {run.id: f"#{number}" for number, run in enumerate(runs)}
        if len(runs) == 1:
            job = choose_open_fields(build_job_in(runs[0]), given.get(runs[0].id))
            try:
                made = await self._client.ask("POST", "/v1/jobs", JobOut, body=job, repeatable=True)
            except Conflict as error:
                if not error.existing:
                    raise
                return [_build_conflict(error.existing)]
            return [SubmitResult(RunId(made.job_id), RunState(made.status), True)]
        accepted: list[SubmitResult] = []
        if len(runs) > LARGEST_BATCH and any(run.after is not None for run in runs):
            raise Invalid(
                "depends_on", f"in a batch of {len(runs):,}", f"at most {LARGEST_BATCH:,} that wait for others"
            )
        for start in range(0, len(runs), LARGEST_BATCH):
            part = runs[start : start + LARGEST_BATCH]
            body = {"jobs": [choose_open_fields(build_job_in(run, references), given.get(run.id)) for run in part]}
            answer = await self._client.ask("POST", "/v1/jobs/batch", BatchOut, body=body, repeatable=True)
            accepted += [_read_accepted(item) for item in answer.items]
        return accepted

    async def broadcast(self, run: NewRun, given: Given) -> list[SubmitResult]:
        body = choose_open_fields(build_broadcast_in(run), given.get(run.id))
        answer = await self._client.ask("POST", "/v1/broadcasts", BroadcastOut, body=body, repeatable=True)
        state = RunState.SCHEDULED if run.at is not None or run.delay else RunState.QUEUED
        return [SubmitResult(RunId(made.run_id), state, True) for made in answer.runs]

    async def submit_workflow(self, name: str, nodes: Sequence[Node], tenant: str) -> tuple[RunId, list[SubmitResult]]:
        given = {node.name: build_node_in(node) for node in nodes}
        key = self._ids.run(self.clock.now(), 0)
        body = WorkflowIn(name=name, nodes=given, tenant=tenant, idempotency_key=key)
        made = await self._client.ask("POST", "/v1/workflows", WorkflowMade, body=body, repeatable=True)
        blocked = [RunState.BLOCKED if node.after else RunState.QUEUED for node in nodes]
        accepted = [
            SubmitResult(RunId(made.nodes[node.name]), state, True) for node, state in zip(nodes, blocked, strict=True)
        ]
        return RunId(made.workflow_id), accepted

    async def parents(self, run: RunId) -> list[RunView]:
        page = await self._client.ask("GET", f"/v1/runs/{run}/parents", Page[RunOut])
        return [build_view(parent) for parent in page.items]

    async def runs(self, runs: Sequence[RunId]) -> list[RunView | None]:
        return list(await asyncio.gather(*(self._run(run) for run in runs)))

    async def cancel(self, runs: Collection[RunId]) -> dict[RunId, RunState]:
        found: dict[RunId, RunState] = {}
        for run in runs:
            try:
                answer = await self._client.ask("POST", f"/v1/runs/{run}/cancel", Cancelled, repeatable=True)
            except NotFound:
                continue
            except Conflict:
                # The run has ended already.
                view = await self._run(run)
                if view is not None:
                    found[run] = view.state
            else:
                found[run] = RunState(answer.status)
        return found

    async def pause_job(self, name: str, author: Author, until: Instant | None) -> None:
        await self._change_job(name, author, "pause", _build_pause(author, until))

    async def resume_job(self, name: str, author: Author) -> None:
        await self._change_job(name, author, "resume")

    async def pause_queue(self, queue: str, author: Author, until: Instant | None) -> None:
        body = {"tenant": author.tenant, **_build_pause(author, until)}
        await self._client.ask("POST", f"/v1/queues/{quote(queue, safe='')}/pause", Raw, body=body, repeatable=True)

    async def resume_queue(self, queue: str, author: Author) -> None:
        path = f"/v1/queues/{quote(queue, safe='')}/resume"
        await self._client.ask("POST", path, Raw, body={"tenant": author.tenant}, repeatable=True)

    async def _change_job(self, name: str, author: Author, change: str, body: dict[str, str] | None = None) -> None:
        path = f"/v1/jobs/{await self._job_named(name, author)}/{change}"
        await self._client.ask("POST", path, Raw, body=body, repeatable=True)

    async def _job_named(self, name: str, author: Author) -> str:
        query: dict[str, object] = {"kind": "recurring", "text": name, "tenant": author.tenant, "limit": 500}
        while True:
            page = await self._client.ask("GET", "/v1/jobs", Page[JobOut], query=query)
            for job in page.items:
                if job.name == name:
                    return job.job_id
            if page.next_cursor is None:
                raise explain_no_job(name)
            query["cursor"] = page.next_cursor

    async def _run(self, run: RunId) -> RunView | None:
        try:
            return build_view(await self._client.ask("GET", f"/v1/runs/{run}", RunOut))
        except NotFound:
            return None


def _build_pause(author: Author, until: Instant | None) -> dict[str, str]:
    return {"why": author.why} | ({} if until is None else {"until": isoformat(until)})


def build_job_in(run: NewRun, references: Mapping[RunId, str] | None = None) -> JobIn:
    """Return the request body that creates this run. ``references``: the names of other runs of the same batch.

    Every option is set explicitly, even a default, because the task may declare another default.
    """
    policy, about = run.policy, run.about or About()
    after = run.after
    return JobIn(
        task=run.task,
        payload=msgspec.Raw(run.payload),
        name=about.name or UNSET,
        owner=about.owner or UNSET,
        tags=about.tags,
        queue=run.queue,
        priority=run.priority,
        unique=render_unique(run.unique),
        depends_on=UNSET
        if after is None
        else tuple((references or {}).get(parent, parent) for parent in after.parents),
        when=UNSET if after is None else after.rule.value,
        placement=run.placement or UNSET,
        schedule_time=UNSET if run.at is None else isoformat(run.at),
        delay=format_duration(run.delay) if run.delay else UNSET,
        start_within=UNSET if run.start_within is None else format_duration(run.start_within),
        deadline=UNSET if run.deadline is None else format_duration(run.deadline),
        tenant=run.tenant,
        # The caller's key, or the id that was created for this request.
        idempotency_key=run.id if run.idempotency is None else run.idempotency.key,
        **{
            **render_policy(policy),
            "requires": split_labels(policy.requires),
            "ordering_key": policy.ordering_key or UNSET,
            "retention": policy.retention or None,
        },
    )


def choose_open_fields(job: Fields, given: Collection[str] | None) -> Fields:
    """Remove the options that the task itself declares. ``given``: the options that the caller sets."""
    if given is None:
        return job
    return msgspec.structs.replace(job, **dict.fromkeys(DECLARED - set(given), UNSET))


def build_node_in(node: Node) -> NodeIn:
    """Return the request body that creates this node."""
    job = build_job_in(node.run)
    fields = {field: getattr(job, field) for field in JobFields.__struct_fields__}
    return NodeIn(**fields, after=node.after, when=node.rule.value)


def build_broadcast_in(run: NewRun) -> BroadcastIn:
    """Return the request body that creates this run for every worker."""
    job = build_job_in(run)
    if run.idempotency is not None or run.unique is not None:
        raise Invalid("unique", "does not go with a broadcast", "each worker has a run of its own")
    given = {name: getattr(job, name) for name in (*JobFields.__struct_fields__, "tenant")}
    return BroadcastIn(**given, broadcast_id=run.id)


def build_view(run: RunOut) -> RunView:
    created = parse_instant(run.created_at)
    return RunView(
        id=RunId(run.run_id),
        state=RunState(run.status),
        task=run.task,
        queue=run.queue,
        tenant=run.tenant,
        priority=run.priority,
        attempt=run.attempt_number,
        due=parse_instant(run.scheduled_for),
        created_at=created,
        reason=run.reason,
        job_id=None if run.job_id == run.run_id else JobId(run.job_id),
        scheduled_at=_parse_instant(run.tick),
        queued_at=_parse_instant(run.queued_at),
        started_at=_parse_instant(run.start_time),
        finished_at=_parse_instant(run.end_time),
        result=None if run.result is UNSET else bytes(run.result),
        error=run.error_message,
        payload=None if run.payload is UNSET else bytes(run.payload),
        about=_build_about(run),
        executor=run.executor_id or "",
        replay_of=None if run.replay_of is None else RunId(run.replay_of),
        progress=None
        if run.progress_done is None
        else Progress(done=run.progress_done, total=run.progress_total, note=run.progress_note or ""),
        fingerprint=run.fingerprint or "",
        parents=run.parents,
        rule=None if run.when is None else DependencyRule(run.when),
    )


def _parse_instant(text: str | None) -> Instant | None:
    return None if text is None else parse_instant(text)


def _read_accepted(item: BatchItem) -> SubmitResult:
    if item.job_id is not None and item.status is not None:
        return SubmitResult(RunId(item.job_id), RunState(item.status), True)
    problem = item.problem
    if problem is None:
        raise StoreUnavailable("the API said nothing of a job of the batch")
    if problem.status == 409 and problem.existing_id:
        return _build_conflict(problem.existing_id)
    if problem.status == 409:
        raise Conflict(problem.detail)
    if problem.status == 400:
        raise Invalid(problem.field or "job", problem.detail.removeprefix(f"{problem.field}: "), problem.hint)
    raise StoreUnavailable(problem.detail or problem.title)


def _build_conflict(existing: str) -> SubmitResult:
    return SubmitResult(RunId(existing), RunState.QUEUED, False, conflict=True)


def _build_about(run: RunOut) -> About | None:
    parent = None if run.parent_id is None else RunId(run.parent_id)
    about = About(
        name=run.name,
        owner=run.owner or "",
        tags=run.tags,
        parent=parent,
        workflow=None if run.workflow_id is None else RunId(run.workflow_id),
        workflow_name=run.workflow or "",
        node=run.node or "",
    )
    return None if about == About() else about
