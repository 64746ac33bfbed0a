"""Operation that explains a tick; runs are explained by their own operations."""

from typing import Annotated

from msgspec import Meta

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import LATEST, Instant, isoformat
from mainspring.core.model.explain.ticks import TickFacts, explain_tick
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import Job
from mainspring.core.model.schedules.spread import MOST_OF_A_TICK, choose_entry
from mainspring.core.ports.storage.catalog import JobVersion, Reads
from mainspring.http.context import Api
from mainspring.http.jobs.lookup import find_recurring_job
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.problems import Problem
from mainspring.http.rendering.runs import render_reason, render_run, render_tick
from mainspring.http.schemas.common import Request, Time, format_time, parse_time
from mainspring.http.schemas.datacenters import DatacenterName
from mainspring.http.schemas.runs import TickExplanation

#: Versions read at once, since they contain payloads.
_VERSIONS_PAGE = 20

explanations = Resource("Explanations", "Whether a job ran at a given time, and why not.")


class ExplainQuery(Request):
    at: Annotated[Time, Meta(description="The time of the tick; default: the newest tick that is due.")] | None = None
    datacenter: DatacenterName | None = None
    """Which data center, for a job with several; default: one where the job did not run, if there is one."""


@explanations.operation(
    "GET",
    "/v1/jobs/{id}/explain",
    permission=Permission.READ,
    query=ExplainQuery,
    answers={200: TickExplanation, 404: Problem, 409: Problem},
)
async def explain_job(api: Api, call: Call[Empty, ExplainQuery]) -> Answer:
    """Explain whether a job ran at a given time, and why not.

    The answer comes from the ledger: the decision about the tick, its run and its outcome. If the time is no tick of
    the schedule, the answer names the nearest ticks. 409: the job is not recurring.
    """
    job = await find_recurring_job(api, call)
    at = parse_time(call.query.at, "at")
    if at is None:
        at = await _find_newest_tick(api, job)
    facts = await _read_facts(api, api.seen_by(call.principal), job, at, call.query.datacenter)
    found = explain_tick(facts)
    run = facts.backfill or (facts.run if found.entry is not None else None)
    return Answer(
        200,
        TickExplanation(
            job_id=job.id,
            time=isoformat(at),
            answer=found.answer,
            because=[render_reason(reason) for reason in found.because],
            job_version=found.entry.job_version if found.entry is not None else facts.version,
            tick=None if found.entry is None else render_tick(found.entry),
            run=None if run is None else render_run(run),
            tick_before=format_time(found.before),
            tick_after=format_time(found.after),
        ),
    )


async def _find_newest_tick(api: Api, job: Job) -> Instant:
    now = await api.store.now()
    if job.next_fire is not None and job.next_fire <= now:
        return job.next_fire
    entry = await api.store.ledger_at(job.id, now)
    return entry.scheduled_at if entry is not None else job.next_fire or now


async def _read_facts(api: Api, reads: Reads, job: Job, at: Instant, datacenter: str | None) -> TickFacts:
    store = api.store
    entry = await store.ledger_at(job.id, at)
    if entry is not None and entry.target:
        rows = await reads.ledger(job.id, entry.scheduled_at, entry.scheduled_at + 1, MOST_OF_A_TICK)
        entry = choose_entry(rows, datacenter) or entry
    oldest = await reads.ledger(job.id, 0, LATEST, 1)
    backfilled = await store.backfilled(job.id, at, at + 1)
    version = await _find_version(reads, job, at)
    owner = await store.find_shard_owner(job.shard)
    return TickFacts(
        now=await store.now(),
        job=job,
        at=at,
        entry=entry,
        run=await _read_run(reads, None if entry is None else entry.run_id),
        backfill=await _read_run(reads, backfilled.get(at)),
        version=None if version is None else version.version,
        schedule=None if version is None else version.spec.schedule,
        oldest=oldest[0].scheduled_at if oldest else None,
        owner=None if owner is None else (owner.id, owner.name),
        schedulers=len(await store.sessions("scheduler")),
    )


async def _read_run(reads: Reads, run: str | None) -> RunView | None:
    return None if run is None else (await reads.runs([RunId(run)]))[0]


async def _find_version(reads: Reads, job: Job, at: Instant) -> JobVersion | None:
    """Return the version in force at that time, or None if it is before the first one."""
    before: int | None = None
    while True:
        page = await reads.versions(job.id, before=before, limit=_VERSIONS_PAGE)
        for version in page:
            if version.made_at <= at:
                return version
        if len(page) < _VERSIONS_PAGE:
            return None
        before = page[-1].version
