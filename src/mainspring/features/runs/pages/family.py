"""Pages of the parents and children of a run."""

from typing import Any

import msgspec

from mainspring.core.model.access.access import Permission
from mainspring.features.runs.operations import get_run
from mainspring.web.page import Pages, Reply, Visit

family = Pages()

_PAGE = 100


class ChildrenQuery(msgspec.Struct, frozen=True):
    cursor: str = ""


@family.page("GET", "/runs/{id}/parents", permission=Permission.READ)
async def show_parents(visit: Visit[Any]) -> Reply:
    """Show the parents in the order of the request that created the run, on one page."""
    found = await visit.ask(get_run, path=visit.path)
    parents = await visit.ask("run_parents", path=visit.path)
    return visit.show("runs/family.html", run=found, title="Parents", page=parents, path="parents", cursor="")


@family.page("GET", "/runs/{id}/children", permission=Permission.READ, query=ChildrenQuery)
async def show_children(visit: Visit[ChildrenQuery]) -> Reply:
    found = await visit.ask(get_run, path=visit.path)
    cursor = visit.query.cursor
    children = await visit.ask("run_children", path=visit.path, query={"limit": _PAGE, "cursor": cursor})
    return visit.show("runs/family.html", run=found, title="Dependents", page=children, path="children", cursor=cursor)
