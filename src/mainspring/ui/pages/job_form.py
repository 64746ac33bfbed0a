"""A job is made, or changed: a form that says while one types what would come of it."""

import asyncio
from functools import cache
from typing import Any
from zoneinfo import available_timezones

import msgspec

from mainspring.api.problems import Problem, problem_of
from mainspring.api.routes.calendars import list_calendars
from mainspring.api.routes.job import change_job, get_job
from mainspring.api.routes.job_preview import preview_change, preview_job
from mainspring.api.routes.jobs import create_job
from mainspring.api.routes.processes import list_workers
from mainspring.api.routes.queues import list_queues
from mainspring.api.schemas.job_answers import JobOut
from mainspring.domain.access import DEFAULT_TENANT, Permission
from mainspring.domain.errors import Conflict, MainspringError
from mainspring.ui.job_fields import DEFAULTS, body_of, keeps_payload, patch_of, values_of
from mainspring.ui.page import Done, Pages, Reply, Visit
from mainspring.ui.pages.job import changes_shown

job_form = Pages()

_FIRES = 6
#: In which a one-off has not begun.
WAITING = ("scheduled", "queued", "blocked")


class NewQuery(msgspec.Struct, frozen=True):
    #: The id of a job that the new one is like.
    like: str = ""


@job_form.page("GET", "/jobs/new", permission=Permission.SUBMIT, query=NewQuery)
async def show_new(visit: Visit[NewQuery]) -> Reply:
    values = dict(DEFAULTS)
    if visit.query.like:
        values = {**values_of(await visit.ask(get_job, path={"id": visit.query.like})), "name": ""}
    preview, problem = await _preview_new(visit, values) if visit.query.like else (None, None)
    known = await _known(visit, visit.principal.tenant or DEFAULT_TENANT)
    return visit.show("jobs/form.html", job=None, values=values, preview=preview, problem=problem, **known)


@job_form.page("POST", "/jobs/new", permission=Permission.SUBMIT)
async def do_create(visit: Visit[Any]) -> Reply:
    made: JobOut = await visit.ask(create_job, body=body_of(visit.form))
    where = "runs" if made.version is None else "jobs"
    return Done(words=f"{made.name or made.task} is made.", to=f"{where}/{made.job_id}", leave=True)


@job_form.page("POST", "/jobs/preview", permission=Permission.SUBMIT)
async def show_preview(visit: Visit[Any]) -> Reply:
    preview, problem = await _preview_new(visit, visit.form)
    return visit.show("jobs/preview.html", job=None, preview=preview, problem=problem)


@job_form.page("GET", "/jobs/{id}/edit", permission=Permission.OPERATE)
async def show_edit(visit: Visit[Any]) -> Reply:
    job: JobOut = await visit.ask(get_job, path=visit.path)
    if job.version is None and job.status not in WAITING:
        raise Conflict(f"a one-off job can be changed until it starts; this one is {job.status}")
    values = values_of(job)
    preview, problem = await _preview_change(visit, job, values)
    known = await _known(visit, job.tenant)
    return visit.show("jobs/form.html", job=job, values=values, preview=preview, problem=problem, **known)


@job_form.page("POST", "/jobs/{id}/edit", permission=Permission.OPERATE)
async def do_change(visit: Visit[Any]) -> Reply:
    job: JobOut = await visit.ask(get_job, path=visit.path)
    made: JobOut = await visit.ask(change_job, path=visit.path, body=patch_of(job, visit.form))
    if made.version is None:
        return Done(words="It is changed.", to=f"runs/{job.job_id}", leave=True)
    return Done(words=f"It is version {made.version} now.", to=f"jobs/{job.job_id}", leave=True)


@job_form.page("POST", "/jobs/{id}/edit/preview", permission=Permission.OPERATE)
async def show_change(visit: Visit[Any]) -> Reply:
    job: JobOut = await visit.ask(get_job, path=visit.path)
    preview, problem = await _preview_change(visit, job, visit.form)
    return visit.show("jobs/preview.html", job=job, preview=preview, problem=problem)


async def _preview_new(visit: Visit[Any], form: Any) -> tuple[dict[str, Any] | None, Problem | None]:
    try:
        return _shown(await visit.ask(preview_job, query={"n": _FIRES}, body=body_of(form))), None
    except MainspringError as error:
        return None, problem_of(error)[0]


async def _preview_change(visit: Visit[Any], job: JobOut, form: Any) -> tuple[dict[str, Any] | None, Problem | None]:
    if job.version is None:
        # What it does once is what a new one like it would do.
        return await _preview_new(visit, {**form, "payload": ""} if keeps_payload(job, form) else form)
    try:
        patch = patch_of(job, form)
        found = await visit.ask(preview_change, path={"id": job.job_id}, query={"n": _FIRES}, body=patch)
        return _shown(found), None
    except MainspringError as error:
        return None, problem_of(error)[0]


def _shown(preview: Any) -> dict[str, Any]:
    return {**msgspec.structs.asdict(preview), "changes": changes_shown(preview.changes)}


async def _known(visit: Visit[Any], tenant: str) -> dict[str, Any]:
    """What fields of a tenant's job may be filled with."""
    workers, queues, calendars = await asyncio.gather(
        visit.ask(list_workers), visit.ask(list_queues), visit.ask(list_calendars, query={"tenant": tenant})
    )
    return {
        "tasks": sorted({task for worker in workers.items for task in worker.tasks}),
        "queues": sorted({"default", *(queue.name for queue in queues.items)}),
        "calendars": sorted({calendar.name for calendar in calendars.items}),
        "zones": _zones(),
    }


@cache
def _zones() -> list[str]:
    """Those of places; names of old are understood as well."""
    return ["UTC", *sorted(name for name in available_timezones() if "/" in name and not name.startswith("Etc/"))]
