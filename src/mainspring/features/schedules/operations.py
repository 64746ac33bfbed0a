"""HTTP operations for schedules that are declared in code or in a file."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.errors import Conflict, Invalid
from mainspring.core.model.base.ids import JobId
from mainspring.core.model.runs.names import check_payload
from mainspring.core.model.schedules.job import Job, JobState, NewJob
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.answers import PutOutcome
from mainspring.core.ports.storage.catalog import JobFilter, Reads
from mainspring.features.schedules.reconcile import Action, DeclaredSchedule, Step, reconcile
from mainspring.http.context import Api
from mainspring.http.jobs.reading import apply_defaults, build_spec, read_payload
from mainspring.http.live_workers import MOST_WARNINGS
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.problems import Problem, build_problem, decode, restore_names
from mainspring.http.rendering.jobs import read_fields
from mainspring.http.schemas.common import Name, Request, Wire
from mainspring.http.schemas.differences import Change, list_differences
from mainspring.http.schemas.jobs import JobFields, is_recurring

schedules = Resource(
    "Schedules as code",
    "Compare the declared schedules of an application or a file with the stored ones, and apply the difference.",
)

_PAGE = 1_000
_MAX_SCHEDULES = 10_000


class ReconcileIn(Request):
    """All schedules of one source. Stored schedules of the source that are missing here are to be removed."""

    source: Annotated[
        Name,
        Meta(description="The source that declares the schedules, such as `app:billing` or `file:schedules.yaml`."),
    ]
    schedules: Annotated[
        list[msgspec.Raw],
        Meta(max_length=_MAX_SCHEDULES, extra_json_schema={"items": {"$ref": "#/components/schemas/JobIn"}}),
    ]
    tenant: Name | UnsetType = UNSET
    dry_run: bool = False
    """Only return the steps, without applying them."""
    remove: bool = False
    """Cancel schedules that are no longer declared. By default they stay as they are."""
    take_over: bool = False
    """Change schedules that another source declares. By default they stay as they are."""
    strict: bool = False
    """Refuse with 409 if no live worker can run one of the schedules."""


class StepOut(Wire):
    """One step of the reconciliation."""

    action: Literal["add", "change", "take over", "remove"]
    name: str
    task: str
    done: bool
    job_id: str | None = None
    """Present once the job exists."""
    changes: dict[str, Change] = {}
    """For each field: the current and the declared value."""


class ReconcileOut(Wire):
    source: str
    tenant: str
    steps: list[StepOut]
    unchanged: list[str]
    warnings: list[str] = []
    """What keeps schedules from running now, such as a queue that no live worker serves."""


@schedules.operation(
    "POST",
    "/v1/schedules/reconcile",
    permission=Permission.OPERATE,
    body=ReconcileIn,
    answers={200: ReconcileOut, 409: Problem},
    largest_body=16 * 1024 * 1024,
    within=None,
)
async def reconcile_schedules(api: Api, call: Call[ReconcileIn, Empty]) -> Answer:
    """Make the stored schedules of an application or a file equal to its declarations.

    `dryRun` returns the steps without applying them. Schedules of other sources are left alone unless `takeOver` is
    set, and schedules that were created by hand are never removed. A schedule of the same name without a source is
    adopted. 409: another request changed one of the schedules meanwhile.
    """
    body = call.body
    tenant = await api.choose_owner(call.principal, body.tenant)
    declared = [await _build_declared(api, number, entry) for number, entry in enumerate(body.schedules, 1)]
    found = reconcile(
        declared,
        await _read_stored(api.seen_by(call.principal), tenant, body.source, {one.spec.name for one in declared}),
        body.source,
    )
    refused = {
        action for action, allowed in ((Action.REMOVE, body.remove), (Action.TAKE_OVER, body.take_over)) if not allowed
    }
    steps = [] if body.dry_run else [step for step in found.steps if step.action not in refused]
    for step in steps:
        if step.job is not None:
            api.admission.check_queue(call.principal, step.job.spec.queue)
        if step.declared is not None:
            spec = step.declared.spec
            try:
                await api.admission.check(call.principal, tenant, spec.queue, spec.task, step.declared.payload)
            except Invalid as error:
                raise Invalid(f"{spec.name}: {error.field}", error.reason, error.hint) from None
    warnings = await api.workers.describe_schedule_warnings(tenant, (one.spec for one in declared))
    if warnings and body.strict:
        first, others = warnings[0], len(warnings) - 1
        least = "at least " if len(warnings) == MOST_WARNINGS else ""
        more = f"; {least}{others} more obstacle{'s' if others > 1 else ''}" if others else ""
        raise Conflict(f"{first}{more} (refused because of strict)")
    ids = await _apply_steps(api, steps, tenant, call.principal.name, f"declared by {body.source}")
    out = ReconcileOut(
        source=body.source,
        tenant=tenant,
        steps=[_step_out(step, ids.get(step.name), step.name in ids) for step in found.steps],
        unchanged=list(found.unchanged),
        warnings=warnings,
    )
    return Answer(200, out)


async def _build_declared(api: Api, number: int, entry: msgspec.Raw) -> DeclaredSchedule:
    written: dict[str, str] = {}
    try:
        fields = decode(bytes(entry), JobFields, _decoder, written)
        if not is_recurring(fields):
            raise Invalid("cronExpression", "is missing, and so is every", "a schedule needs one of them")
        spec, payload = build_spec(fields), read_payload(fields)
        spec = apply_defaults(spec, fields, await api.catalog.find(spec.task))
        spec.check()
        check_payload(payload)
    except Invalid as error:
        problem, _ = build_problem(restore_names(error, written))
        raise Invalid(f"schedules[{number - 1}].{problem.field}", error.reason, error.hint) from None
    return DeclaredSchedule(spec, payload)


async def _read_stored(reads: Reads, tenant: str, source: str, names: set[str]) -> list[Job]:
    """Return the jobs that may have to change, with their payloads."""
    wanted: list[JobId] = []
    after: JobId | None = None
    while True:
        page = await reads.list_jobs(JobFilter(tenant=tenant), after, _PAGE)
        wanted += [job.id for job in page.items if job.spec.source == source or job.spec.name in names]
        if page.after is None:
            break
        after = JobId(page.after)
    found: list[Job] = []
    for start in range(0, len(wanted), _PAGE):
        found += [job for job in await reads.jobs(wanted[start : start + _PAGE]) if job is not None]
    return found


async def _apply_steps(api: Api, steps: Sequence[Step], tenant: str, author: str, why: str) -> dict[str, JobId]:
    """Apply the steps. Returns the ids of the jobs by name."""
    ids: dict[str, JobId] = {}
    news = [_build_new_job(api, step, tenant, author, why) for step in steps if step.declared is not None]
    room = await api.admission.admit_jobs(tenant, sum(new.must_be_new for new in news))
    if room.reason is not None:
        raise room.reason
    for start in range(0, len(news), _PAGE):
        for put in await api.jobs.put_jobs(news[start : start + _PAGE]):
            if put.outcome in (PutOutcome.EXISTS, PutOutcome.STALE):
                raise Conflict(f"schedule {put.job.spec.name!r} changed meanwhile; review the plan again")
            ids[put.job.spec.name] = put.job.id
    removed = {step.name: step.job.id for step in steps if step.action is Action.REMOVE and step.job is not None}
    if removed:
        await api.jobs.cancel_jobs(list(removed.values()), Author(author, tenant, why))
    return ids | removed


def _build_new_job(api: Api, step: Step, tenant: str, author: str, why: str) -> NewJob:
    assert step.declared is not None
    return NewJob(
        id=api.jobs.new_job_id(tenant, step.name) if step.job is None else step.job.id,
        spec=step.declared.spec,
        payload=step.declared.payload,
        tenant=tenant,
        author=author,
        why=why,
        must_be_new=step.job is None,
        expected_version=None if step.job is None else step.job.version,
    )


def _step_out(step: Step, job_id: JobId | None, done: bool) -> StepOut:
    job, declared = step.job, step.declared
    spec = job.spec if declared is None and job is not None else declared.spec if declared is not None else None
    assert spec is not None
    return StepOut(
        action=step.action.value,
        name=step.name,
        job_id=job_id if job is None else job.id,
        task=spec.task,
        changes={} if job is None or declared is None else _list_changes(job, declared),
        done=done,
    )


def _list_changes(job: Job, declared: DeclaredSchedule) -> dict[str, Change]:
    target = msgspec.structs.replace(job, spec=declared.spec, payload=declared.payload)
    changes = list_differences(read_fields(job), read_fields(target))
    for name, before, after in (
        ("source", job.spec.source, declared.spec.source),
        ("status", job.state, JobState.SCHEDULED if job.state is JobState.CANCELLED else job.state),
    ):
        if before != after:
            changes[name] = Change(before=_encode_raw(before), after=_encode_raw(after))
    return changes


def _encode_raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(text or None))


_decoder = msgspec.json.Decoder(JobFields)
