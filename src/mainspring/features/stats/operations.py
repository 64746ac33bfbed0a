"""HTTP operations for statistics over time."""

from typing import Annotated, Literal

from msgspec import Meta

from mainspring.core.maintenance.queue_depth import judge_depth
from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import JobId, RunId, is_id
from mainspring.core.model.base.instant import DAY, HOUR, MILLISECOND, MINUTE, Micros, isoformat
from mainspring.core.model.base.percentiles import percentile
from mainspring.core.model.runs.run import ENDED, RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.runs.waits import describe_reason
from mainspring.core.model.schedules.job import LedgerEntry
from mainspring.core.ports.storage.catalog import Load, Minute, RunFilter
from mainspring.http.context import Api
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.rendering.jobs import render_slo
from mainspring.http.schemas.common import Limit, Name, Request, Time, parse_time
from mainspring.http.schemas.stats import Histories, History, MissedSlo, MissedSlos, Point, RunCounts, Stats, TickEnd

stats = Resource("Statistics", "Time series and counts for charts.")

_MAX_POINTS = 10_000
#: For how many jobs one request returns the latest ticks.
_MAX_JOBS = 100
_UNFINISHED = frozenset(set(RunState) - ENDED)
_STEPS: dict[str, Micros] = {"1m": MINUTE, "5m": 5 * MINUTE, "15m": 15 * MINUTE, "1h": HOUR, "1d": DAY}


class StatsQuery(Request):
    since: Time | None = None
    until: Time | None = None
    step: Literal["1m", "5m", "15m", "1h", "1d"] = "1m"
    queue: Name | None = None
    tenant: Name | None = None


class CountQuery(Request):
    queue: Name | None = None
    tenant: Name | None = None
    at_most: Annotated[int, Meta(ge=1, le=100_000)] = 1_000


class TicksQuery(Request):
    jobs: Annotated[
        str, Meta(max_length=4_000, description="Ids of jobs, comma-separated; only the first hundred count.")
    ]
    limit: Annotated[int, Meta(ge=1, le=100)] = 50


class MissedQuery(Request):
    tenant: Name | None = None
    limit: Limit = 50


@stats.operation("GET", "/v1/stats", permission=Permission.READ, query=StatsQuery, answers={200: Stats})
async def get_stats(api: Api, call: Call[Empty, StatsQuery]) -> Answer:
    """Get time series of completed, queued and running runs, with delays and durations.

    Covers the last hour, unless you set `since`. Runs that ended within the last 15 seconds may be missing. Queued
    and running counts are kept for a day, for the total and for the 200 largest queues of each tenant. Percentiles
    cover the last day at most, in steps of five minutes.
    """
    query = call.query
    tenant = api.choose_listed(call.principal, query.tenant)
    step = _STEPS[query.step]
    now = await api.store.now()
    until = parse_time(query.until, "until") or now
    since = parse_time(query.since, "since")
    since = until - HOUR if since is None else since
    if since >= until or (until - since) // step > 10_000:
        raise Invalid("since", "selects no points, or more than 10000", "use a later since, or a larger step")
    reads = api.listed_by(call.principal)
    ended: dict[int, list[Minute]] = {}
    for minute in await reads.minutes(tenant, since, until, step):
        if query.queue in (None, minute.queue):
            ended.setdefault(minute.at, []).append(minute)
    loads: dict[int, list[Load]] = {}
    for load in await reads.loads(tenant, query.queue, since, until):
        loads.setdefault(load.at // step * step, []).append(load)
    timings = await reads.timings(tenant, query.queue, since, until)
    workers = await api.workers.list_live(tenant)
    depths = [
        judge_depth(depth, workers)
        for depth in await api.seen_by(call.principal).depths(tenant)
        if query.queue in (None, depth.queue)
    ]
    dues = [depth.oldest_due for depth in depths if depth.oldest_due is not None]
    counted = [minute for minutes in ended.values() for minute in minutes]
    late_most = max((minute.late_most for minute in counted), default=0)
    took_most = max((minute.took_most for minute in counted), default=0)
    out = Stats(
        step=query.step,
        points=[
            _point_out(at, ended.get(at, []), loads.get(at, [])) for at in range(since // step * step, until, step)
        ],
        queued=sum(depth.queued for depth in depths),
        running=sum(depth.running for depth in depths),
        lag_ms=max(now - min(dues), 0) / MILLISECOND if dues else 0.0,
        late_ms_p50=_convert_to_ms(percentile(timings.late, 0.5, late_most)),
        late_ms_p95=_convert_to_ms(percentile(timings.late, 0.95, late_most)),
        took_ms_p50=_convert_to_ms(percentile(timings.took, 0.5, took_most)),
        took_ms_p95=_convert_to_ms(percentile(timings.took, 0.95, took_most)),
    )
    return Answer(200, out)


@stats.operation("GET", "/v1/stats/runs", permission=Permission.READ, query=CountQuery, answers={200: RunCounts})
async def count_runs(api: Api, call: Call[Empty, CountQuery]) -> Answer:
    """Count the runs in each state.

    Counting a state stops at `atMost`, so a count of that size means at least as many.
    """
    query = call.query
    reads = api.listed_by(call.principal)
    tenant = api.choose_listed(call.principal, query.tenant)
    counts: dict[str, int] = {}
    # Count sequentially: this is not urgent, and other requests need connections as well.
    for state in RunState:
        wanted = RunFilter(tenant=tenant, states=frozenset({state}), queue=query.queue or "")
        counts[state.value] = await reads.count_runs(wanted, query.at_most)
    return Answer(200, RunCounts(counts=counts, at_most=query.at_most))


@stats.operation("GET", "/v1/stats/slos", permission=Permission.READ, query=MissedQuery, answers={200: MissedSlos})
async def missed_slos(api: Api, call: Call[Empty, MissedQuery]) -> Answer:
    """List recurring jobs that miss an objective (`slo`).

    Returns up to `limit` jobs, each with the objective that it misses and since when.
    """
    tenant = api.choose_listed(call.principal, call.query.tenant)
    missed = await api.store.slos_missed(tenant, call.query.limit)
    jobs = await api.store.jobs(list(missed)) if missed else []
    items = [
        MissedSlo(job_id=job.id, name=job.spec.name, tenant=job.tenant, slo_state=state)
        for job in jobs
        if job is not None and (state := render_slo(missed[job.id])) is not None
    ]
    return Answer(200, MissedSlos(items=items))


@stats.operation("GET", "/v1/stats/ticks", permission=Permission.READ, query=TicksQuery, answers={200: Histories})
async def last_ticks(api: Api, call: Call[Empty, TicksQuery]) -> Answer:
    """Get the outcomes of the last ticks of several recurring jobs, oldest first.

    `jobs` takes ids, separated by commas. Jobs that do not exist or that your key cannot read are left out.
    """
    jobs = [JobId(known) for word in call.query.jobs.split(",") if is_id(known := word.strip())][:_MAX_JOBS]
    reads = api.listed_by(call.principal)
    ledgers = await reads.last_ticks(jobs, call.query.limit)
    ids = [RunId(entry.run_id) for ledger in ledgers for entry in ledger if entry.run_id is not None]
    runs = {run.id: run for run in await reads.runs(ids) if run is not None} if ids else {}
    items = [
        History(job_id=job, ticks=[_tick_out(entry, runs) for entry in ledger])
        for job, ledger in zip(jobs, ledgers, strict=True)
        if ledger
    ]
    return Answer(200, Histories(items=items))


def _tick_out(entry: LedgerEntry, runs: dict[RunId, RunView]) -> TickEnd:
    run = None if entry.run_id is None else runs.get(RunId(entry.run_id))
    late = None if run is None or run.started_at is None else max(run.started_at - entry.scheduled_at, 0)
    took = (
        None if run is None or run.started_at is None or run.finished_at is None else run.finished_at - run.started_at
    )
    return TickEnd(
        scheduled_for=isoformat(entry.scheduled_at),
        status="skipped" if entry.decision == "skipped" else "" if run is None else run.state.value,
        reason=entry.reason or ("" if run is None else describe_reason(run)),
        run_id=entry.run_id,
        late_ms=None if late is None else late / MILLISECOND,
        took_ms=None if took is None else took / MILLISECOND,
        attempt_number=0 if run is None else run.attempt,
        ticks=entry.ticks,
        datacenter=entry.target or None,
    )


def _convert_to_ms(span: Micros | None) -> float | None:
    return None if span is None else span / MILLISECOND


def _point_out(at: int, minutes: list[Minute], loads: list[Load]) -> Point:
    started = sum(minute.started for minute in minutes) or 1
    return Point(
        time=isoformat(at),
        succeeded=sum(minute.succeeded for minute in minutes),
        failed=sum(minute.failed for minute in minutes),
        cancelled=sum(minute.cancelled for minute in minutes),
        skipped=sum(minute.skipped for minute in minutes),
        retried=sum(minute.retried for minute in minutes),
        late_ms_mean=round(sum(minute.late_total for minute in minutes) / started / MILLISECOND, 3),
        late_ms_max=max((minute.late_most for minute in minutes), default=0) / MILLISECOND,
        took_ms_mean=round(sum(minute.took_total for minute in minutes) / started / MILLISECOND, 3),
        took_ms_max=max((minute.took_most for minute in minutes), default=0) / MILLISECOND,
        queued=max((load.queued for load in loads), default=None),
        running=max((load.running for load in loads), default=None),
        lag_ms=max((load.lag / MILLISECOND for load in loads), default=None),
    )
