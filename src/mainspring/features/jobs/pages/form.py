"""Dashboard forms that create and change a job, with a preview while typing."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeAlias
from zoneinfo import available_timezones

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.core.model.access.access import DEFAULT_TENANT, Permission
from mainspring.core.model.base.errors import Conflict, MainspringError
from mainspring.features.jobs.operations.job import change_job, get_job
from mainspring.features.jobs.operations.jobs import create_job
from mainspring.features.jobs.operations.previews import preview_change, preview_job
from mainspring.features.jobs.pages.job import build_diffs
from mainspring.http.problems import ObjectNotFound, build_problem
from mainspring.http.schemas.job_answers import JobOut
from mainspring.http.schemas.status_words import WAITING
from mainspring.http.schemas.tasks import TaskOut
from mainspring.web.arguments import get_form_field, read_arguments
from mainspring.web.job_fields import DEFAULTS, PLACEHOLDERS, build_body, build_form_values, build_patch, keeps_payload
from mainspring.web.page import ActionReply, Pages, Reply, Visit

job_form = Pages()

_MAX_TICKS = 6


class FormError(NamedTuple):
    """An error in the form. ``field`` is the form's field; empty if the error belongs to none."""

    field: str
    words: str
    hint: str


_Form: TypeAlias = Mapping[str, str]
_Preview: TypeAlias = tuple[dict[str, Any] | None, list[FormError]]


class NewQuery(msgspec.Struct, frozen=True):
    #: Id of a job to copy.
    like: str = ""
    #: The selected task.
    task: str = ""


@job_form.page("GET", "/jobs/new", permission=Permission.SUBMIT, query=NewQuery)
async def show_new(visit: Visit[NewQuery]) -> Reply:
    values = {**DEFAULTS, "task": visit.query.task}
    if visit.query.like:
        values = {**build_form_values(await visit.ask(get_job, path={"id": visit.query.like})), "name": ""}
    preview, wrong = await _preview_new(visit, values) if visit.query.like else (None, [])
    known = await _load_suggestions(visit, visit.principal.tenant or DEFAULT_TENANT)
    task = None if visit.query.like else await _find_task(visit, visit.query.task)
    fields = [] if task is None or task.arguments is UNSET else read_arguments(msgspec.json.decode(task.arguments))
    shown = {"values": values, "preview": preview, "wrong": wrong, "declared": task, "arguments": fields}
    return visit.show("jobs/form.html", job=None, **shown, **known)


@job_form.page("POST", "/jobs/new", permission=Permission.SUBMIT)
async def do_create(visit: Visit[Any]) -> Reply:
    made: JobOut = await visit.ask(create_job, body=build_body(visit.form))
    where = "runs" if made.version is None else "jobs"
    return ActionReply(words=f"{made.name or made.task} created.", to=f"{where}/{made.job_id}", leave=True)


@job_form.page("POST", "/jobs/preview", permission=Permission.SUBMIT)
async def show_preview(visit: Visit[Any]) -> Reply:
    preview, wrong = await _preview_new(visit, visit.form)
    return visit.show("jobs/preview.html", job=None, preview=preview, wrong=wrong)


@job_form.page("GET", "/jobs/{id}/edit", permission=Permission.OPERATE)
async def show_edit(visit: Visit[Any]) -> Reply:
    job: JobOut = await visit.ask(get_job, path=visit.path)
    if job.version is None and job.status not in WAITING:
        raise Conflict(f"a one-off job can be changed until it starts; this one is {job.status}")
    values = build_form_values(job)
    preview, wrong = await _preview_change(visit, job, values)
    known = await _load_suggestions(visit, job.tenant)
    shown = {"values": values, "preview": preview, "wrong": wrong, "declared": None, "arguments": []}
    return visit.show("jobs/form.html", job=job, **shown, **known)


@job_form.page("POST", "/jobs/{id}/edit", permission=Permission.OPERATE)
async def do_change(visit: Visit[Any]) -> Reply:
    job: JobOut = await visit.ask(get_job, path=visit.path)
    made: JobOut = await visit.ask(change_job, path=visit.path, body=build_patch(job, visit.form))
    if made.version is None:
        return ActionReply(words="Job saved.", to=f"runs/{job.job_id}", leave=True)
    return ActionReply(words=f"Saved as version {made.version}.", to=f"jobs/{job.job_id}", leave=True)


@job_form.page("POST", "/jobs/{id}/edit/preview", permission=Permission.OPERATE)
async def show_change(visit: Visit[Any]) -> Reply:
    job: JobOut = await visit.ask(get_job, path=visit.path)
    preview, wrong = await _preview_change(visit, job, visit.form)
    return visit.show("jobs/preview.html", job=job, preview=preview, wrong=wrong)


async def _find_task(visit: Visit[Any], name: str) -> TaskOut | None:
    """Return the task as its workers registered it, or None."""
    if not name:
        return None
    try:
        found: TaskOut = await visit.ask("show_task", path={"name": name})
    except ObjectNotFound:
        return None
    return found


async def _preview_new(visit: Visit[Any], form: _Form, payload: msgspec.Raw | UnsetType = UNSET) -> _Preview:
    """Preview a new job. ``payload`` replaces the form's payload, which is incomplete if it was cut or hidden."""

    async def ask(said: _Form) -> Any:
        body = build_body(said if payload is UNSET else {**said, "payload": ""})
        return await visit.ask(
            preview_job, query={"n": _MAX_TICKS}, body=body if payload is UNSET else {**body, "payload": payload}
        )

    return await _preview(form, ask, PLACEHOLDERS)


async def _preview_change(visit: Visit[Any], job: JobOut, form: _Form) -> _Preview:
    if job.version is None:
        # A one-off job is previewed like a new job with the same fields.
        return await _preview_new(visit, form, job.payload if keeps_payload(job, form) else UNSET)

    async def ask(said: _Form) -> Any:
        body = build_patch(job, said)
        return await visit.ask(preview_change, path={"id": job.job_id}, query={"n": _MAX_TICKS}, body=body)

    return await _preview(
        form, ask, {**PLACEHOLDERS, **{name: text for name, text in build_form_values(job).items() if text}}
    )


async def _preview(form: _Form, ask: Callable[[_Form], Awaitable[Any]], stand_ins: _Form) -> _Preview:
    """Return the preview, or all errors of the form.

    The API reports one error at a time. So each rejected field is replaced by a stand-in, and the preview is requested
    again.
    """
    said, found, aside = dict(form), list[FormError](), set[str]()
    while True:
        try:
            preview = await ask(said)
        except MainspringError as error:
            problem = build_problem(error)[0]
            name = get_form_field(form, problem.field)
            if not name.startswith("arg:"):
                name = name.partition(".")[0].partition("[")[0]
            if name == "scheduleTime" and form.get("kind") == "at":
                name = "at"
            # The stand-in itself was rejected; the user has not entered it.
            if name in aside:
                return None, found
            found.append(FormError(name, problem.detail.removeprefix(f"{problem.field}: "), problem.hint))
            if name not in stand_ins:
                return None, found
            aside.add(name)
            said[name] = stand_ins[name]
        else:
            return (None, found) if found else (_build_preview(preview), [])


def _build_preview(preview: Any) -> dict[str, Any]:
    return {**msgspec.structs.asdict(preview), "changes": build_diffs(preview.changes)}


async def _load_suggestions(visit: Visit[Any], tenant: str) -> dict[str, Any]:
    """Return the suggestions for the form's fields."""
    workers, known, queues, calendars = await asyncio.gather(
        visit.ask("list_workers"),
        visit.ask("list_tasks"),
        visit.ask("list_queues"),
        visit.ask("list_calendars", query={"tenant": tenant}),
    )
    return {
        "tasks": sorted({one.name for one in known.items}.union(*(worker.tasks for worker in workers.items))),
        "queues": sorted({"default", *(queue.name for queue in queues.items), *(one.queue for one in known.items)}),
        "calendars": sorted({calendar.name for calendar in calendars.items}),
        "zones": _list_zones(),
    }


@cache
def _list_zones() -> list[str]:
    """Return UTC and the zones named after places; legacy names are accepted but not suggested."""
    return ["UTC", *sorted(name for name in available_timezones() if "/" in name and not name.startswith("Etc/"))]
