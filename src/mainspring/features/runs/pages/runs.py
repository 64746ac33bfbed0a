"""Pages of run lists: filter runs, cancel or retry many of them."""

import asyncio
from urllib.parse import urlencode

import msgspec

from mainspring.core.model.access.access import Permission
from mainspring.features.runs.operations import list_runs
from mainspring.features.runs.pages.run import ENDED_STATES
from mainspring.http.schemas.stats import RunCounts
from mainspring.http.schemas.status_words import run_states
from mainspring.web.formatting import plural
from mainspring.web.live_lists import read_live_list
from mainspring.web.page import ActionReply, Pages, Reply, Visit

runs = Pages()

_PAGE = 50
#: The tabs, and the states behind each.
TABS: dict[str, tuple[str, ...]] = {
    "all": (),
    "running": ("running", "cancelling"),
    "queued": ("queued",),
    "scheduled": ("scheduled",),
    "blocked": ("blocked",),
    "succeeded": ("succeeded",),
    "failed": ("failed",),
    "cancelled": ("cancelled",),
    "skipped": ("skipped",),
}


class RunsQuery(msgspec.Struct, frozen=True):
    status: str = ""
    text: str = ""
    task: str = ""
    queue: str = ""
    tag: str = ""
    job: str = ""
    #: Only the selected runs.
    ids: str = ""
    cursor: str = ""

    def as_query(self) -> dict[str, object]:
        """Return the query as it is in the address."""
        return msgspec.structs.asdict(self)


@runs.page("GET", "/runs", permission=Permission.READ, query=RunsQuery)
async def show_runs(visit: Visit[RunsQuery]) -> Reply:
    query = visit.query
    asked = {**query.as_query(), "jobId": query.job, "limit": _PAGE}
    del asked["job"], asked["ids"]
    listed, counts = await asyncio.gather(
        read_live_list(visit, list_runs, asked, lambda run: str(run.run_id)), _count_by_state(visit)
    )
    chosen = frozenset(state.value for state in run_states(query.status))
    return visit.show(
        "runs/list.html",
        page=listed.page,
        items=listed.items,
        fresh=listed.fresh,
        given=query.as_query(),
        filtered=any((query.text, query.task, query.queue, query.tag, query.job)),
        tabs=[
            {
                "name": name,
                "status": ",".join(states),
                "count": sum(counts.counts.get(state, 0) for state in states),
                "more": any(counts.counts.get(state, 0) >= counts.at_most for state in states),
                "current": chosen == frozenset(states),
            }
            for name, states in TABS.items()
        ],
        ended=ENDED_STATES,
        on_its_way=chosen <= {"running", "cancelling", "queued", "scheduled", "blocked"} and bool(chosen),
    )


@runs.page("GET", "/runs/cancel-all", permission=Permission.OPERATE, query=RunsQuery)
async def ask_cancel(visit: Visit[RunsQuery]) -> Reply:
    return await _confirm(visit, "cancel")


@runs.page("POST", "/runs/cancel-all", permission=Permission.OPERATE, query=RunsQuery)
async def cancel_all(visit: Visit[RunsQuery]) -> Reply:
    done = await visit.ask("act_on_many", body=_build_bulk_body("cancel", visit.query))
    more = "; there are more" if done.more else ""
    return ActionReply(
        words=f"{plural(done.changed, 'run')} cancelled{more}.", to=_build_list_path(visit.query), leave=True
    )


@runs.page("GET", "/runs/retry-all", permission=Permission.OPERATE, query=RunsQuery)
async def ask_retry(visit: Visit[RunsQuery]) -> Reply:
    return await _confirm(visit, "retry")


@runs.page("POST", "/runs/retry-all", permission=Permission.OPERATE, query=RunsQuery)
async def retry_all(visit: Visit[RunsQuery]) -> Reply:
    done = await visit.ask("act_on_many", body=_build_bulk_body("retry", visit.query))
    before = done.matched - done.changed
    more = "; quota exhausted" if done.more else f"; {before} had been retried before" if before else ""
    return ActionReply(
        words=f"{plural(done.changed, 'run')} retried{more}.", to=_build_list_path(visit.query), leave=True
    )


async def _count_by_state(visit: Visit[RunsQuery]) -> RunCounts:
    """Count runs by state. Empty if the filter has a text, a task, a tag or a job, which cannot be counted."""
    query = visit.query
    if any((query.text, query.task, query.tag, query.job)):
        return RunCounts(counts={}, at_most=1)
    found: RunCounts = await visit.ask("count_runs", query={"queue": query.queue})
    return found


async def _confirm(visit: Visit[RunsQuery], action: str) -> Reply:
    """Ask for confirmation, with the number of runs."""
    found = await visit.ask("act_on_many", body={**_build_bulk_body(action, visit.query), "dryRun": True})
    given = visit.query.as_query()
    ticked = len(visit.query.ids.split(",")) if visit.query.ids else 0
    return visit.show("runs/act_on_all.html", found=found, given=given, action=action, ticked=ticked)


def _build_list_path(query: RunsQuery) -> str:
    """Return the first page of the list from which the runs were selected."""
    said = {name: value for name, value in query.as_query().items() if value and name not in ("ids", "cursor")}
    return f"runs?{urlencode(said)}" if said else "runs"


def _build_bulk_body(action: str, query: RunsQuery) -> dict[str, object]:
    """Return the body of a bulk action on the selected runs, or on all runs that match the filter."""
    if query.ids:
        return {"action": action, "target": "runs", "ids": query.ids.split(",")}
    said = {name: value for name, value in query.as_query().items() if value and name not in ("job", "cursor")}
    return {"action": action, "target": "runs", **said, **({"jobId": query.job} if query.job else {})}
