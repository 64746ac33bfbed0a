"""Drill operations: revoke a scheduler's lease on purpose and report the effect."""

from typing import Annotated

from msgspec import Meta

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.instant import SECOND
from mainspring.core.ports.storage.access import Author
from mainspring.features.drill.model import check_allowed
from mainspring.features.drill.service import Drill, DrillReport
from mainspring.http.context import Api
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.problems import Problem
from mainspring.http.schemas.common import Name, Request, Span, Wire, parse_span

drills = Resource("Drills", "Revoke a scheduler's lease on purpose, and check that the other schedulers take over.")


class DrillIn(Request):
    scheduler: Name | None = None
    """Its name or number; default: the scheduler with the most shards."""
    watch: Span = "10s"
    """How long to watch, 3 to 25 seconds; the response follows after that."""
    revoke: bool = True
    """False: revoke nothing, only watch, while the caller kills the process."""
    in_production: bool = False
    """Required where the setting `production` is on."""


class DrillOut(Wire):
    scheduler_id: str
    scheduler: str
    schedulers: int
    """Schedulers that were alive, including this one."""
    shards: int
    """Shards that it owned."""
    seconds_without_owner: Annotated[float, Meta(ge=0)] | None
    """How long some of its shards had no owner; null if they were not all taken over during the watch."""
    taken_over_by: list[str]
    """Names of the other schedulers that took shards over; empty if only the same process took them back."""
    jobs: int
    """Recurring jobs whose ticks were watched, at most 200."""
    ticks: int
    late: int
    """Ticks that became a run more than a second late."""
    latest_seconds: float
    missed: int
    """Ticks without a row in the ledger."""
    doubled: int
    """Ticks with more than one row, or more than one run."""
    watched_seconds: float
    passed: bool
    """Another scheduler took over, every shard has an owner, and no tick was missed or doubled."""


class DrillsOut(Wire):
    production: bool
    """Whether `inProduction` is required."""


@drills.operation("GET", "/v1/drills", permission=Permission.ADMINISTER_ALL, answers={200: DrillsOut})
async def may_drill(api: Api, call: Call[Empty, Empty]) -> Answer:
    """Get whether drills need a confirmation here.

    `production` is the setting of that name. If it is true, a drill needs `inProduction`.
    """
    return Answer(200, DrillsOut(production=api.production))


@drills.operation(
    "POST",
    "/v1/drills",
    permission=Permission.ADMINISTER_ALL,
    body=DrillIn,
    body_optional=True,
    answers={200: DrillOut, 404: Problem, 409: Problem},
    within=None,
)
async def drill(api: Api, call: Call[DrillIn, Empty]) -> Answer:
    """Revoke a scheduler's lease and report the effect.

    The other schedulers take over its shards, and it rejoins on its own, so there is nothing to undo. The answer
    comes after the time in `watch`. 404: there is no such scheduler. 409: no scheduler is alive, or the setting
    `production` is on and `inProduction` is not given.
    """
    requested = call.body
    check_allowed(in_production=api.production, confirmed=requested.in_production)
    watch = parse_span(requested.watch, "watch")
    author = Author(call.principal.name, None, why="a drill")
    report = await Drill(api.store, api.clock).run(requested.scheduler, watch, author, revoke=requested.revoke)
    return Answer(200, _drill_out(report))


def _drill_out(report: DrillReport) -> DrillOut:
    without_owner, ticks = report.without_owner, report.ticks
    return DrillOut(
        scheduler_id=str(report.scheduler.id),
        scheduler=report.scheduler.name,
        schedulers=report.schedulers,
        shards=report.scheduler.shards,
        seconds_without_owner=None if without_owner is None else without_owner / SECOND,
        taken_over_by=list(report.taken_over_by),
        jobs=report.jobs,
        ticks=ticks.ticks,
        late=ticks.late,
        latest_seconds=ticks.latest / SECOND,
        missed=ticks.missed,
        doubled=ticks.doubled,
        watched_seconds=report.watched / SECOND,
        passed=report.passed,
    )
