"""Dashboard pages for actions on many schedules: preview, apply and undo."""

import asyncio
from typing import Any

import msgspec

from mainspring.core.model.access.access import Permission
from mainspring.features.jobs.operations.job import get_job
from mainspring.features.jobs.operations.jobs import list_jobs
from mainspring.http.problems import RequestFieldError
from mainspring.http.schemas.bulk import BulkOut
from mainspring.http.schemas.job_answers import JobOut
from mainspring.web.formatting import plural
from mainspring.web.page import ActionReply, Pages, Reply, Visit

jobs_bulk = Pages()

_MAX_NAMED = 10
#: By action: the states it applies to, the action that undoes it, and the word for the result.
_ACTIONS = {
    "pause": ("scheduled", "resume", "paused"),
    "resume": ("paused", "pause", "resumed"),
    "cancel": ("scheduled,paused", "", "cancelled"),
}
#: Jobs that an answer names; more cannot be undone.
_UNDO_ACTIONS = 100


class BulkQuery(msgspec.Struct, frozen=True):
    action: str = ""
    status: str = ""
    text: str = ""
    queue: str = ""
    tag: str = ""
    #: Ids of the selected jobs; if given, only these.
    ids: str = ""

    def as_query(self) -> dict[str, object]:
        """Return the query parameters."""
        return msgspec.structs.asdict(self)


class JobIdsQuery(msgspec.Struct, frozen=True):
    action: str = ""
    ids: str = ""


@jobs_bulk.page("GET", "/jobs/all", permission=Permission.OPERATE, query=BulkQuery)
async def ask_about_many(visit: Visit[BulkQuery]) -> Reply:
    """Preview an action: how many jobs it would change, and some of them."""
    query = visit.query
    _, _, done = _action(query.action)
    filters = {name: value for name, value in query.as_query().items() if name not in ("action", "ids")}
    named: list[JobOut] = []
    found = _build_empty_answer(query.action)
    if status := _choose_states(query):
        found = await visit.ask("act_on_many", body={**_build_bulk_body(query, status), "dryRun": True})
        if query.ids:
            asked = (visit.ask(get_job, path={"id": job}) for job in found.sample[:_MAX_NAMED])
            named = await asyncio.gather(*asked)
        else:
            page = await visit.ask(
                list_jobs, query={**filters, "kind": "recurring", "status": status, "limit": _MAX_NAMED}
            )
            named = page.items[:_MAX_NAMED]
    return visit.show(
        "jobs/act_on_all.html",
        found=found,
        action=query.action,
        done=done,
        named=named,
        given=query.as_query(),
        filters=filters,
        ticked=len(query.ids.split(",")) if query.ids else 0,
    )


@jobs_bulk.page("POST", "/jobs/all", permission=Permission.OPERATE, query=BulkQuery)
async def do_to_many(visit: Visit[BulkQuery]) -> Reply:
    query = visit.query
    if not (status := _choose_states(query)):
        return _build_done(query.action, _build_empty_answer(query.action))
    body = {**_build_bulk_body(query, status), "why": visit.form.get("why", "").strip()}
    return _build_done(query.action, await visit.ask("act_on_many", body=body))


@jobs_bulk.page("POST", "/jobs/some", permission=Permission.OPERATE, query=JobIdsQuery)
async def do_to_some(visit: Visit[JobIdsQuery]) -> Reply:
    status, _, _ = _action(visit.query.action)
    body = {"action": visit.query.action, "ids": visit.query.ids.split(","), "status": status}
    return _build_done(visit.query.action, await visit.ask("act_on_many", body=body))


def _action(action: str) -> tuple[str, str, str]:
    if action not in _ACTIONS:
        raise RequestFieldError("action", f"{action!r:.40} is not a bulk action", ", ".join(_ACTIONS))
    return _ACTIONS[action]


def list_actions(status: str) -> list[str]:
    """Return the actions that apply to jobs of the listed status."""
    return [action for action in _ACTIONS if _choose_states(BulkQuery(action=action, status=status))]


def _choose_states(query: BulkQuery) -> str:
    """Return the listed states that the action changes, comma-separated.

    Empty means none; the API would take an empty status for all.
    """
    changed, _, _ = _action(query.action)
    shown = [word.strip().lower() for word in query.status.split(",") if word.strip()]
    return ",".join(state for state in changed.split(",") if not shown or state in shown)


def _build_bulk_body(query: BulkQuery, status: str) -> dict[str, Any]:
    """Build the request for exactly the jobs that the action changes, so that an undo restores their states."""
    if query.ids:
        return {"action": query.action, "target": "jobs", "status": status, "ids": query.ids.split(",")}
    filters = {name: value for name, value in query.as_query().items() if value and name not in ("action", "status")}
    return {"action": query.action, "target": "jobs", "status": status, **filters}


def _build_empty_answer(action: str) -> BulkOut:
    return BulkOut(action=action, matched=0, changed=0, more=False, dry_run=True, sample=[])


def _build_done(action: str, done: BulkOut) -> ActionReply:
    _, back, words = _action(action)
    more = "; there are more" if done.more else ""
    exact = back and 0 < done.changed == done.matched <= _UNDO_ACTIONS
    undo = f"jobs/some?action={back}&ids={','.join(done.sample)}" if exact else ""
    return ActionReply(words=f"{plural(done.changed, 'schedule')} {words}{more}.", to="jobs", undo=undo)
