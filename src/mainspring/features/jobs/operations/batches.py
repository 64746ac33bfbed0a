"""Operation that creates many jobs with one request."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, TypeVar

import msgspec
from msgspec import UNSET, Meta

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.errors import Conflict, Invalid, StoreUnavailable
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.schedules.job import NewJob
from mainspring.core.model.workflows.dependencies import find_circle
from mainspring.http.admission import Allowance
from mainspring.http.context import Api
from mainspring.http.jobs.reading import explain_past_time
from mainspring.http.jobs.submission import KEY_HEADER, Submit, answer_put, build_conflict, make_job, make_run, read_key
from mainspring.http.live_workers import MOST_WARNINGS
from mainspring.http.operation import Answer, Call, Resource
from mainspring.http.problems import Problem, build_problem, decode, restore_names
from mainspring.http.schemas.common import Request, Wire
from mainspring.http.schemas.jobs import JobIn, is_recurring
from mainspring.http.schemas.workflows import read_dependencies

batches = Resource("Jobs")

NewWork = TypeVar("NewWork", NewRun, NewJob)
LARGEST_BATCH = 10_000
#: Statuses after which the same request may succeed later.
_TEMPORARY = (429, 503)


class Batch(Request):
    """Up to 10,000 jobs."""

    jobs: Annotated[
        list[msgspec.Raw],
        Meta(
            min_length=1,
            max_length=LARGEST_BATCH,
            extra_json_schema={"items": {"$ref": "#/components/schemas/JobIn"}},
        ),
    ]


class BatchItem(Wire):
    """The result of one job of a batch."""

    job_id: str | None = None
    status: str | None = None
    problem: Problem | None = None


class BatchOut(Wire):
    accepted: int
    refused: int
    items: list[BatchItem]
    warnings: list[str] = []
    """Reasons that keep accepted jobs from running now, each once."""


@batches.operation(
    "POST",
    "/v1/jobs/batch",
    permission=Permission.SUBMIT,
    body=Batch,
    query=Submit,
    answers={200: BatchOut},
    largest_body=64 * 1024 * 1024,
    within=None,
    example={"jobs": [{"task": "send_welcome", "payload": {"user_id": user}} for user in (42, 43)]},
)
async def create_jobs(api: Api, call: Call[Batch, Submit]) -> Answer:
    """Create up to 10,000 jobs.

    Each job has its own result, in the order of the request: `jobId` if it is committed, `problem` if it is not.
    Give each job its own `idempotencyKey`; the header `Idempotency-Key` is rejected. If a quota leaves room for
    some of them, the first ones are created.
    """
    items: list[BatchItem | None] = []
    runs: list[tuple[int, NewRun]] = []
    late: list[tuple[int, NewRun]] = []
    dependencies: dict[int, JobIn] = {}
    names: dict[int, dict[str, str]] = {}
    recurring: list[tuple[int, NewJob]] = []
    #: A dict keeps each warning once, in the order of the jobs.
    warnings: dict[str, None] = {}
    now = api.clock.now()
    if KEY_HEADER in call.headers:
        raise Invalid("Idempotency-Key", "does not apply to a batch", "set idempotencyKey in each job")
    for number, raw in enumerate(call.body.jobs):
        items.append(None)
        written = names[number] = {}
        try:
            fields = decode(bytes(raw), JobIn, _job_decoder, written)
            tenant = await api.choose_owner(call.principal, fields.tenant)
            key = read_key(fields, None)
            if is_recurring(fields):
                new = await make_job(api, fields, tenant, call.principal.name, key)
                new.check()
                await api.admission.check(call.principal, tenant, new.spec.queue, new.spec.task, new.payload)
                await api.admission.check_calendars(tenant, new.spec.calendars)
                warnings.update(await _list_warnings(api, new, call.query))
                recurring.append((number, new))
            else:
                run = await make_run(api, fields, tenant, call.principal.name, key)
                run.check()
                parents = () if fields.depends_on is UNSET else fields.depends_on
                await api.admission.check(call.principal, tenant, run.queue, run.task, run.payload, parents)
                past = explain_past_time(run, now)
                if past is not None and key is None:
                    raise past
                warnings.update(await _list_warnings(api, run, call.query))
                if fields.depends_on is not UNSET or fields.when is not UNSET:
                    dependencies[number] = fields
                (runs if past is None else late).append((number, run))
        except Invalid as error:
            items[number] = _build_refused_item(restore_names(error, written))
        except Exception as error:
            items[number] = _build_refused_item(error)
    runs = sorted(runs + await _keep_repeated(api, late, now, items, names), key=lambda pair: pair[0])
    runs = await _keep_within_quotas(runs, api.admission.admit_runs, items)
    recurring = await _keep_within_quotas(recurring, api.admission.admit_jobs, items)
    runs = _add_dependencies(runs, dependencies, items)
    # Submit all at once if some depend on others of the batch: the submission puts them in order.
    at_once = max(len(runs), 1) if dependencies else 1_000
    for start in range(0, len(runs), at_once):
        part = runs[start : start + at_once]
        try:
            accepted = await api.jobs.submit_many([run for _, run in part])
        except StoreUnavailable as error:
            if not start:
                raise
            # The submission has retried long enough already: refuse the rest without trying.
            for number, _ in runs[start:]:
                items[number] = _build_refused_item(error)
            break
        except Exception as error:
            for number, _ in part:
                items[number] = _build_refused_item(error)
            continue
        for (number, run), answer in zip(part, accepted, strict=True):
            if answer.conflict:
                items[number] = _build_refused_item(build_conflict(run, answer))
            else:
                items[number] = BatchItem(job_id=answer.id, status=answer.state.value)
    for start in range(0, len(recurring), 1_000):
        some = recurring[start : start + 1_000]
        try:
            puts = await api.jobs.put_jobs([new for _, new in some])
        except StoreUnavailable as error:
            if not runs and not start:
                raise
            for number, _ in recurring[start:]:
                items[number] = _build_refused_item(error)
            break
        except Exception as error:
            for number, _ in some:
                items[number] = _build_refused_item(error)
            continue
        for (number, _), put in zip(some, puts, strict=True):
            try:
                answered = answer_put(put, 201, [])
                items[number] = BatchItem(job_id=put.job.id, status=answered.body.status)
            except Conflict as error:
                items[number] = _build_refused_item(error)
    done = [item for item in items if item is not None]
    refused = sum(item.problem is not None for item in done)
    out = BatchOut(accepted=len(done) - refused, refused=refused, items=done, warnings=list(warnings)[:MOST_WARNINGS])
    return Answer(200, out)


async def _list_warnings(api: Api, job: NewRun | NewJob, query: Submit) -> dict[str, None]:
    if query.strict:
        await api.workers.check_runnable(job)
        return {}
    return dict.fromkeys(await api.workers.log_warnings(job))


def _add_dependencies(
    runs: list[tuple[int, NewRun]], dependencies: dict[int, JobIn], items: list[BatchItem | None]
) -> list[tuple[int, NewRun]]:
    """Add the dependencies to the runs. A run that depends on a refused one is refused."""
    if not dependencies:
        return runs
    circle = find_circle({f"#{number}": fields.depends_on or () for number, fields in dependencies.items()})
    if circle is not None:
        # Named by their positions in the batch, which the caller knows; the ids are new.
        error = Invalid("dependsOn", f"goes round in a circle: {' → '.join(circle)}")
        for number, _ in runs:
            items[number] = _build_refused_item(error)
        return []
    while True:
        here = {f"#{number}": run.id for number, run in runs}
        kept = []
        for number, run in runs:
            try:
                after = read_dependencies(dependencies[number], here) if number in dependencies else None
            except Invalid as error:
                items[number] = _refuse_with_parent(dependencies[number], items) or _build_refused_item(error)
            else:
                kept.append((number, msgspec.structs.replace(run, after=after)))
        if len(kept) == len(runs):
            return kept
        runs = kept


def _refuse_with_parent(fields: JobIn, items: list[BatchItem | None]) -> BatchItem | None:
    """Return the answer for a job whose parent in the batch was refused, or None.

    It has the parent's status, so that a client retries both after a temporary failure. A parent that can never be
    accepted comes first.
    """
    refused = [
        (name, item.problem)
        for name in fields.depends_on or ()
        if name[:1] == "#" and name[1:].isdecimal() and int(name[1:]) < len(items)
        if (item := items[int(name[1:])]) is not None and item.problem is not None
    ]
    if not refused:
        return None
    name, problem = min(refused, key=lambda one: one[1].status in _TEMPORARY)
    detail = f"depends on {name}, which was refused: {problem.detail or problem.title}"
    return BatchItem(problem=msgspec.structs.replace(problem, detail=detail, field="dependsOn"))


async def _keep_repeated(
    api: Api,
    late: list[tuple[int, NewRun]],
    now: Instant,
    items: list[BatchItem | None],
    names: Mapping[int, Mapping[str, str]],
) -> list[tuple[int, NewRun]]:
    """Return the past-due runs whose keys were used before; refuse the others."""
    keys: dict[str, list[str]] = {}
    for _, run in late:
        keys.setdefault(run.tenant, []).append("" if run.idempotency is None else run.idempotency.key)
    used = {tenant: await api.store.used_keys(tenant, given) for tenant, given in keys.items()}
    known = []
    for number, run in late:
        if run.idempotency is not None and run.idempotency.key in used[run.tenant]:
            known.append((number, run))
        elif (past := explain_past_time(run, now)) is not None:
            items[number] = _build_refused_item(restore_names(past, names[number]))
    return known


async def _keep_within_quotas(
    requests: list[tuple[int, NewWork]],
    room: Callable[[str, int], Awaitable[Allowance]],
    items: list[BatchItem | None],
) -> list[tuple[int, NewWork]]:
    """Return the jobs within the quotas, asked once per tenant; refuse the others."""
    counts = Counter(new.tenant for _, new in requests)
    admitted = {tenant: await room(tenant, count) for tenant, count in counts.items()}
    seen: Counter[str] = Counter()
    kept = []
    for number, new in requests:
        tenant = new.tenant
        seen[tenant] += 1
        why_not = admitted[tenant].reason
        if seen[tenant] > admitted[tenant].count and why_not is not None:
            items[number] = _build_refused_item(why_not)
        else:
            kept.append((number, new))
    return kept


def _build_refused_item(error: Exception) -> BatchItem:
    return BatchItem(problem=build_problem(error)[0])


_job_decoder: "msgspec.json.Decoder[JobIn]" = msgspec.json.Decoder(JobIn)
