"""Changes jobs: a new version of a recurring job, or an edit of a one-off job that has not started."""

from collections.abc import Awaitable, Callable

import msgspec
from msgspec import UNSET

from mainspring.core.model.access.access import Principal
from mainspring.core.model.base.errors import Conflict, Invalid
from mainspring.core.model.runs.new_run import About
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import Job, JobState, NewJob
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.answers import PutOutcome
from mainspring.http.context import Api
from mainspring.http.jobs.lookup import JobOrRun, list_parents
from mainspring.http.jobs.reading import (
    apply_patch,
    build_run,
    build_spec,
    changes_task,
    explain_past_time,
    read_payload,
)
from mainspring.http.operation import Answer
from mainspring.http.problems import ObjectNotFound
from mainspring.http.rendering.jobs import read_fields, render_job, render_one_off, render_policy
from mainspring.http.schemas.job_answers import JobOut
from mainspring.http.schemas.jobs import JobFields, JobPatch

#: How often a change is retried after a concurrent change.
_TRIES = 10


async def render_recurring(api: Api, job: Job, warnings: list[str] | None = None) -> JobOut:
    """Return a recurring job with its upcoming ticks, which respect its calendars."""
    return render_job(job, (await api.closed_times.of([job])).get(job.id), warnings=warnings)


async def patch_job(api: Api, principal: Principal, look: Callable[[], Awaitable[JobOrRun]], patch: JobPatch) -> Answer:
    """Change a job. ``look`` reads it with its payload, and is called again if the job changed meanwhile."""
    for _ in range(_TRIES):
        found = await look()
        if not isinstance(found, RunView):
            return await write_new_version(api, principal, found, apply_patch(read_fields(found), patch), patch)
        answer = await _edit_one_off(api, principal, found, patch)
        if answer is not None:
            return answer
    raise Conflict("others are changing this job at the same time; ask again")


async def write_new_version(api: Api, principal: Principal, job: Job, fields: JobFields, patch: JobPatch) -> Answer:
    if job.state not in (JobState.SCHEDULED, JobState.PAUSED):
        raise Conflict(f"the job is {job.state.value}")
    # The owner of the declaration stays the same: its next plan shows this change as a difference.
    spec = msgspec.structs.replace(build_spec(fields), source=job.spec.source)
    if spec.name != job.spec.name:
        raise Invalid("name", "of a recurring job cannot be changed", "make another job and delete this one")
    expected = job.version if patch.expected_version is UNSET else patch.expected_version
    new = NewJob(
        id=job.id,
        spec=spec,
        payload=read_payload(fields),
        tenant=job.tenant,
        author=principal.name,
        why=_get_reason(patch),
        expected_version=expected,
    )
    await api.admission.check(principal, new.tenant, spec.queue, spec.task, new.payload, by_schema=changes_task(patch))
    put = (await api.jobs.put_jobs([new]))[0]
    if put.outcome is PutOutcome.STALE:
        raise Conflict(f"the job has version {put.job.version} by now")
    return Answer(200, await render_recurring(api, put.job, await api.workers.log_warnings(new)))


async def _edit_one_off(api: Api, principal: Principal, run: RunView, patch: JobPatch) -> Answer | None:
    """Edit a one-off job. Return None if it was changed since it was read."""
    if patch.expected_version is not UNSET:
        raise Invalid("expectedVersion", "is for recurring jobs", "a one-off job has no versions")
    if patch.cron_expression is not UNSET or patch.every is not UNSET:
        raise Invalid("scheduleType", "of a one-off job cannot become recurring", "make another job")
    base = read_one_off_fields(run)
    changed = apply_patch(base, patch)
    if patch.schedule_time is UNSET:
        changed = msgspec.structs.replace(changed, schedule_time=UNSET, schedule_type=UNSET)
    new = build_run(changed, run.id, run.tenant, principal.name)
    if run.about is not None:
        # Its origin and its position in a workflow stay the same.
        said = new.about or About()
        about = msgspec.structs.replace(run.about, name=said.name, owner=said.owner, tags=said.tags)
        new = msgspec.structs.replace(new, about=None if about == About() else about)
    if (past := explain_past_time(new, api.clock.now())) is not None:
        raise past
    if patch.schedule_time is UNSET and patch.delay is UNSET:
        new = msgspec.structs.replace(new, at=run.due)
    new.check()
    await api.admission.check(
        principal, new.tenant, new.queue, new.task, new.payload, None, by_schema=changes_task(patch)
    )
    accepted = await api.store.edit_run(new, Author(principal.name, run.tenant, _get_reason(patch)), was=run)
    if accepted is None:
        raise Conflict("the job has started; what it does cannot be changed any more")
    if accepted.conflict:
        return None
    seen = (await api.store.seen_by(run.tenant).runs([run.id], payloads=True))[0]
    if seen is None:
        raise ObjectNotFound
    warnings = await api.workers.log_warnings(new)
    return Answer(200, render_one_off(seen, parents=await list_parents(api, principal, seen), warnings=warnings))


def read_one_off_fields(run: RunView) -> JobFields:
    out = render_one_off(run)
    return JobFields(
        name=out.name or UNSET,
        task=run.task,
        payload=msgspec.Raw(run.payload or b"null"),
        queue=run.queue,
        priority=run.priority,
        deadline=out.deadline,
        start_within=out.start_within,
        datacenters=out.datacenters,
        owner=out.owner or UNSET,
        tags=out.tags,
        **render_policy(run.policy),
    )


def _get_reason(patch: JobPatch) -> str:
    return "" if patch.why is UNSET else patch.why
