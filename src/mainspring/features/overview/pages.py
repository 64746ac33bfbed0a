"""The overview page."""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.instant import DAY, HOUR, Instant, Micros, isoformat
from mainspring.features.overview.findings import ClusterView, find_late_runs, list_findings
from mainspring.http.schemas.stats import Point, Stats
from mainspring.web.charts import encode_chart
from mainspring.web.heat_map import list_busiest
from mainspring.web.page import Pages, Reply, Visit
from mainspring.web.stat_charts import _build_lines, build_ended_chart, build_line_chart

overview = Pages()

#: For each range: its length, the step of the statistics, and the step in seconds.
_RANGES: dict[str, tuple[Micros, str, int]] = {"1h": (HOUR, "1m", 60), "24h": (DAY, "15m", 900)}
#: How many queued and how many of the newest runs are searched for late ones.
_MAX_RUNS = 30
#: How many groups of dead letters of the last day are read, and how many of them the page shows.
_MAX_GROUPS = 30
_LISTED_GROUPS = 6


class OverviewQuery(msgspec.Struct, frozen=True):
    range: Literal["1h", "24h"] = "1h"


@overview.page("GET", "/", permission=Permission.READ, query=OverviewQuery)
async def show_overview(visit: Visit[OverviewQuery]) -> Reply:
    length, step, seconds = _RANGES[visit.query.range]
    (
        stats,
        queues,
        workers,
        schedulers,
        groups,
        newest,
        waiting,
        forecast,
        budgets,
        missed,
        datacenters,
    ) = await asyncio.gather(
        visit.ask("get_stats", query={"since": isoformat(visit.now - length), "step": step}),
        visit.ask("list_queues"),
        visit.ask("list_workers"),
        visit.ask("list_schedulers"),
        visit.ask("list_groups", query={"limit": _MAX_GROUPS, "since": isoformat(visit.now - DAY)}),
        visit.ask("list_runs", query={"limit": _MAX_RUNS}),
        visit.ask("list_runs", query={"limit": _MAX_RUNS, "status": "queued"}),
        visit.ask("get_forecast", query={"hours": 24}),
        visit.ask("list_budgets"),
        visit.ask("missed_slos"),
        visit.ask("list_datacenters"),
    )
    late = find_late_runs([*waiting.items, *newest.items], visit.now, queues.items)
    view = ClusterView(
        workers=workers,
        schedulers=schedulers,
        now=visit.now,
        queues=queues.items,
        points=stats.points,
        groups=groups.items,
        more_groups=len(groups.items) == _MAX_GROUPS,
        budgets=budgets.items,
        missed=missed.items,
        datacenters=datacenters.items,
        late=late,
    )
    return visit.show(
        "overview/page.html",
        range=visit.query.range,
        stats=stats,
        figures=_compute_summary(stats, seconds),
        findings=list_findings(view),
        workers=len(workers.items),
        schedulers=len(schedulers.items),
        queues=sorted(queues.items, key=lambda queue: (-queue.queued, -queue.running, queue.name)),
        groups=groups.items[:_LISTED_GROUPS],
        late=late,
        peaks=list_busiest(forecast, visit.now, 5),
        coming=forecast,
        ended_chart=build_ended_chart(stats.points),
        load_chart=build_load_chart(stats, visit.now),
        late_chart=build_late_chart(stats, visit.now),
        took_chart=build_line_chart(stats.points, "took", "--running-fill"),
    )


def _compute_summary(stats: Stats, seconds: int) -> dict[str, Any]:
    points = stats.points
    ended = sum(point.succeeded + point.failed for point in points)
    failed = sum(point.failed for point in points)
    minutes = max(len(points) * seconds / 60, 1)
    return {
        "ended": ended,
        "per_minute": ended / minutes,
        "failed": failed,
        "failed_share": failed / ended * 100 if ended else 0.0,
        # Counts the attempts of retried runs and of failed ones.
        "failed_attempts": sum(point.retried for point in points),
        "late_p50": _convert_to_seconds(stats.late_ms_p50),
        "late_p95": _convert_to_seconds(stats.late_ms_p95),
        "took_p50": _convert_to_seconds(stats.took_ms_p50),
        "took_p95": _convert_to_seconds(stats.took_ms_p95),
    }


def _convert_to_seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1_000


def build_load_chart(stats: Stats, now: Instant) -> str:
    """Build the chart of queued and running runs: each sample, and the current numbers."""
    view = _list_sampled_points(stats)
    series = [
        {"name": "queued", "colour": "--queued-fill", "values": [*(point.queued for point in view), stats.queued]},
        {"name": "running", "colour": "--running-fill", "values": [*(point.running for point in view), stats.running]},
    ]
    return encode_chart("lines", "at a time", [*(point.time for point in view), isoformat(now)], series)


def build_late_chart(stats: Stats, now: Instant) -> str:
    """Build the chart of start delays, and of the age of the oldest due run that had not started."""
    view = _list_sampled_points(stats)
    lags = {"name": "lag", "colour": "--scheduled-fill", "values": [*(point.lag_ms for point in view), stats.lag_ms]}
    began = [
        {**one, "values": [*one["values"][: len(view)], None]}
        for one in _build_lines(stats.points, "late", "--late-fill")
    ]
    return encode_chart("lines", "ms", [*(point.time for point in view), isoformat(now)], [lags, *began])


def _list_sampled_points(stats: Stats) -> Sequence[Point]:
    """Return the points, without the last one if it has no sample yet. The current numbers take its place."""
    points = stats.points
    return points[:-1] if points and points[-1].queued is None else points
