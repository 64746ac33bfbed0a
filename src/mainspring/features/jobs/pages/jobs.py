"""Dashboard page that lists jobs."""

from typing import Any

import msgspec

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.runs.run import ENDED
from mainspring.core.model.schedules.cron import Cron
from mainspring.features.jobs.operations.jobs import list_jobs
from mainspring.features.jobs.pages.bulk import list_actions
from mainspring.http.schemas.job_answers import JobOut
from mainspring.http.schemas.stats import Histories, TickEnd
from mainspring.web.formatting import absolute, duration
from mainspring.web.live_lists import read_live_list
from mainspring.web.page import Pages, Reply, Visit

jobs = Pages()

#: Limited because each tick of each job is a run to look up.
_PAGE = 20
_MAX_TICKS = 50
#: Final states of one-off jobs, which are those of runs.
_ENDED_STATES = frozenset(state.value for state in ENDED)
#: A tick that started later than this, in milliseconds, is shown as late.
_LATE_MS = 10_000


class JobsQuery(msgspec.Struct, frozen=True):
    kind: str = ""
    status: str = ""
    text: str = ""
    queue: str = ""
    tag: str = ""
    cursor: str = ""

    def as_query(self) -> dict[str, object]:
        """Return the query parameters."""
        return msgspec.structs.asdict(self)


@jobs.page("GET", "/jobs", permission=Permission.READ, query=JobsQuery)
async def show_jobs(visit: Visit[JobsQuery]) -> Reply:
    given = visit.query.as_query()
    # The default is recurring jobs; one-off jobs are listed as runs, too.
    kind = visit.query.kind or "recurring"
    listed = await read_live_list(
        visit, list_jobs, {**given, "kind": kind, "limit": _PAGE}, lambda job: str(job.job_id)
    )
    items = listed.items
    strips = await read_strips(visit, [item.job_id for item in items if item.version is not None], _MAX_TICKS)
    return visit.show(
        "jobs/list.html",
        page=listed.page,
        items=items,
        fresh=listed.fresh,
        given=given,
        kind=kind,
        strips=strips,
        actions=list_actions(visit.query.status) if kind == "recurring" and items else [],
        filtered=any((visit.query.status, visit.query.text, visit.query.queue, visit.query.tag)),
        ended=_ENDED_STATES,
        schedules={item.job_id: describe_schedule(item) for item in items},
    )


async def read_strips(visit: Visit[Any], ids: list[str], limit: int) -> dict[str, list[dict[str, Any]]]:
    """Read the last ticks of jobs for the tick strips."""
    if not ids:
        return {}
    found: Histories = await visit.ask("last_ticks", query={"jobs": ",".join(ids), "limit": limit})
    return {item.job_id: [_describe_tick(tick) for tick in item.ticks] for item in found.items}


def describe_schedule(job: JobOut) -> str:
    """Describe a schedule in words."""
    if job.every is not None:
        after = " after the previous run" if job.interval_mode == "fixedDelay" else ""
        return f"every {job.every}{after}"
    if job.cron_expression is None:
        return "once"
    try:
        words = Cron.parse(job.cron_expression, hash_key=job.job_id, field="cronExpression").describe()
    except Invalid:
        words = job.cron_expression
    # Every two minutes is the same in each zone.
    needs_zone = job.timezone != "UTC" or ":" in words
    return f"{words}, {job.timezone}" if job.timezone is not None and needs_zone else words


def _describe_tick(tick: TickEnd) -> dict[str, Any]:
    late = tick.late_ms is not None and tick.late_ms > _LATE_MS
    state = "late" if tick.status == "succeeded" and late else tick.status or "gone"
    words = [absolute(tick.scheduled_for), tick.status or "its run was deleted"]
    if tick.ticks != 1:
        words.append(f"{tick.ticks or 'many'} ticks")
    if tick.reason:
        words.append(tick.reason)
    if late and tick.late_ms is not None:
        words.append(f"{duration(tick.late_ms / 1_000)} late")
    if tick.took_ms is not None:
        words.append(f"took {duration(tick.took_ms / 1_000)}")
    if tick.datacenter:
        words.append(tick.datacenter)
    return {"state": state, "words": ", ".join(words), "run_id": tick.run_id if tick.status else None}
