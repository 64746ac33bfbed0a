"""HTTP operations on the task catalog."""

from collections.abc import Collection
from typing import Annotated

import msgspec
from msgspec import Meta

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.instant import format_duration, isoformat
from mainspring.core.model.tasks.task_entry import KnownTask
from mainspring.core.ports.storage.catalog import SessionView
from mainspring.http.context import Api
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.problems import ObjectNotFound, Problem
from mainspring.http.rendering.jobs import render_retry
from mainspring.http.schemas.common import Request, Wire
from mainspring.http.schemas.datacenters import render_requires
from mainspring.http.schemas.limits import render_breaker, render_limits
from mainspring.http.schemas.tasks import TaskOut

tasks = Resource(
    "Tasks", "The tasks that workers have registered, with the options that jobs start from and their arguments."
)


class ListTasksQuery(Request):
    text: Annotated[str, Meta(max_length=200, description="A part of the name or the description.")] | None = None


class TasksOut(Wire):
    items: list[TaskOut]


@tasks.operation("GET", "/v1/tasks", permission=Permission.READ, query=ListTasksQuery, answers={200: TasksOut})
async def list_tasks(api: Api, call: Call[Empty, ListTasksQuery]) -> Answer:
    """List the tasks that workers have registered, by name.

    The catalog belongs to the whole installation: workers run tasks for every tenant.
    """
    text = (call.query.text or "").casefold()
    known = await api.catalog.all()
    workers = await api.workers.list_live(call.principal.tenant)
    items = [
        _task_out(task, workers)
        for name, task in sorted(known.items())
        if text in name.casefold() or text in task.entry.description.casefold()
    ]
    return Answer(200, TasksOut(items=items))


@tasks.operation("GET", "/v1/tasks/{name}", permission=Permission.READ, answers={200: TaskOut, 404: Problem})
async def show_task(api: Api, call: Call[Empty, Empty]) -> Answer:
    """Get a task, with the JSON Schema of its arguments.

    Returns the newest registration. 404: no worker has registered a task of this name.
    """
    known = (await api.catalog.all()).get(call.path["name"])
    if known is None:
        raise ObjectNotFound
    out = _task_out(known, await api.workers.list_live(call.principal.tenant))
    out.arguments = msgspec.Raw(msgspec.json.encode(known.entry.arguments))
    return Answer(200, out)


def _task_out(known: KnownTask, workers: Collection[SessionView]) -> TaskOut:
    entry = known.entry
    policy = entry.policy
    return TaskOut(
        name=entry.name,
        description=entry.description,
        queue=entry.queue,
        priority=entry.priority,
        max_retries=policy.retry.max_retries,
        retry=render_retry(policy.retry),
        timeout=format_duration(policy.timeout),
        preset=entry.preset,
        guarantee=policy.guarantee,
        requires=render_requires(policy.requires),
        limits=render_limits(policy.limits),
        breaker=render_breaker(policy.breaker),
        weight=policy.weight,
        retention=policy.retention or None,
        tags=entry.tags,
        version=known.version,
        registered_by=known.registered_by,
        registered_at=isoformat(known.registered_at),
        workers=sum(entry.name in worker.tasks for worker in workers),
    )
