"""The page of tasks that workers have registered."""

from typing import Any

import msgspec

from mainspring.core.model.access.access import Permission
from mainspring.features.tasks.operations import TasksOut, list_tasks
from mainspring.web.page import Pages, Reply, Visit

tasks = Pages()


class TasksQuery(msgspec.Struct, frozen=True):
    text: str = ""


@tasks.page("GET", "/tasks", permission=Permission.READ, query=TasksQuery)
async def show_tasks(visit: Visit[TasksQuery]) -> Reply:
    found: TasksOut = await visit.ask(list_tasks, query=_build_query(visit.query))
    return visit.show("tasks/page.html", tasks=found.items, given=visit.query)


def _build_query(query: TasksQuery) -> dict[str, Any]:
    return {"text": query.text} if query.text else {}
